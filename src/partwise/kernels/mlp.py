"""A narrow perceptron in one pass over its rows, by a C++ kernel on the CPU in float32.

Its hidden units never leave the cache, where two products and an activation of torch's move them through memory;
`benchmarks/training_step.py --variants` times the one against the other.
"""

import ctypes
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from partwise.kernels.library import compiled, team

ACTIVATIONS = ("relu", "relu2", "gelu", "gelu_tanh", "silu", "sigmoid", "identity")
"""Those that the kernel knows, in the order of its `Act`."""

LARGEST = 2**17
"""Numbers in both matrices up to which they, their gradients and some rows stay in a second-level cache of a megabyte."""


def mlp(
    x: Tensor, up: Tensor, up_bias: Tensor | None, down: Tensor, down_bias: Tensor | None, activation: str
) -> Tensor:
    """act(x up^T + up_bias) down^T + down_bias, or with `up` twice as high as `down` is wide, act(gate) value first.

    (..., D), (U, D), (U,), (D, F), (D,) -> (..., D). Only for what `serves` says yes to. Equal numbers on every call,
    and for every number of threads but for the order in which a weight's gradient is summed.
    """
    y, _ = torch.ops.partwise.mlp(x, up, up_bias, down, down_bias, ACTIVATIONS.index(activation))
    return y


def serves(x: Tensor, up: Tensor, down: Tensor) -> bool:
    """Whether the kernel is compiled, takes such tensors and is the faster way."""
    if not (x.is_cpu and x.dtype == up.dtype == torch.float32) or torch.is_autocast_enabled("cpu"):
        return False
    return narrow(up, down)


def narrow(up: Tensor, down: Tensor) -> bool:
    """Whether the kernel is compiled and takes matrices of these shapes."""
    loaded = library()
    small = up.numel() + down.numel() <= LARGEST
    return loaded is not None and small and not (down.shape[0] % loaded.W or down.shape[1] % loaded.W)


@lru_cache
def library() -> Any:
    """The compiled kernel, or None; its `W` is how many numbers a vector holds."""
    loaded: Any = compiled("mlp")
    if loaded is not None:
        size, pointer, tail = ctypes.c_int64, ctypes.c_void_p, (ctypes.c_int, ctypes.c_void_p)
        loaded.mlp_forward.argtypes = (size, *[ctypes.c_int] * 4, *[pointer] * 8, *tail)
        loaded.mlp_backward.argtypes = (size, *[ctypes.c_int] * 4, *[pointer] * 8, *tail)
        loaded.mlp_forward.restype = loaded.mlp_backward.restype = None
        loaded.W = loaded.mlp_vector()
    return loaded


def sizes(x: Tensor, up: Tensor, down: Tensor, activation: int) -> tuple[int, ...]:
    """As the kernel takes them: M, D, F, whether gated, and the activation."""
    D, F = down.shape
    return x.numel() // D, D, F, int(up.shape[0] == 2 * F), activation


def address(x: Tensor | None) -> int | None:
    return None if x is None else x.data_ptr()


def forward(
    x: Tensor, up: Tensor, up_bias: Tensor | None, down: Tensor, down_bias: Tensor | None, activation: int
) -> tuple[Tensor, Tensor]:
    x, up, down = x.contiguous(), up.contiguous(), down.contiguous()
    y, pre = outputs(x, up)
    turned = x.new_empty(up.numel() + down.numel())
    tensors = (x, up, up_bias, down, down_bias, turned, pre, y)
    library().mlp_forward(*sizes(x, up, down, activation), *map(address, tensors), torch.get_num_threads(), team())
    return y, pre


def backward(grad: Tensor, x: Tensor, pre: Tensor, up: Tensor, down: Tensor, activation: int) -> tuple[Tensor, Tensor]:
    """The gradient of x, and those of up, its bias, down and its bias behind one another."""
    grad, x, up, down = grad.contiguous(), x.contiguous(), up.contiguous(), down.contiguous()
    dx, sums = gradients(x, up, down)
    threads = torch.get_num_threads()
    others = x.new_empty(threads - 1, len(sums))
    tensors = (x, pre, grad, up, down, dx, sums, others)
    library().mlp_backward(*sizes(x, up, down, activation), *map(address, tensors), threads, team())
    return dx, sums


def outputs(x: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape), x.new_empty(*x.shape[:-1], up.shape[0])


def gradients(x: Tensor, up: Tensor, down: Tensor) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape), x.new_empty(up.numel() + up.shape[0] + down.numel() + down.shape[0])


def remember(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    x, up, up_bias, down, down_bias, ctx.activation = inputs
    ctx.biases = up_bias is not None, down_bias is not None
    ctx.save_for_backward(x, output[1], up, down)
    ctx.set_materialize_grads(False)


def differentiate(ctx: Any, grad: Tensor | None, _: None) -> tuple[Tensor | None, ...]:
    if grad is None:
        return None, None, None, None, None, None
    x, pre, up, down = ctx.saved_tensors
    dx, sums = torch.ops.partwise.mlp_backward(grad, x, pre, up, down, ctx.activation)
    dup, dup_bias, ddown, ddown_bias = sums.split([up.numel(), up.shape[0], down.numel(), down.shape[0]])
    has_up_bias, has_down_bias = ctx.biases
    return (
        dx,
        dup.view(up.shape),
        dup_bias if has_up_bias else None,
        ddown.view(down.shape),
        ddown_bias if has_down_bias else None,
        None,
    )


OPS = torch.library.Library("partwise", "FRAGMENT")
for schema, implementation, fake in (
    (
        "mlp(Tensor x, Tensor up, Tensor? up_bias, Tensor down, Tensor? down_bias, int activation) -> (Tensor, Tensor)",
        forward,
        lambda x, up, up_bias, down, down_bias, activation: outputs(x, up),
    ),
    (
        "mlp_backward(Tensor grad, Tensor x, Tensor pre, Tensor up, Tensor down, int activation) -> (Tensor, Tensor)",
        backward,
        lambda grad, x, pre, up, down, activation: gradients(x, up, down),
    ),
):
    OPS.define(schema, tags=(torch.Tag.pt2_compliant_tag,))
    name = f"partwise::{schema.partition('(')[0]}"
    OPS.impl(name, implementation, "CompositeExplicitAutograd")
    torch.library.register_fake(name, fake, lib=OPS)
torch.library.register_autograd("partwise::mlp", differentiate, setup_context=remember, lib=OPS)

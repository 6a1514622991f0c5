"""A narrow MLP in one pass over its rows, by a C++ kernel on the CPU in float32.

The hidden units never leave the cache; torch's two matmuls and activation move them through memory.
`benchmarks/training_step.py --variants` compares the two.
"""

import ctypes
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from partwise.kernels.library import OPERATORS, declare, define_operator, openmp_parallel
from partwise.kernels.threads import gradient_parts, kernel_threads

ACTIVATIONS = ("relu", "relu2", "gelu", "gelu_tanh", "silu", "sigmoid", "identity")
"""The supported activations, in the order of `Activation` in activations.h."""

MAX_WEIGHTS = 2**17
"""Both matrices have at most this many elements, so that they, their gradients and some rows fit a 1 MB L2 cache."""


def mlp(
    x: Tensor, up: Tensor, up_bias: Tensor | None, down: Tensor, down_bias: Tensor | None, activation: str
) -> Tensor:
    """act(x up^T + up_bias) down^T + down_bias; gated, act(gate) * value instead of act, if `up` has 2 F rows (gate first).

    (..., D), (U, D), (U,), (D, F), (D,) -> (..., D). Requires `supports_mlp`. Bitwise reproducible; the number of threads
    changes only the order in which a weight's gradient is summed.
    """
    y, _ = torch.ops.partwise.mlp(x, up, up_bias, down, down_bias, ACTIVATIONS.index(activation))
    return y


def supports_mlp(x: Tensor, up: Tensor, down: Tensor) -> bool:
    """Whether the kernel is available, supports these tensors and beats torch."""
    if not (x.is_cpu and x.dtype == up.dtype == torch.float32) or torch.is_autocast_enabled("cpu"):
        return False
    return unsupported_mlp_width(down.shape[0], down.shape[1], up.shape[0] != down.shape[1]) is None


def unsupported_mlp_width(d_model: int, hidden: int, gated: bool) -> str | None:
    """The width for which the kernel does not support a layer or does not beat torch, as a clause, or None."""
    loaded = library()
    if loaded is None:
        return "the kernel is not available"
    return unsupported_width(d_model, hidden, gated, loaded.W, MAX_WEIGHTS)


def unsupported_width(d_model: int, hidden: int, gated: bool, multiple: int, max_weights: int) -> str | None:
    """The width that is not a multiple of `multiple`, or the number of weights above `max_weights`, as a clause, or None."""
    for name, width in ((f"d_model={d_model}", d_model), (f"the hidden width {hidden}", hidden)):
        if width % multiple:
            return f"{name} is not a multiple of {multiple}"
    n_weights = (3 if gated else 2) * d_model * hidden
    return f"its matrices have {n_weights:,} elements, more than {max_weights:,}" if n_weights > max_weights else None


@lru_cache
def library() -> Any:
    """The compiled kernel, or None; its `W` is the number of floats in a SIMD vector."""
    size, pointer, openmp = ctypes.c_int64, ctypes.c_void_p, (ctypes.c_int, ctypes.c_void_p)
    functions = {
        "mlp_forward": (size, *[ctypes.c_int] * 4, *[pointer] * 8, *openmp),
        "mlp_backward": (size, *[ctypes.c_int] * 4, *[pointer] * 8, ctypes.c_int, *openmp),
    }
    loaded = declare("mlp", functions)
    if loaded is not None:
        loaded.W = loaded.mlp_vector_width()
    return loaded


def sizes(x: Tensor, up: Tensor, down: Tensor, activation: int) -> tuple[int, ...]:
    """The kernel's M, D, F, gated and activation."""
    D, F = down.shape
    return x.numel() // D, D, F, int(up.shape[0] == 2 * F), activation


def data_pointer(x: Tensor | None) -> int | None:
    return None if x is None else x.data_ptr()


def forward(
    x: Tensor, up: Tensor, up_bias: Tensor | None, down: Tensor, down_bias: Tensor | None, activation: int
) -> tuple[Tensor, Tensor]:
    """The output and the pre-activations, which the backward pass needs."""
    x, up, down = x.contiguous(), up.contiguous(), down.contiguous()
    y, pre = empty_outputs(x, up)
    transposed_weights = x.new_empty(up.numel() + down.numel())
    tensors = (x, up, up_bias, down, down_bias, transposed_weights, pre, y)
    openmp = kernel_threads(), openmp_parallel()
    library().mlp_forward(*sizes(x, up, down, activation), *map(data_pointer, tensors), *openmp)
    return y, pre


def backward(grad: Tensor, x: Tensor, pre: Tensor, up: Tensor, down: Tensor, activation: int) -> tuple[Tensor, Tensor]:
    """The gradient of x, and the concatenated gradients of up, its bias, down and its bias."""
    grad, x, up, down = grad.contiguous(), x.contiguous(), up.contiguous(), down.contiguous()
    dx, weight_grads = empty_gradients(x, up, down)
    shape = sizes(x, up, down, activation)
    parts = gradient_parts(shape[0])
    part_grads = x.new_empty(parts - 1, len(weight_grads))
    tensors = (x, pre, grad, up, down, dx, weight_grads, part_grads)
    library().mlp_backward(*shape, *map(data_pointer, tensors), parts, kernel_threads(), openmp_parallel())
    return dx, weight_grads


def empty_outputs(x: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape), x.new_empty(*x.shape[:-1], up.shape[0])


def empty_gradients(x: Tensor, up: Tensor, down: Tensor) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape), x.new_empty(up.numel() + up.shape[0] + down.numel() + down.shape[0])


def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    x, up, up_bias, down, down_bias, ctx.activation = inputs
    ctx.has_bias = up_bias is not None, down_bias is not None
    ctx.save_for_backward(x, output[1], up, down)
    ctx.set_materialize_grads(False)


def autograd_backward(ctx: Any, grad: Tensor | None, _: None) -> tuple[Tensor | None, ...]:
    if grad is None:
        return None, None, None, None, None, None
    x, pre, up, down = ctx.saved_tensors
    dx, weight_grads = torch.ops.partwise.mlp_backward(grad, x, pre, up, down, ctx.activation)
    return dx, *split_weight_gradients(weight_grads, up, down, ctx.has_bias), None


def split_weight_gradients(
    weight_grads: Tensor, up: Tensor, down: Tensor, has_bias: tuple[bool, bool]
) -> tuple[Tensor | None, ...]:
    """The concatenated gradients as those of up, its bias, down and its bias; None for a bias that does not exist."""
    dup, dup_bias, ddown, ddown_bias = weight_grads.split([up.numel(), up.shape[0], down.numel(), down.shape[0]])
    return (
        dup.view(up.shape),
        dup_bias if has_bias[0] else None,
        ddown.view(down.shape),
        ddown_bias if has_bias[1] else None,
    )


for schema, implementation, fake in (
    (
        "mlp(Tensor x, Tensor up, Tensor? up_bias, Tensor down, Tensor? down_bias, int activation) -> (Tensor, Tensor)",
        forward,
        lambda x, up, up_bias, down, down_bias, activation: empty_outputs(x, up),
    ),
    (
        "mlp_backward(Tensor grad, Tensor x, Tensor pre, Tensor up, Tensor down, int activation) -> (Tensor, Tensor)",
        backward,
        lambda grad, x, pre, up, down, activation: empty_gradients(x, up, down),
    ),
):
    define_operator(schema, implementation, fake)
torch.library.register_autograd("partwise::mlp", autograd_backward, setup_context=setup_context, lib=OPERATORS)

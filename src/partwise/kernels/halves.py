"""Attention and perceptrons under autocast on the CPU: products of bfloat16 numbers, summed in float32.

For blocks that are not one of those which the kernel of `block.py` knows whole.
"""

import ctypes
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from partwise.kernels.block import LARGEST, UNIT
from partwise.kernels.library import compiled, team
from partwise.kernels.mlp import ACTIVATIONS, address


class Shape(ctypes.Structure):
    """As `halves.cpp` has it."""

    _fields_ = [
        *((name, ctypes.c_int64) for name in ("B", "T", "H", "K", "E")),
        *((name, ctypes.c_int64 * 3) for name in ("q", "k", "v")),  # strides of B, T and H
    ]


@lru_cache
def library() -> Any:
    """The compiled kernels, or None."""
    loaded: Any = compiled("halves")
    if loaded is not None:
        size, pointer, tail = ctypes.c_int64, ctypes.c_void_p, (ctypes.c_int, ctypes.c_void_p)
        loaded.half_attention_forward.argtypes = (*[pointer] * 6, ctypes.c_float, *tail)
        loaded.half_attention_backward.argtypes = (*[pointer] * 10, ctypes.c_float, *tail)
        loaded.half_mlp_forward.argtypes = (size, *[ctypes.c_int] * 4, *[pointer] * 8, *tail)
        loaded.half_mlp_backward.argtypes = (size, *[ctypes.c_int] * 4, *[pointer] * 9, *tail)
        loaded.half_attention_forward.restype = loaded.half_attention_backward.restype = None
        loaded.half_mlp_forward.restype = loaded.half_mlp_backward.restype = None
    return loaded


def half_attention(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    """softmax(q k^T scale) v where query i sees the keys up to i; Vaswani et al. 2017, Dao et al. 2022.

    (B, T, H, E), (B, T, K, E), (B, T, K, E) bfloat16 -> (B, T, H, E) bfloat16, contiguous. K divides H. Only for what
    `serves_attention` says yes to. Equal numbers on every call and for every number of threads.
    """
    return HalfAttention.apply(q, k, v, scale)


def serves_attention(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether the kernel is compiled and takes such tensors; heads are even, as it takes their numbers in pairs."""
    numbers = q.is_cpu and q.dtype == k.dtype == v.dtype == torch.bfloat16
    square = q.shape[1] == k.shape[1] and q.shape[3] == k.shape[3] == v.shape[3]
    return numbers and square and q.shape[3] % 2 == 0 and not torch.compiler.is_compiling() and library() is not None


def in_pairs(x: Tensor) -> Tensor:
    """With every head's numbers side by side, in pairs that do not cross a word."""
    whole = x.stride(3) == 1 and all(step % 2 == 0 for step in x.stride()[:3]) and x.data_ptr() % 4 == 0
    return x if whole else x.contiguous() if x.data_ptr() % 4 == 0 else x.clone(memory_format=torch.contiguous_format)


def described(q: Tensor, k: Tensor, v: Tensor) -> Any:
    B, T, H, E = q.shape
    strides = ((ctypes.c_int64 * 3)(*x.stride()[:3]) for x in (q, k, v))
    return ctypes.byref(Shape(B, T, H, k.shape[2], E, *strides))


class HalfAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        q, k, v = in_pairs(q), in_pairs(k), in_pairs(v)
        out, lse = q.new_empty(q.shape), q.new_empty(q.shape[0], q.shape[2], q.shape[1], dtype=torch.float32)
        places = [x.data_ptr() for x in (q, k, v, out, lse)]
        library().half_attention_forward(described(q, k, v), *places, scale, torch.get_num_threads(), team())
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.scale = scale
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, out, lse = ctx.saved_tensors
        found = [x.new_empty(x.shape) for x in (q, k, v)]
        grad = in_pairs(grads[0].contiguous())
        places = [x.data_ptr() for x in (q, k, v, out, lse, grad, *found)]
        threads = torch.get_num_threads()
        library().half_attention_backward(described(q, k, v), *places, ctx.scale, threads, team())
        return *found, None


def half_mlp(
    x: Tensor, up: Tensor, up_bias: Tensor | None, down: Tensor, down_bias: Tensor | None, activation: str
) -> Tensor:
    """act(x up^T + up_bias) down^T + down_bias, or with `up` twice as high as `down` is wide, act(gate) value first.

    (..., D), (U, D), (U,), (D, F), (D,) float32 -> (..., D) float32. Only for what `serves_mlp` says yes to. Equal numbers on
    every call, and for every number of threads but for the order in which a weight's gradient is summed.
    """
    return HalfPerceptron.apply(
        x, up.contiguous(), up_bias, down.contiguous(), down_bias, ACTIVATIONS.index(activation)
    )


def serves_mlp(x: Tensor, up: Tensor, down: Tensor) -> bool:
    """Whether the kernel is compiled, takes such tensors under autocast and is the faster way."""
    if not (x.is_cpu and x.dtype == up.dtype == torch.float32) or torch.compiler.is_compiling():
        return False
    return torch.is_autocast_enabled("cpu") and takes_widths(up, down)


def takes_widths(up: Tensor, down: Tensor) -> bool:
    """Whether the kernel is compiled and takes matrices of these shapes."""
    whole = not (down.shape[0] % UNIT or down.shape[1] % UNIT)
    return whole and up.numel() + down.numel() <= LARGEST and library() is not None


class HalfPerceptron(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        up: Tensor,
        up_bias: Tensor | None,
        down: Tensor,
        down_bias: Tensor | None,
        activation: int,
    ) -> Tensor:
        x, (D, F), U = x.contiguous(), down.shape, up.shape[0]
        y, pre = torch.empty_like(x), x.new_empty(x.numel() // D, U, dtype=torch.bfloat16)
        room = x.new_empty(up.numel() + down.numel(), dtype=torch.bfloat16)
        ctx.sizes = (x.numel() // D, D, F, int(U == 2 * F), activation)
        places = [address(each) for each in (x, up, up_bias, down, down_bias, room, pre, y)]
        library().half_mlp_forward(*ctx.sizes, *places, torch.get_num_threads(), team())
        ctx.save_for_backward(x, pre, up, down)
        ctx.biases = up_bias is not None, down_bias is not None
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, pre, up, down = ctx.saved_tensors
        grad, dx = grads[0].contiguous(), torch.empty_like(x)
        sums = x.new_empty(up.numel() + up.shape[0] + down.numel() + down.shape[0])
        threads = torch.get_num_threads()
        others = x.new_empty(threads - 1, len(sums))
        room = x.new_empty(up.numel() + down.numel(), dtype=torch.bfloat16)
        places = [address(each) for each in (x, pre, grad, up, down, room, dx, sums, others)]
        library().half_mlp_backward(*ctx.sizes, *places, threads, team())
        dup, dup_bias, ddown, ddown_bias = sums.split([up.numel(), up.shape[0], down.numel(), down.shape[0]])
        biases = [bias if there else None for bias, there in zip((dup_bias, ddown_bias), ctx.biases, strict=True)]
        return dx, dup.view(up.shape), biases[0], ddown.view(down.shape), biases[1], None

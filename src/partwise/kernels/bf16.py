"""Attention and MLPs under CPU autocast: matmuls of bfloat16 values with float32 accumulation.

For blocks that the compiled block (block.py) does not support as a whole.
"""

import ctypes
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from partwise.kernels.block import MAX_WEIGHTS, WIDTH_MULTIPLE
from partwise.kernels.library import declare, openmp_parallel
from partwise.kernels.mlp import ACTIVATIONS, data_pointer, split_weight_gradients, unsupported_width
from partwise.kernels.threads import gradient_parts, kernel_threads


class Shape(ctypes.Structure):
    """`Shape` in bf16.cpp."""

    _fields_ = [
        *((name, ctypes.c_int64) for name in ("B", "T", "H", "K", "E")),
        *((name, ctypes.c_int64 * 3) for name in ("q", "k", "v")),  # strides of B, T and H
    ]


@lru_cache
def library() -> Any:
    """The compiled kernels, or None."""
    size, pointer, openmp = ctypes.c_int64, ctypes.c_void_p, (ctypes.c_int, ctypes.c_void_p)
    functions = {
        "bf16_attention_forward": (*[pointer] * 6, ctypes.c_float, *openmp),
        "bf16_attention_backward": (*[pointer] * 10, ctypes.c_float, *openmp),
        "bf16_mlp_forward": (size, *[ctypes.c_int] * 4, *[pointer] * 8, *openmp),
        "bf16_mlp_backward": (size, *[ctypes.c_int] * 4, *[pointer] * 9, ctypes.c_int, *openmp),
    }
    return declare("bf16", functions)


def bf16_attention(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    """Causal softmax(q k^T scale) v: query i attends to keys 0 ... i; Vaswani et al. 2017, Dao et al. 2022.

    (B, T, H, E), (B, T, K, E), (B, T, K, E) bfloat16 -> (B, T, H, E) bfloat16, contiguous. K divides H. Requires
    `supports_bf16_attention`. Bitwise reproducible for any number of threads.
    """
    return BF16Attention.apply(q, k, v, scale)


def supports_bf16_attention(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether the kernel is available and supports these tensors, in any dtype until they are rounded to bfloat16.

    head_dim is even, because elements are read in pairs.
    """
    square = q.shape[1] == k.shape[1] and q.shape[3] == k.shape[3] == v.shape[3]
    return q.is_cpu and square and q.shape[3] % 2 == 0 and not torch.compiler.is_compiling() and library() is not None


def aligned_pairs(x: Tensor) -> Tensor:
    """x with each head contiguous and every pair of elements in one aligned 32-bit word."""
    aligned = x.stride(3) == 1 and all(stride % 2 == 0 for stride in x.stride()[:3]) and x.data_ptr() % 4 == 0
    return x if aligned else x.contiguous() if x.data_ptr() % 4 == 0 else x.clone(memory_format=torch.contiguous_format)


def shape_of(q: Tensor, k: Tensor, v: Tensor) -> Any:
    B, T, H, E = q.shape
    strides = ((ctypes.c_int64 * 3)(*x.stride()[:3]) for x in (q, k, v))
    return ctypes.byref(Shape(B, T, H, k.shape[2], E, *strides))


class BF16Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        q, k, v = aligned_pairs(q), aligned_pairs(k), aligned_pairs(v)
        out, lse = q.new_empty(q.shape), q.new_empty(q.shape[0], q.shape[2], q.shape[1], dtype=torch.float32)
        pointers = [x.data_ptr() for x in (q, k, v, out, lse)]
        library().bf16_attention_forward(shape_of(q, k, v), *pointers, scale, kernel_threads(), openmp_parallel())
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.scale = scale
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, out, lse = ctx.saved_tensors
        dqkv = [x.new_empty(x.shape) for x in (q, k, v)]
        grad = aligned_pairs(grads[0].contiguous())
        pointers = [x.data_ptr() for x in (q, k, v, out, lse, grad, *dqkv)]
        openmp = kernel_threads(), openmp_parallel()
        library().bf16_attention_backward(shape_of(q, k, v), *pointers, ctx.scale, *openmp)
        return *dqkv, None


def bf16_mlp(
    x: Tensor, up: Tensor, up_bias: Tensor | None, down: Tensor, down_bias: Tensor | None, activation: str
) -> Tensor:
    """act(x up^T + up_bias) down^T + down_bias; gated, act(gate) * value instead of act, if `up` has 2 F rows (gate first).

    (..., D), (U, D), (U,), (D, F), (D,) float32 -> (..., D) float32. Requires `supports_bf16_mlp`. Bitwise reproducible; the
    number of threads changes only the order in which a weight's gradient is summed.
    """
    return BF16MLP.apply(x, up.contiguous(), up_bias, down.contiguous(), down_bias, ACTIVATIONS.index(activation))


def supports_bf16_mlp(x: Tensor, up: Tensor, down: Tensor) -> bool:
    """Whether the kernel is available, supports these tensors under autocast and beats torch."""
    if not (x.is_cpu and x.dtype == up.dtype == torch.float32) or torch.compiler.is_compiling():
        return False
    widths = down.shape[0], down.shape[1], up.shape[0] != down.shape[1]
    return torch.is_autocast_enabled("cpu") and unsupported_bf16_mlp_width(*widths) is None


def unsupported_bf16_mlp_width(d_model: int, hidden: int, gated: bool) -> str | None:
    """The width for which the kernel does not support a layer or does not beat torch, as a clause, or None."""
    if library() is None:
        return "the kernel is not available"
    return unsupported_width(d_model, hidden, gated, WIDTH_MULTIPLE, MAX_WEIGHTS)


class BF16MLP(torch.autograd.Function):
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
        packed = x.new_empty(up.numel() + down.numel(), dtype=torch.bfloat16)
        ctx.sizes = (x.numel() // D, D, F, int(U == 2 * F), activation)
        pointers = [data_pointer(each) for each in (x, up, up_bias, down, down_bias, packed, pre, y)]
        library().bf16_mlp_forward(*ctx.sizes, *pointers, kernel_threads(), openmp_parallel())
        ctx.save_for_backward(x, pre, up, down)
        ctx.has_bias = up_bias is not None, down_bias is not None
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, pre, up, down = ctx.saved_tensors
        grad, dx = grads[0].contiguous(), torch.empty_like(x)
        weight_grads = x.new_empty(up.numel() + up.shape[0] + down.numel() + down.shape[0])
        parts = gradient_parts(ctx.sizes[0])
        part_grads = x.new_empty(parts - 1, len(weight_grads))
        packed = x.new_empty(up.numel() + down.numel(), dtype=torch.bfloat16)
        pointers = [data_pointer(each) for each in (x, pre, grad, up, down, packed, dx, weight_grads, part_grads)]
        library().bf16_mlp_backward(*ctx.sizes, *pointers, parts, kernel_threads(), openmp_parallel())
        return dx, *split_weight_gradients(weight_grads, up, down, ctx.has_bias), None

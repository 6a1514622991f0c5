"""Cross-entropy of bfloat16 logits by a C++ kernel on the CPU, row by row, without copying the logits."""

import ctypes
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from partwise.kernels.library import declare, openmp_parallel
from partwise.kernels.threads import kernel_threads


class CrossEntropySizes(ctypes.Structure):
    """`Sizes` in cross_entropy.cpp."""

    _fields_ = [
        *((name, ctypes.c_int64) for name in ("N", "V", "row_stride", "ignore_index")),
        ("label_smoothing", ctypes.c_double),
    ]


def bf16_cross_entropy(logits: Tensor, targets: Tensor, ignore_index: int, label_smoothing: float = 0.0) -> Tensor:
    """(N, V) bfloat16 logits and (N,) targets -> the loss in nats summed over targets != ignore_index, a float32 scalar.

    Requires `supports_bf16_cross_entropy`. Bitwise reproducible for any number of threads. Raises IndexError for a target
    outside the vocabulary, ValueError if the number of targets differs from the number of rows.
    """
    return BF16CrossEntropy.apply(logits, targets, ignore_index, label_smoothing)


def supports_bf16_cross_entropy(logits: Tensor) -> bool:
    """Whether the kernel is available and supports these logits."""
    bf16 = logits.is_cpu and logits.dtype == torch.bfloat16 and logits.stride(1) == 1
    return bf16 and not torch.compiler.is_compiling() and library() is not None


@lru_cache
def library() -> Any:
    """The compiled kernel, or None."""
    pointer, openmp = ctypes.c_void_p, (ctypes.c_int, ctypes.c_void_p)
    functions = {
        "cross_entropy_forward": (*[pointer] * 6, *openmp),
        "cross_entropy_backward": (*[pointer] * 4, ctypes.c_float, pointer, *openmp),
    }
    return declare("cross_entropy", functions, cross_entropy_forward=ctypes.c_int64)


class BF16CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, ignore_index: int, label_smoothing: float) -> Tensor:
        if targets.shape != logits.shape[:1]:
            raise ValueError(f"{tuple(targets.shape)} targets for {logits.shape[0]} rows of logits: give one per row")
        targets = targets.to(torch.int64).contiguous()
        sizes, total = (
            CrossEntropySizes(*logits.shape, logits.stride(0), ignore_index, label_smoothing),
            ctypes.c_double(),
        )
        log_sum_exp = logits.new_empty((len(targets), 2), dtype=torch.float32)
        losses = logits.new_empty(targets.shape, dtype=torch.float32)
        pointers = [each.data_ptr() for each in (logits, targets, log_sum_exp, losses)]
        openmp = kernel_threads(), openmp_parallel()
        bad_row = library().cross_entropy_forward(ctypes.byref(sizes), *pointers, ctypes.byref(total), *openmp)
        if bad_row >= 0:
            raise IndexError(f"target {int(targets[bad_row])} is outside the vocabulary of {logits.shape[1]}")
        ctx.save_for_backward(logits, targets, log_sum_exp)
        ctx.sizes = sizes
        return logits.new_tensor(total.value, dtype=torch.float32)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        logits = ctx.saved_tensors[0]
        gradient = logits.new_empty(logits.shape)
        pointers = [each.data_ptr() for each in ctx.saved_tensors]
        openmp = kernel_threads(), openmp_parallel()
        library().cross_entropy_backward(
            ctypes.byref(ctx.sizes), *pointers, grads[0].item(), gradient.data_ptr(), *openmp
        )
        return gradient, None, None, None

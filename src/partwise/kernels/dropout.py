"""Dropout by a C++ kernel on the CPU, which generates the noise again in the backward pass instead of storing it."""

import ctypes
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from partwise.kernels.library import declare, openmp_parallel
from partwise.kernels.threads import kernel_threads

DTYPES = (torch.float64, torch.float32, torch.bfloat16)


class DropoutKey(NamedTuple):
    """The noise of one dropout layer in one forward pass, besides the indices of an element."""

    p: float
    seed: int  # 64 bits: the key of Philox
    first_row: int  # index of the first row in the batch of the step


class CDropout(ctypes.Structure):
    """`Dropout` in philox.h."""

    _fields_ = [("p", ctypes.c_double), ("key", ctypes.c_uint64), ("first_row", ctypes.c_int64)]


class DropoutSizes(ctypes.Structure):
    """`Sizes` in dropout.cpp."""

    _fields_ = [*((name, ctypes.c_int64) for name in ("rows", "heads", "positions", "elements")), ("dropout", CDropout)]


def noise_shape(shape: torch.Size) -> tuple[int, int, int, int]:
    """(rows, heads, positions, elements) of a tensor (B, ..., T, D); one without rows is one row."""
    rows, *heads, positions, elements = (*(1,) * max(0, 3 - len(shape)), *shape)
    n_heads = 1
    for size in heads:
        n_heads *= size
    return rows, n_heads, positions, elements


def supports_dropout(x: Tensor) -> bool:
    """Whether the kernel is available and supports this tensor."""
    return x.is_cpu and x.dtype in DTYPES and not torch.compiler.is_compiling() and library() is not None


def dropout(x: Tensor, key: DropoutKey) -> Tensor:
    """x keep / (1 - p), where `keep` is 0 with probability p: (B, ..., T, D) -> the same. Requires `supports_dropout`."""
    return DropoutFunction.apply(x, key)


def dropout_array(keys: Sequence[DropoutKey | None]) -> Any:
    """The keys for a kernel; None is a layer that drops nothing."""
    return (CDropout * len(keys))(*(CDropout(*(key or (0.0, 0, 0))) for key in keys))


@lru_cache
def library() -> Any:
    """The compiled kernel, or None."""
    pointer, number = ctypes.c_void_p, ctypes.c_int
    return declare("dropout", {"dropout": (pointer, number, pointer, pointer, number, pointer)})


class DropoutFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, key: DropoutKey) -> Tensor:
        ctx.key = key
        x = x.contiguous()
        y, sizes = torch.empty_like(x), DropoutSizes(*noise_shape(x.shape), CDropout(*key))
        if isinstance(x, FakeTensor):
            return y  # without content, in a forecast of memory
        openmp = kernel_threads(), openmp_parallel()
        library().dropout(ctypes.byref(sizes), x.element_size(), x.data_ptr(), y.data_ptr(), *openmp)
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return DropoutFunction.apply(grads[0], ctx.key), None

"""Cross-entropy of bfloat16 logits by a C++ kernel on the CPU, row by row and without a copy of them."""

import ctypes
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from partwise.kernels.library import compiled, team


class Sizes(ctypes.Structure):
    """As `cross_entropy.cpp` has it."""

    _fields_ = [*((name, ctypes.c_int64) for name in ("N", "V", "apart", "ignored")), ("smoothing", ctypes.c_double)]


def half_cross_entropy(logits: Tensor, targets: Tensor, ignored: int, smoothing: float = 0.0) -> Tensor:
    """(N, V) bfloat16 logits and (N,) targets, without `ignored` ones -> the summed loss in nats, a float32 scalar.

    Only for what `serves` says yes to. Equal numbers on every call and for every number of threads. Raises IndexError for a
    target that is not among the V, ValueError where targets are not as many as rows.
    """
    return HalfCrossEntropy.apply(logits, targets, ignored, smoothing)


def serves(logits: Tensor) -> bool:
    """Whether the kernel is compiled and takes such logits."""
    half = logits.is_cpu and logits.dtype == torch.bfloat16 and logits.stride(1) == 1
    return half and not torch.compiler.is_compiling() and library() is not None


@lru_cache
def library() -> Any:
    """The compiled kernel, or None."""
    loaded: Any = compiled("cross_entropy")
    if loaded is not None:
        pointer, tail = ctypes.c_void_p, (ctypes.c_int, ctypes.c_void_p)
        loaded.cross_entropy_forward.argtypes = (*[pointer] * 6, *tail)
        loaded.cross_entropy_backward.argtypes = (*[pointer] * 4, ctypes.c_float, pointer, *tail)
        loaded.cross_entropy_forward.restype = ctypes.c_int64
        loaded.cross_entropy_backward.restype = None
    return loaded


class HalfCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, ignored: int, smoothing: float) -> Tensor:
        if targets.shape != logits.shape[:1]:
            raise ValueError(f"{tuple(targets.shape)} targets of {logits.shape[0]} rows: give one for each")
        targets = targets.to(torch.int64).contiguous()
        sizes, total = Sizes(*logits.shape, logits.stride(0), ignored, smoothing), ctypes.c_double()
        found, losses = (logits.new_empty(shape, dtype=torch.float32) for shape in ((len(targets), 2), targets.shape))
        places = [each.data_ptr() for each in (logits, targets, found, losses)]
        tail = (ctypes.byref(total), torch.get_num_threads(), team())
        wrong = library().cross_entropy_forward(ctypes.byref(sizes), *places, *tail)
        if wrong >= 0:
            raise IndexError(f"target {int(targets[wrong])} is not among {logits.shape[1]} symbols")
        ctx.save_for_backward(logits, targets, found)
        ctx.sizes = sizes
        return logits.new_tensor(total.value, dtype=torch.float32)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        logits = ctx.saved_tensors[0]
        gradient = logits.new_empty(logits.shape)
        places = [each.data_ptr() for each in ctx.saved_tensors]
        tail = (gradient.data_ptr(), torch.get_num_threads(), team())
        library().cross_entropy_backward(ctypes.byref(ctx.sizes), *places, grads[0].item(), *tail)
        return gradient, None, None, None

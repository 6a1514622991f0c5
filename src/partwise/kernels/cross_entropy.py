"""Cross-entropy of bfloat16 logits by a C++ kernel on the CPU: one pass over them forward, one backward, and no copy."""

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
    target that is not among the V.
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
        loaded.cross_entropy_forward.argtypes = (*[pointer] * 5, *tail)
        loaded.cross_entropy_backward.argtypes = (*[pointer] * 4, ctypes.c_float, pointer, *tail)
        loaded.cross_entropy_forward.restype = ctypes.c_int64
        loaded.cross_entropy_backward.restype = None
    return loaded


class HalfCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, ignored: int, smoothing: float) -> Tensor:
        targets = targets.contiguous()
        sizes, total = Sizes(*logits.shape, logits.stride(0), ignored, smoothing), ctypes.c_double()
        lse = torch.empty(logits.shape[0], dtype=torch.float32)
        places = [each.data_ptr() for each in (logits, targets, lse)]
        tail = (ctypes.byref(total), torch.get_num_threads(), team())
        wrong = library().cross_entropy_forward(ctypes.byref(sizes), *places, *tail)
        if wrong >= 0:
            raise IndexError(f"target {int(targets[wrong])} is not among {logits.shape[1]} symbols")
        ctx.save_for_backward(logits, targets, lse)
        ctx.sizes = sizes
        return torch.tensor(total.value, dtype=torch.float32)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        logits, targets, lse = ctx.saved_tensors
        found = torch.empty(logits.shape, dtype=torch.bfloat16)
        places = [each.data_ptr() for each in (logits, targets, lse)]
        tail = (found.data_ptr(), torch.get_num_threads(), team())
        library().cross_entropy_backward(ctypes.byref(ctx.sizes), *places, grads[0].item(), *tail)
        return found, None, None, None

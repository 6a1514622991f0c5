"""Weights as the decoding kernel reads them: `decoding.cpp` says how each lies, and these are its structures."""

import ctypes
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from partwise.kernels.library import compiled

Number, Real, Pointer = ctypes.c_int64, ctypes.c_double, ctypes.c_void_p
LARGE_PAGE = 2**21  # bytes


class Norm(ctypes.Structure):
    _fields_ = [("kind", Number), ("weight", Pointer), ("bias", Pointer), ("eps", Real)]


NO_NORM, ROOT_MEAN_SQUARE, LAYER_NORM = range(3)


class Matrix(ctypes.Structure):
    _fields_ = [("weights", Pointer), ("bias", Pointer), ("inputs", Number), ("outputs", Number)]


class Layer(ctypes.Structure):
    _fields_ = [
        *((name, Norm) for name in ("before_attention", "before_ffn", "on_queries", "on_keys")),
        *((name, Matrix) for name in ("qkv", "out", "up", "down")),
        *((name, Number) for name in ("heads", "kv_heads", "width", "norm_queries", "norm_keys", "window")),
        *((name, Number) for name in ("activation", "gated")),
        *((name, Real) for name in ("scale", "softcap")),
        ("sinks", Pointer),
    ]


class Model(ctypes.Structure):
    _fields_ = [
        *((name, Number) for name in ("layers", "width", "half", "max_in", "pairs", "interleaved")),
        *((name, Pointer) for name in ("cosines", "sines")),
        ("last", Norm),
        ("head", Matrix),
        ("layer", Pointer),
    ]


@lru_cache
def library() -> Any:
    """The compiled kernel, or None; a vector of it holds `W` numbers, and its matrices lie in groups of `N` vectors."""
    loaded: Any = compiled("decoding")
    if loaded is not None:
        shape = (Pointer, *[Number] * 4)
        loaded.decoding_run.argtypes = (*shape, *[Pointer] * 3, Number, *[Pointer] * 2, ctypes.c_int, *[Pointer] * 3)
        loaded.decoding_room.argtypes = (Pointer, Number, Number, ctypes.c_int)
        loaded.decoding_room.restype = Number
        loaded.decoding_large_pages.argtypes = (Pointer, Number)
        loaded.decoding_run.restype = loaded.decoding_large_pages.restype = None
        loaded.W = loaded.decoding_vector()
        loaded.N = loaded.decoding_group() // loaded.W
    return loaded


class Linear(NamedTuple):
    """A linear map that is still to be packed; `gated` where its first half of outputs are the gates of the second."""

    weight: Tensor  # (outputs, inputs)
    bias: Tensor | None
    gated: bool = False


def in_groups(rows: Tensor, gated: bool) -> Tensor:
    """(outputs, inputs) -> (groups, N, W, inputs) with zeros for what is missing; gates beside what they let through."""
    W, N = library().W, library().N
    unit = W if gated else N * W
    parts = rows.chunk(2) if gated else (rows,)
    missing = -parts[0].shape[0] % unit
    parts = tuple(
        (F.pad(part, [0, 0, 0, missing]) if missing else part).unflatten(0, (-1, unit // W, W)) for part in parts
    )
    return torch.cat(parts, dim=1) if gated else parts[0]


def shape(linear: Linear) -> tuple[int, int]:
    """Outputs and inputs as they are stored: whole groups, whole pairs."""
    outputs, inputs = linear.weight.shape
    unit = library().W * library().N
    rows = 2 * whole(outputs // 2, library().W) if linear.gated else whole(outputs, unit)
    return rows, whole(inputs, 2)


def whole(number: int, unit: int) -> int:
    return -(-number // unit) * unit


class Store:
    """All matrices of a model side by side, as float32 or bfloat16, and whatever else the kernel points to."""

    def __init__(self, linears: Sequence[Linear], half: bool) -> None:
        self.half, self.kept = half, list[Tensor]()
        dtype = torch.bfloat16 if half else torch.float32
        size = sum(rows * inputs for rows, inputs in map(shape, linears))
        spare = LARGE_PAGE // dtype.itemsize
        memory = torch.empty(size + spare, dtype=dtype)
        memory = memory[-memory.data_ptr() % LARGE_PAGE // dtype.itemsize :][:size]
        library().decoding_large_pages(memory.data_ptr(), whole(memory.nbytes, LARGE_PAGE) - LARGE_PAGE)
        self.matrices, start = list[Matrix](), 0
        for linear in linears:
            rows, inputs = shape(linear)
            self.matrices.append(self.pack(linear, memory[start : start + rows * inputs], rows, inputs))
            start += rows * inputs
        self.kept.append(memory)

    def pack(self, linear: Linear, memory: Tensor, rows: int, inputs: int) -> Matrix:
        weight = linear.weight.detach().to(memory.dtype)
        missing = inputs - weight.shape[1]
        weight = F.pad(weight, [0, missing]) if missing else weight.contiguous()
        if self.half:  # both inputs of a pair move as one
            weight, memory = weight.view(torch.int32), memory.view(torch.int32)
        turned = in_groups(weight, linear.gated).permute(0, 3, 1, 2)  # (groups, inputs or pairs, N, W)
        memory.view(turned.shape).copy_(turned)
        bias = None if linear.bias is None else in_groups(linear.bias.detach()[:, None], linear.gated)
        return Matrix(memory.data_ptr(), self.address(bias), inputs, rows)

    def address(self, tensor: Tensor | None) -> int | None:
        """Where a float32 tensor lies, from now on for as long as the store."""
        if tensor is None:
            return None
        self.kept.append(tensor.detach().float().contiguous())
        return self.kept[-1].data_ptr()


def pointers(tensors: Sequence[Tensor]) -> Any:
    return (Pointer * len(tensors))(*(tensor.data_ptr() for tensor in tensors))

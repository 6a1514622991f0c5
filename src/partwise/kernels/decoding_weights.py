"""The weights of a decoder in the layout of decoding.cpp, and that kernel's structures."""

import ctypes
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from partwise.kernels.library import declare

Int64, Double, Pointer = ctypes.c_int64, ctypes.c_double, ctypes.c_void_p
HUGE_PAGE = 2**21  # bytes


class CNorm(ctypes.Structure):
    _fields_ = [("kind", Int64), ("weight", Pointer), ("bias", Pointer), ("eps", Double)]


NO_NORM, RMS_NORM, LAYER_NORM = range(3)


class CMatrix(ctypes.Structure):
    _fields_ = [("weights", Pointer), ("bias", Pointer), ("inputs", Int64), ("outputs", Int64)]


class CLayer(ctypes.Structure):
    _fields_ = [
        *((name, CNorm) for name in ("attention_norm", "ffn_norm", "q_norm", "k_norm")),
        *((name, CMatrix) for name in ("qkv", "out", "up", "down")),
        *((name, Int64) for name in ("n_heads", "n_kv_heads", "head_dim", "q_norm_width", "k_norm_width", "window")),
        *((name, Int64) for name in ("activation", "gated")),
        *((name, Double) for name in ("scale", "softcap")),
        *((name, Pointer) for name in ("sinks", "mu")),
    ]


class CModel(ctypes.Structure):
    _fields_ = [
        *((name, Int64) for name in ("n_layers", "d_model", "bf16", "max_inputs", "rotary_pairs", "interleaved")),
        *((name, Pointer) for name in ("cosines", "sines")),
        ("final_norm", CNorm),
        ("head", CMatrix),
        ("layers", Pointer),
    ]


@lru_cache
def library() -> Any:
    """The compiled kernel, or None; it has `W` floats per SIMD vector and `N` vectors per group of outputs."""
    batch = (Pointer, *[Int64] * 4)
    functions = {
        "decoding_step": (*batch, *[Pointer] * 4, Int64, *[Pointer] * 2, ctypes.c_int, *[Pointer] * 3),
        "decoding_workspace_size": (Pointer, Int64, Int64, ctypes.c_int),
        "decoding_advise_huge_pages": (Pointer, Int64),
    }
    loaded = declare("decoding", functions, decoding_workspace_size=Int64)
    if loaded is not None:
        loaded.W = loaded.decoding_vector_width()
        loaded.N = loaded.decoding_group_width() // loaded.W
    return loaded


class LinearWeights(NamedTuple):
    """A linear layer to be packed; if `gated`, its outputs are the gates followed by the values."""

    weight: Tensor  # (outputs, inputs)
    bias: Tensor | None
    gated: bool = False


def group_outputs(rows: Tensor, gated: bool) -> Tensor:
    """(outputs, inputs) -> (groups, N, W, inputs), zero-padded; a gate and its value share a group."""
    W, N = library().W, library().N
    unit = W if gated else N * W
    parts = rows.chunk(2) if gated else (rows,)
    padding = -parts[0].shape[0] % unit
    parts = tuple(
        (F.pad(part, [0, 0, 0, padding]) if padding else part).unflatten(0, (-1, unit // W, W)) for part in parts
    )
    return torch.cat(parts, dim=1) if gated else parts[0]


def padded_shape(linear: LinearWeights) -> tuple[int, int]:
    """Outputs rounded up to whole groups and inputs to whole pairs."""
    outputs, inputs = linear.weight.shape
    unit = library().W * library().N
    rows = 2 * round_up(outputs // 2, library().W) if linear.gated else round_up(outputs, unit)
    return rows, round_up(inputs, 2)


def round_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


class PackedWeights:
    """All matrices of a model in one allocation, as float32 or bfloat16; it owns every tensor the kernel points to."""

    def __init__(self, linears: Sequence[LinearWeights], bf16: bool) -> None:
        self.bf16, self.tensors = bf16, list[Tensor]()
        dtype = torch.bfloat16 if bf16 else torch.float32
        size = sum(rows * inputs for rows, inputs in map(padded_shape, linears))
        padding = HUGE_PAGE // dtype.itemsize
        buffer = torch.empty(size + padding, dtype=dtype)
        buffer = buffer[-buffer.data_ptr() % HUGE_PAGE // dtype.itemsize :][:size]
        library().decoding_advise_huge_pages(buffer.data_ptr(), round_up(buffer.nbytes, HUGE_PAGE) - HUGE_PAGE)
        self.matrices, start = list[CMatrix](), 0
        for linear in linears:
            rows, inputs = padded_shape(linear)
            self.matrices.append(self.pack(linear, buffer[start : start + rows * inputs], rows, inputs))
            start += rows * inputs
        self.tensors.append(buffer)

    def pack(self, linear: LinearWeights, buffer: Tensor, rows: int, inputs: int) -> CMatrix:
        weight = linear.weight.detach().to(buffer.dtype)
        padding = inputs - weight.shape[1]
        weight = F.pad(weight, [0, padding]) if padding else weight.contiguous()
        if self.bf16:  # a pair of inputs is one 32-bit word
            weight, buffer = weight.view(torch.int32), buffer.view(torch.int32)
        packed = group_outputs(weight, linear.gated).permute(0, 3, 1, 2)  # (groups, inputs or pairs, N, W)
        buffer.view(packed.shape).copy_(packed)
        bias = None if linear.bias is None else group_outputs(linear.bias.detach()[:, None], linear.gated)
        return CMatrix(buffer.data_ptr(), self.float_pointer(bias), inputs, rows)

    def float_pointer(self, tensor: Tensor | None) -> int | None:
        """A pointer to the tensor's values in float32, valid as long as this object lives."""
        if tensor is None:
            return None
        self.tensors.append(tensor.detach().float().contiguous())
        return self.tensors[-1].data_ptr()


def pointer_array(tensors: Sequence[Tensor]) -> Any:
    return (Pointer * len(tensors))(*(tensor.data_ptr() for tensor in tensors))

"""Whole pre-norm blocks of a decoder in one pass over the rows of their batch, by a C++ kernel on the CPU.

Matrix products take float32 numbers, or under autocast bfloat16 ones that are summed in float32; everything else is float32.
`benchmarks/training_step.py` times it.
"""

import ctypes
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from partwise.kernels.library import compiled, team
from partwise.kernels.mlp import ACTIVATIONS, address

ROOM = 2**26  # numbers of gradients that threads collect, each for itself, in one call for several blocks
PASS = 2**13  # places at a time of questions, whose keys and values alone are kept
FEW, MANY = 8, 32  # fewer tokens of a row follow at a time, of more rows together, for which weights are worth packing
UNIT = 16  # of which every width is a multiple
SHARE = 0.75  # of the threads' time that rows of a batch must fill, being dealt out whole
LARGEST = 2**21
"""Numbers in a block's matrices up to which its gradients, one for each thread, stay in a cache."""


class Sizes(ctypes.Structure):
    """As `block.cpp` has it: rows, places and widths, and what kinds of parts there are."""

    _fields_ = [
        *((name, ctypes.c_int64) for name in ("B", "T", "D", "H", "K", "E", "F")),
        *((name, ctypes.c_int64) for name in ("gated", "activation", "centred", "pairs", "interleaved")),
        *((name, ctypes.c_double) for name in ("eps_1", "eps_2", "scale")),
    ]

    @property
    def widest(self) -> int:
        """Of all vectors among the weights."""
        return max(self.D, (self.H + 2 * self.K) * self.E, (1 + self.gated) * self.F)


class Spec(NamedTuple):
    """What a block computes by, beside its weights."""

    n_heads: int
    n_kv_heads: int
    width: int  # of a head
    hidden: int
    gated: bool
    activation: str
    centred: bool  # LayerNorm, or RMSNorm
    interleaved: bool  # of rotary pairs
    eps: tuple[float, float]  # of the norms before attention and before the perceptron
    scale: float


class Weights(NamedTuple):
    """A block's tensors, in the order of their gradients; (places, pairs) cosines and sines of rotary positions last."""

    norm_1: Tensor | None
    norm_1_bias: Tensor | None
    qkv: Tensor
    qkv_bias: Tensor | None
    out: Tensor
    out_bias: Tensor | None
    norm_2: Tensor | None
    norm_2_bias: Tensor | None
    up: Tensor
    up_bias: Tensor | None
    down: Tensor
    down_bias: Tensor | None
    cosines: Tensor | None
    sines: Tensor | None


def blocks(x: Tensor, weights: Sequence[Weights], spec: Spec) -> Tensor:
    """mid = x + out attention(norm(x)); mid + down act(up norm(mid)), block after block: (B, T, D) float32 -> the same.

    For blocks that fit, and are alike. Equal numbers on every call; and for every number of threads, but for the order in
    which a weight's gradient is summed.
    """
    half = torch.is_autocast_enabled("cpu")
    size = sum(each.numel() for each in weights[0][:GRADIENTS] if each is not None)
    at_once = max(1, ROOM // (size * torch.get_num_threads()))
    for start in range(0, len(weights), at_once):
        solid = flat(weights[start : start + at_once])
        if torch.is_grad_enabled() and any(each is not None and each.requires_grad for each in (x, *solid)):
            x = Blocks.apply(x, half, spec, *solid)
        else:
            x, _, _ = run_forward(x.contiguous(), half, spec, solid, keep=False)
    return x


Remembered = Sequence[Sequence[Tensor]]
"""Keys and values of every block, (B, K, limit, E) float32 each, contiguous."""


def asking(x: Tensor, weights: Sequence[Weights], spec: Spec, remembered: Remembered) -> Tensor:
    """`blocks` without gradients, whose keys and values are remembered, from place 0 on."""
    solid, half, pieces = flat(weights), torch.is_autocast_enabled("cpu"), []
    at_once = max(1, PASS // x.shape[1])
    for start in range(0, x.shape[0], at_once):
        part = slice(start, start + at_once)
        rows = [[each[part] for each in both] for both in remembered]
        y, _, _ = run_forward(x[part].contiguous(), half, spec, solid, keep=False, remembered=rows)
        pieces.append(y)
    return torch.cat(pieces)


def following(x: Tensor, weights: Sequence[Weights], spec: Spec, remembered: Remembered, past: int) -> Tensor:
    """`blocks` of a few tokens behind `past` others, without gradients; their keys and values join those remembered.

    (B, T, D) float32 -> the same. Equal numbers on every call and for every number of threads.
    """
    half, x, solid = torch.is_autocast_enabled("cpu"), x.contiguous(), flat(weights)
    sizes, (_, _, packed) = described(x, half, spec, solid)
    y, room = torch.empty_like(x), x.new_empty(len(weights) * packed, dtype=torch.uint8)
    places = (x.data_ptr(), y.data_ptr(), *places_of(remembered), past, room.data_ptr())
    tail = (torch.get_num_threads(), team())
    library().blocks_following(ctypes.byref(sizes), pointers(solid), len(weights), half, *places, *tail)
    return y


def places_of(remembered: Remembered | None) -> tuple[Any, Any, int]:
    """Where keys and values of every block are, and how many places each has."""
    if remembered is None:
        return None, None, 0
    keys, values = (pointers(each) for each in zip(*remembered, strict=True))
    return keys, values, remembered[0][0].shape[2]


def fits(D: int, spec: Spec) -> bool:
    """Whether the kernel is compiled and takes blocks of these widths, and is the faster way."""
    loaded = library()
    A, Q = spec.n_heads * spec.width, (spec.n_heads + 2 * spec.n_kv_heads) * spec.width
    whole = not any(width % UNIT for width in (D, A, Q, spec.hidden)) and spec.width % 2 == 0
    matrices = D * (Q + A + (3 if spec.gated else 2) * spec.hidden)
    return loaded is not None and whole and matrices <= LARGEST and loaded.block_widest() >= D


def fills(rows: int) -> bool:
    """Whether so many rows of a batch, dealt out whole, keep the threads busy."""
    threads = torch.get_num_threads()
    return rows > 0 and rows >= SHARE * threads * -(-rows // threads)


@lru_cache
def library() -> Any:
    """The compiled kernel, or None."""
    loaded: Any = compiled("block")
    if loaded is not None:
        size, number, pointer = ctypes.c_int64, ctypes.c_int, ctypes.c_void_p
        first, last = (pointer, pointer, size, number), (number, pointer)
        loaded.block_room.argtypes = (pointer, number, pointer)
        loaded.blocks_forward.argtypes = (*first, number, *[pointer] * 6, size, pointer, *last)
        loaded.blocks_backward.argtypes = (*first, *[pointer] * 8, *last)
        loaded.blocks_following.argtypes = (*first, *[pointer] * 4, size, size, pointer, *last)
        for call in (loaded.block_room, loaded.blocks_forward, loaded.blocks_backward, loaded.blocks_following):
            call.restype = None
    return loaded


Given = Sequence[Tensor | None]
"""The weights of all blocks behind one another."""
EACH = len(Weights._fields)
GRADIENTS = EACH - 2  # all but cosines and sines


def flat(weights: Sequence[Weights]) -> list[Tensor | None]:
    return [None if each is None else each.contiguous() for block in weights for each in block]


def described(x: Tensor, half: bool, spec: Spec, weights: Given) -> tuple[Sizes, list[int]]:
    """The kernel's sizes; and of each block bytes to keep, numbers of all gradients, and bytes of packed weights."""
    pairs = 0 if weights[-1] is None else weights[-1].shape[1]
    kinds = (spec.gated, ACTIVATIONS.index(spec.activation), spec.centred, pairs, spec.interleaved)
    sizes = Sizes(*x.shape, spec.n_heads, spec.n_kv_heads, spec.width, spec.hidden, *kinds, *spec.eps, spec.scale)
    room = (ctypes.c_int64 * 3)()
    library().block_room(ctypes.byref(sizes), half, room)
    return sizes, list(room)


def pointers(weights: Given) -> Any:
    return (ctypes.c_void_p * len(weights))(*map(address, weights))


def run_forward(
    x: Tensor, half: bool, spec: Spec, weights: Given, keep: bool, remembered: Remembered | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """The output; and, of use only where asked to `keep`, the memory of every block and what went from block to block."""
    sizes, (bytes_kept, _, packed) = described(x, half, spec, weights)
    L = len(weights) // EACH
    y, room = torch.empty_like(x), x.new_empty(L * packed, dtype=torch.uint8)
    memory = x.new_empty((L if keep else 1) * bytes_kept, dtype=torch.uint8)
    between = x.new_empty(L - 1 if keep else 0, *x.shape)
    places = (*(each.data_ptr() for each in (x, y, between, memory)), *places_of(remembered), room.data_ptr())
    tail = (torch.get_num_threads(), team())
    library().blocks_forward(ctypes.byref(sizes), pointers(weights), L, half, keep, *places, *tail)
    return y, memory, between


class Blocks(torch.autograd.Function):
    """Not an op of torch's registry: what that wraps around a gradient takes ten times as long as this."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, half: bool, spec: Spec, *weights: Tensor | None) -> Tensor:
        x = x.contiguous()
        y, memory, between = run_forward(x, half, spec, weights, keep=True)
        ctx.save_for_backward(memory, between, x, *weights)
        ctx.half, ctx.spec = half, spec
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        memory, between, x, *weights = ctx.saved_tensors
        grad = grads[0].contiguous()
        sizes, (_, size, packed) = described(x, ctx.half, ctx.spec, weights)
        L, threads = len(weights) // EACH, torch.get_num_threads()
        dx, room = torch.empty_like(x), x.new_empty(L * packed, dtype=torch.uint8)
        others = x.new_empty((threads - 1) * L, size)
        # of a norm's weight or a bias that is not there, a gradient that nobody reads: one place for all of them
        spare = x.new_empty(sizes.widest) if any(weight is None for weight in weights) else None
        found = [
            None if weight is None or number % EACH >= GRADIENTS else torch.empty_like(weight)
            for number, weight in enumerate(weights)
        ]
        sums = pointers(
            [spare if grad is None else grad for number, grad in enumerate(found) if number % EACH < GRADIENTS]
        )
        places = [each.data_ptr() for each in (x, between, grad, memory, room, dx)]
        tail = (sums, others.data_ptr(), threads, team())
        library().blocks_backward(ctypes.byref(sizes), pointers(weights), L, ctx.half, *places, *tail)
        return dx, None, None, *found

"""Compiled pre-norm decoder blocks: a C++ kernel computes whole blocks for some rows of the batch at a time, on the CPU.

Matmuls are float32, or under autocast bfloat16 with float32 accumulation; everything else is float32.
`benchmarks/training_step.py` times them.
"""

import ctypes
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from partwise.kernels.dropout import DropoutKey, dropout_array
from partwise.kernels.library import declare, openmp_parallel
from partwise.kernels.mlp import ACTIVATIONS, data_pointer
from partwise.kernels.threads import gradient_parts, is_deterministic, kernel_threads

MAX_GRADIENT_ELEMENTS = 2**26  # maximum elements of weight gradients over all parts, for several blocks per call
PREFILL_TOKENS = 2**13  # prompt tokens per call; only their keys and values are kept
MAX_DECODE_LENGTH = 7  # maximum tokens per row
MIN_DECODE_TOKENS = 32  # minimum tokens over all rows for which packing the weights pays off
WIDTH_MULTIPLE = 16  # every width is a multiple of this
MIN_THREAD_UTILIZATION = 0.75  # fraction of thread time in use if threads process whole rows of the batch
MAX_WEIGHTS = 2**21
"""A block's matrices have at most this many elements, so that one copy of its gradients per thread stays in the cache."""


class BlockSizes(ctypes.Structure):
    """`Sizes` in block.cpp."""

    _fields_ = [
        *((name, ctypes.c_int64) for name in ("B", "T", "D", "H", "K", "E", "F")),
        *((name, ctypes.c_int64) for name in ("gated", "activation", "centered", "rotary_pairs", "interleaved")),
        *((name, ctypes.c_int64) for name in ("token_shift", "q_norm_width", "k_norm_width")),
        *((name, ctypes.c_double) for name in ("eps_1", "eps_2", "q_eps", "k_eps", "scale")),
    ]

    @property
    def max_vector(self) -> int:
        """The largest number of elements of a bias or norm weight."""
        return max(self.D, (self.H + 2 * self.K) * self.E, (1 + self.gated) * self.F)


class BlockOptions(NamedTuple):
    """The kernel's configuration of a block: everything except its weights."""

    n_heads: int
    n_kv_heads: int
    head_dim: int
    hidden: int
    gated: bool
    activation: str
    centered: bool  # LayerNorm; if False, RMSNorm
    interleaved: bool  # layout of rotary pairs
    eps: tuple[float, float]  # epsilon of the norms before attention and before the MLP
    scale: float
    qk_norm: tuple[int, int] = (0, 0)  # elements per group of the RMSNorms of queries and keys; 0 without one
    qk_eps: tuple[float, float] = (0.0, 0.0)
    token_shift: bool = False


class BlockWeights(NamedTuple):
    """A block's tensors, in the order of their gradients; then the rotary cosines and sines, (positions, pairs)."""

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
    q_norm: Tensor | None
    k_norm: Tensor | None
    mu: Tensor | None  # of the token shift
    cosines: Tensor | None
    sines: Tensor | None


class BlockDropout(NamedTuple):
    """The dropout of a block's layers; None for those that drop nothing."""

    attention: DropoutKey | None  # on the attention weights
    attention_branch: DropoutKey | None  # on what attention adds to x
    ffn_branch: DropoutKey | None
    hidden: DropoutKey | None
    ffn_output: DropoutKey | None


FlatWeights = Sequence[Tensor | None]
"""The concatenated weights of all blocks."""
FIELDS = len(BlockWeights._fields)
GRADIENTS = FIELDS - 2  # all but cosines and sines

KVCaches = Sequence[Sequence[Tensor]]
"""Keys and values of each block, contiguous (B, K, limit, E) float32."""


def forward_blocks(
    x: Tensor, weights: Sequence[BlockWeights], spec: BlockOptions, dropouts: Sequence[BlockDropout] | None = None
) -> Tensor:
    """mid = x + out attention(norm(x)); y = mid + down act(up norm(mid)), block after block: (B, T, D) float32 -> the same.

    Requires supported widths and one spec for all blocks. Bitwise reproducible; the number of threads changes only the order
    in which a weight's gradient is summed. Nothing is saved for the backward pass of leading blocks without gradients.
    """
    frozen = leading_frozen(x, weights)
    if 0 < frozen < len(weights):
        for part in (slice(0, frozen), slice(frozen, None)):
            x = forward_blocks(x, weights[part], spec, None if dropouts is None else dropouts[part])
        return x
    bf16 = torch.is_autocast_enabled("cpu")
    size = sum(each.numel() for each in weights[0][:GRADIENTS] if each is not None)
    blocks_per_call = max(1, MAX_GRADIENT_ELEMENTS // (size * gradient_parts(x.shape[0])))
    for start in range(0, len(weights), blocks_per_call):
        blocks = slice(start, start + blocks_per_call)
        flat, keys = flatten(weights[blocks]), None if dropouts is None else dropouts[blocks]
        if torch.is_grad_enabled() and any(each is not None and each.requires_grad for each in (x, *flat)):
            x = Blocks.apply(x, bf16, spec, keys, *flat)
        else:
            x, _, _ = run_forward(x.contiguous(), bf16, spec, flat, save=False, dropouts=keys)
    return x


def leading_frozen(x: Tensor, weights: Sequence[BlockWeights]) -> int:
    """The number of blocks before the first tensor that needs a gradient."""
    if not torch.is_grad_enabled() or x.requires_grad:
        return 0
    trained = (any(each is not None and each.requires_grad for each in block) for block in weights)
    return next((index for index, trains in enumerate(trained) if trains), len(weights))


def prefill(x: Tensor, weights: Sequence[BlockWeights], spec: BlockOptions, caches: KVCaches) -> Tensor:
    """`forward_blocks` without gradients, which writes keys and values to the caches from position 0 on.

    Not of blocks with a token shift, which also have to remember their last input.
    """
    flat, bf16, outputs = flatten(weights), torch.is_autocast_enabled("cpu"), []
    rows_per_call = max(1, PREFILL_TOKENS // x.shape[1])
    for start in range(0, x.shape[0], rows_per_call):
        rows = slice(start, start + rows_per_call)
        row_caches = [[each[rows] for each in cache] for cache in caches]
        y, _, _ = run_forward(x[rows].contiguous(), bf16, spec, flat, save=False, caches=row_caches)
        outputs.append(y)
    return torch.cat(outputs)


def decode(x: Tensor, weights: Sequence[BlockWeights], spec: BlockOptions, caches: KVCaches, past: int) -> Tensor:
    """`forward_blocks` of a few tokens after `past` cached ones, without gradients; appends their keys and values.

    (B, T, D) float32 -> the same. Bitwise reproducible for any number of threads.
    """
    bf16, x, flat = torch.is_autocast_enabled("cpu"), x.contiguous(), flatten(weights)
    sizes, (_, _, packed_bytes) = describe(x, bf16, spec, flat)
    y, packed = torch.empty_like(x), x.new_empty(len(weights) * packed_bytes, dtype=torch.uint8)
    pointers = (x.data_ptr(), y.data_ptr(), *cache_pointers(caches), past, packed.data_ptr())
    openmp = kernel_threads(), openmp_parallel()
    library().blocks_decode(ctypes.byref(sizes), pointer_array(flat), len(weights), bf16, *pointers, *openmp)
    return y


def cache_pointers(caches: KVCaches | None) -> tuple[Any, Any, int]:
    """Pointers to every block's keys and values, and the number of positions they hold."""
    if caches is None:
        return None, None, 0
    keys, values = (pointer_array(each) for each in zip(*caches, strict=True))
    return keys, values, caches[0][0].shape[2]


def unsupported_width(d_model: int, spec: BlockOptions) -> str | None:
    """The width for which the kernel does not support a block or does not beat torch, as a clause, or None."""
    loaded = library()
    if loaded is None:
        return "the kernel is not available"
    A, Q = spec.n_heads * spec.head_dim, (spec.n_heads + 2 * spec.n_kv_heads) * spec.head_dim
    widths = {
        f"d_model={d_model}": d_model,
        f"the width of all queries, {A}": A,
        f"the width of all queries, keys and values, {Q}": Q,
        f"the hidden width {spec.hidden}": spec.hidden,
    }
    for name, width in widths.items():
        if width % WIDTH_MULTIPLE:
            return f"{name} is not a multiple of {WIDTH_MULTIPLE}"
    if spec.head_dim % 2:
        return f"head_dim={spec.head_dim} is odd"
    n_weights = d_model * (Q + A + (3 if spec.gated else 2) * spec.hidden)
    if n_weights > MAX_WEIGHTS:
        return f"its matrices have {n_weights:,} elements, more than {MAX_WEIGHTS:,}"
    limit = loaded.block_max_d_model()
    return f"d_model={d_model} is above {limit}" if d_model > limit else None


def supports_batch_size(batch_size: int) -> bool:
    """Whether this many rows, assigned to threads as a whole, keep the threads busy; deterministic, any number."""
    threads = 1 if is_deterministic() else kernel_threads()
    return batch_size > 0 and batch_size >= MIN_THREAD_UTILIZATION * threads * -(-batch_size // threads)


@lru_cache
def library() -> Any:
    """The compiled kernel, or None."""
    size, number, pointer = ctypes.c_int64, ctypes.c_int, ctypes.c_void_p
    first, openmp = (pointer, pointer, pointer, size, number), (number, pointer)
    functions = {
        "block_buffer_sizes": (pointer, number, pointer),
        "blocks_forward": (*first, number, *[pointer] * 6, size, pointer, *openmp),
        "blocks_backward": (*first, *[pointer] * 8, number, *openmp),
        "blocks_decode": (pointer, pointer, size, number, *[pointer] * 4, size, size, pointer, *openmp),
    }
    return declare("block", functions)


def flatten(weights: Sequence[BlockWeights]) -> list[Tensor | None]:
    return [None if each is None else each.contiguous() for block in weights for each in block]


def describe(x: Tensor, bf16: bool, spec: BlockOptions, weights: FlatWeights) -> tuple[BlockSizes, list[int]]:
    """The kernel's sizes; and per block the bytes saved for backward, the elements of all gradients, the packed bytes."""
    rotary_pairs = 0 if weights[-1] is None else weights[-1].shape[1]
    options = (spec.gated, ACTIVATIONS.index(spec.activation), spec.centered, rotary_pairs, spec.interleaved)
    widths = (spec.n_heads, spec.n_kv_heads, spec.head_dim, spec.hidden)
    sizes = BlockSizes(
        *x.shape, *widths, *options, spec.token_shift, *spec.qk_norm, *spec.eps, *spec.qk_eps, spec.scale
    )
    buffer_sizes = (ctypes.c_int64 * 3)()
    library().block_buffer_sizes(ctypes.byref(sizes), bf16, buffer_sizes)
    return sizes, list(buffer_sizes)


def block_dropouts(dropouts: Sequence[BlockDropout] | None) -> Any:
    return None if dropouts is None else dropout_array([key for block in dropouts for key in block])


def pointer_array(tensors: FlatWeights) -> Any:
    return (ctypes.c_void_p * len(tensors))(*map(data_pointer, tensors))


def run_forward(
    x: Tensor,
    bf16: bool,
    spec: BlockOptions,
    weights: FlatWeights,
    save: bool,
    caches: KVCaches | None = None,
    dropouts: Sequence[BlockDropout] | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """The output; and if `save`, every block's saved tensors and the activations between blocks, for backward."""
    sizes, (saved_bytes, _, packed_bytes) = describe(x, bf16, spec, weights)
    L = len(weights) // FIELDS
    y, packed = torch.empty_like(x), x.new_empty(L * packed_bytes, dtype=torch.uint8)
    saved = x.new_empty((L if save else 1) * saved_bytes, dtype=torch.uint8)
    between = x.new_empty(L - 1 if save else 0, *x.shape)
    pointers = (*(each.data_ptr() for each in (x, y, between, saved)), *cache_pointers(caches), packed.data_ptr())
    openmp = kernel_threads(), openmp_parallel()
    arrays = pointer_array(weights), block_dropouts(dropouts)
    library().blocks_forward(ctypes.byref(sizes), *arrays, L, bf16, save, *pointers, *openmp)
    return y, saved, between


class Blocks(torch.autograd.Function):
    """Not an op of torch's registry: the registry's autograd wrapper takes ten times as long as this one."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        bf16: bool,
        spec: BlockOptions,
        dropouts: Sequence[BlockDropout] | None,
        *weights: Tensor | None,
    ) -> Tensor:
        x = x.contiguous()
        y, saved, between = run_forward(x, bf16, spec, weights, save=True, dropouts=dropouts)
        ctx.save_for_backward(saved, between, x, *weights)
        ctx.bf16, ctx.spec, ctx.dropouts = bf16, spec, dropouts
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        saved, between, x, *weights = ctx.saved_tensors
        grad = grads[0].contiguous()
        sizes, (_, gradient_elements, packed_bytes) = describe(x, ctx.bf16, ctx.spec, weights)
        L, parts = len(weights) // FIELDS, gradient_parts(x.shape[0])
        dx, packed = torch.empty_like(x), x.new_empty(L * packed_bytes, dtype=torch.uint8)
        part_grads = x.new_empty((parts - 1) * L, gradient_elements)
        # the kernel also writes gradients of absent norm weights and biases: all go to one unused buffer
        unused = x.new_empty(sizes.max_vector) if any(weight is None for weight in weights) else None
        weight_grads = [
            None if weight is None or i % FIELDS >= GRADIENTS else torch.empty_like(weight)
            for i, weight in enumerate(weights)
        ]
        grad_pointers = pointer_array(
            [unused if each is None else each for i, each in enumerate(weight_grads) if i % FIELDS < GRADIENTS]
        )
        pointers = [each.data_ptr() for each in (x, between, grad, saved, packed, dx)]
        rest = (grad_pointers, part_grads.data_ptr(), parts, kernel_threads(), openmp_parallel())
        arrays = pointer_array(weights), block_dropouts(ctx.dropouts)
        library().blocks_backward(ctypes.byref(sizes), *arrays, L, ctx.bf16, *pointers, *rest)
        return dx, None, None, None, *weight_grads

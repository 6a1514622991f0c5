"""The masks of dropout by a Triton kernel on CUDA: one launch instead of the 150 of torch's operations."""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from partwise.kernels.dropout import DropoutKey, noise_shape

BLOCK = 256
"""Philox counters per program, of four elements each."""


@triton.jit(do_not_specialize=list(range(1, 9)))  # one program for all sizes and keys: the one that was checked
def fill_mask(
    mask: tl.tensor,
    heads: tl.tensor,
    positions: tl.tensor,
    elements: tl.tensor,
    blocks: tl.tensor,
    counters: tl.tensor,
    seed: tl.tensor,
    first_row: tl.tensor,
    threshold: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:
    counter = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    block, line = counter % blocks, counter // blocks  # of one row, head and position
    position, head, row = line % positions, line // positions % heads, line // positions // heads
    x0, x1, x2, x3 = tl.philox(seed, block, position, head, (first_row + row).to(tl.uint32), 10)
    words = tl.reshape(tl.join(tl.join(x0, x2), tl.join(x1, x3)), (BLOCK, 4))  # a join alternates its two
    element = 4 * block[:, None] + tl.arange(0, 4)[None, :]
    tl.store(
        mask + line.to(tl.int64)[:, None] * elements + element,
        tl.where(words.to(tl.int64) >= threshold, 1.0, 0.0).to(mask.dtype.element_ty),
        mask=(counter < counters)[:, None] & (element < elements),
    )


def keep_masks(x: Tensor, keys: Sequence[DropoutKey]) -> Tensor:
    """(B, ..., T, D) -> (S, B, ..., T, D), 1 for the elements to keep, else 0: the mask of each key, in the dtype of x."""
    masks = torch.empty(len(keys), *x.shape, dtype=x.dtype, device=x.device)
    rows, heads, positions, elements = noise_shape(x.shape)
    blocks = triton.cdiv(elements, 4)
    counters = rows * heads * positions * blocks
    with torch.cuda.device_of(x):  # Triton launches on the current one
        for mask, key in zip(masks, keys, strict=True):
            seed = key.seed - (key.seed >> 63 << 64)  # as int64: a number's type is that of the smallest that holds it
            numbers = (heads, positions, elements, blocks, counters, seed, key.first_row, int(key.p * 2**32))
            fill_mask[(triton.cdiv(counters, BLOCK),)](mask, *numbers, BLOCK=BLOCK)
    return masks

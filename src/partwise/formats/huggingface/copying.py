"""Weights from files into a model: in blocks that fit a core's cache, by as many threads as torch uses.

A block is read, checked and converted while it is in the cache. Whole tensors would pass through memory once for each.
"""

import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from threading import BoundedSemaphore

import torch
from torch import Tensor, nn

from partwise.config import ConfigError
from partwise.formats.huggingface.stored import Stored
from partwise.formats.huggingface.tensors import TensorRule
from partwise.model import Transformer

BLOCK_BYTES = 1 << 21  # in the file


@torch.no_grad()
def allocate(model: Transformer, dtype: torch.dtype) -> None:
    """Give a model on the meta device memory, not initialized: sampling weights would take longer than reading them."""
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            setattr(module, name, nn.Parameter(torch.empty(parameter.shape, dtype=dtype), parameter.requires_grad))
        for name, buffer in module.named_buffers(recurse=False):
            kind = dtype if buffer.is_floating_point() else buffer.dtype
            setattr(module, name, torch.zeros(buffer.shape, dtype=kind))
    model.tie_weights()


def copy_tensors(rules: list[TensorRule], stored: dict[str, Stored], ours: dict[str, Tensor], folder: Path) -> None:
    """Copy the stored tensor of each rule into ours. Needs memory for a block per thread, or for the largest tensor.

    Raises ConfigError for NaN and infinity.
    """
    threads = torch.get_num_threads()
    sizes = [(stored[rule.theirs], rule.rows(stored[rule.theirs].shape)) for rule in rules]
    at_once = max(rows * tensor.row_bytes for tensor, rows in sizes)
    largest = max(math.prod(tensor.shape) for tensor, _ in sizes) * ours[rules[0].ours[0]].element_size()
    large_buffers = BoundedSemaphore(max(1, largest // max(at_once, 1)))

    def copy(rule: TensorRule) -> None:
        tensor = stored[rule.theirs]
        rows = rule.rows(tensor.shape)
        with large_buffers if rows * tensor.row_bytes > BLOCK_BYTES else nullcontext():
            copy_blocks(rule, blocks(tensor, rows), ours, folder)

    if threads == 1:
        for rule in rules:
            copy(rule)
        return
    try:
        # each thread computes alone; a whole team of threads per block would mostly wait for each other
        with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            for _ in pool.map(copy, rules):
                pass
    finally:
        torch.set_num_threads(threads)


def blocks(stored: Stored, rows: int = 1) -> Iterator[tuple[int, Tensor]]:
    """A tensor's rows in blocks of a multiple of `rows`, each with its start, valid until the next."""
    count = stored.shape[0]
    step = min(count, max(1, BLOCK_BYTES // max(1, rows * stored.row_bytes)) * rows)
    buffer = torch.empty(step * stored.row_bytes, dtype=torch.uint8)
    for start in range(0, count, max(1, step)):
        yield start, stored.read_rows(start, min(start + step, count), buffer)


@torch.no_grad()
def copy_blocks(rule: TensorRule, parts: Iterator[tuple[int, Tensor]], ours: dict[str, Tensor], folder: Path) -> None:
    dtype = ours[rule.ours[0]].dtype
    for start, block in parts:
        if torch.finfo(block.dtype).max > torch.finfo(dtype).max:
            block = block.to(dtype)
        # the sum is several times as fast, but may overflow
        if not math.isfinite(block.sum()) and not block.isfinite().all():
            raise ConfigError(f"{folder}: {rule.theirs} contains NaN or infinity: restore the folder")
        rule.copy_rows(start, block, ours)

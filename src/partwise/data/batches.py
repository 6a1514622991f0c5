"""Batches, and the windows of tokens of a training step and of an evaluation."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol, Self

import numpy as np

from partwise.config import ConfigError

IGNORE_INDEX = -100
"""A target without loss: padding."""

EVAL_BATCH_TOKENS = 2048
"""Tokens per evaluation batch; larger batches do not fit the cache and are slower on a CPU."""


@dataclass(frozen=True)
class Batch:
    """A model's input, int64: `inputs` (B, T), `targets` (B, T) the tokens to predict, `source` (B, M)."""

    inputs: np.ndarray
    targets: np.ndarray
    source: np.ndarray | None = None

    @property
    def n_targets(self) -> int:
        """The number of targets with a loss."""
        return int((self.targets != IGNORE_INDEX).sum())

    @property
    def target_ids(self) -> np.ndarray:
        """The ids (N,) of the targets with a loss."""
        return self.targets[self.targets != IGNORE_INDEX]

    def micro_batches(self, n: int) -> list["Batch"]:
        """`n` micro-batches of equal size."""
        sources = [None] * n if self.source is None else np.split(self.source, n)
        pieces = zip(np.split(self.inputs, n), np.split(self.targets, n), sources, strict=True)
        return [Batch(*piece) for piece in pieces]


class Examples(Protocol):
    """A split as batches."""

    def batch(self, key: str, seed: int, step: int, size: int) -> Batch:
        """The batch of one step: a pure function of `key` (the data's hash), `seed` and `step`."""
        ...

    def eval_batches(self) -> Iterator[Batch]:
        """Fixed batches in which every predictable token of the split is a target exactly once."""
        ...

    def targets_per_batch(self, size: int) -> int:
        """The average number of targets in a batch of `size`."""
        ...

    def epochs(self, n_targets: int) -> float:
        """The epochs of training on `n_targets` targets."""
        ...

    def truncate_like(self, other: Self) -> Self:
        """The beginning of this split, as long as `other`."""
        ...


def sample_windows(
    ids: np.ndarray,
    *,
    key: str,
    seed: int,
    step: int,
    batch_size: int,
    seq_len: int,
    rank: int = 0,
    world_size: int = 1,
) -> np.ndarray:
    """A rank's slice of the batch at `step`: windows at uniform starts, int64 (batch_size // world_size, seq_len + 1).

    Inputs are `[:, :-1]`, targets `[:, 1:]`. The global batch is a pure function of `key` (the data's hash), `seed` and
    `step`; the ranks' slices, concatenated, are the batch of a single rank. Raises ConfigError.
    """
    if seq_len + 1 > len(ids):
        raise ConfigError(
            f"train.seq_len={seq_len} is longer than the data, {len(ids)} tokens: "
            f"lower train.seq_len to at most {len(ids) - 1}, or give more data"
        )
    if batch_size < 1 or batch_size % world_size:
        raise ConfigError(
            f"a batch of {batch_size} cannot be divided among {world_size} ranks: must be a positive multiple of "
            f"{world_size}"
        )
    if not 0 <= rank < world_size:
        raise ConfigError(f"rank {rank} is outside a world of size {world_size}: ranks count from 0")
    per_rank = batch_size // world_size
    starts = random_indices(len(ids) - seq_len, key, seed, step, batch_size)[rank * per_rank : (rank + 1) * per_rank]
    every_window = np.lib.stride_tricks.sliding_window_view(np.asarray(ids), seq_len + 1)  # a view: no copy
    return every_window[starts].astype(np.int64)


def random_indices(n: int, key: str, seed: int, step: int, count: int) -> np.ndarray:
    """`count` independent uniform indices in [0, n), int64: a pure function of the data's hash, seed and step."""
    # 64 random bits modulo n: the bias is less than one part in 2^30 for any real data
    return (random_words(key, seed, step, count) % np.uint64(n)).astype(np.int64)


def random_words(key: str, seed: int, step: int, count: int) -> np.ndarray:
    """Random 64-bit words, uint64 (count,): a pure function of the data's hash, seed and step."""
    digest = hashlib.sha256(f"batch {key} {seed} {step}".encode()).digest()[:16]
    return np.random.Philox(key=int.from_bytes(digest, "little")).random_raw(count)


def eval_windows(n_tokens: int, seq_len: int) -> Iterator[tuple[int, int]]:
    """Consecutive windows (start, length) over `n_tokens`: every token but the first is a target exactly once.

    Inputs are `ids[start : start + length]`, targets `ids[start + 1 : start + length + 1]`; every length but perhaps the
    last is `seq_len`. Raises ConfigError if there is nothing to score.
    """
    if n_tokens < 2 or seq_len < 1:
        raise ConfigError(f"{n_tokens} tokens in windows of {seq_len} leave nothing to score: give a longer text")
    return ((start, min(seq_len, n_tokens - 1 - start)) for start in range(0, n_tokens - 1, seq_len))

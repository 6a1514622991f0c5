"""The windows of tokens of a training step and of an evaluation."""

import hashlib
from collections.abc import Iterator

import numpy as np

from partwise.config import ConfigError


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

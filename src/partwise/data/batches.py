"""Which tokens a step trains on, and which an evaluation scores."""

import hashlib
from collections.abc import Iterator

import numpy as np

from partwise.config import ConfigError


def batch(
    ids: np.ndarray, *, key: str, seed: int, step: int, size: int, context: int, rank: int = 0, world: int = 1
) -> np.ndarray:
    """A rank's share of the batch at `step`: windows at uniformly random starts, int64 (size // world, context + 1).

    Inputs are `[:, :-1]`, targets `[:, 1:]`. The whole batch is a pure function of `key` (the data's hash), `seed` and
    `step`; the ranks' shares in order are the batch that one rank alone would see. Raises ConfigError.
    """
    if context + 1 > len(ids):
        raise ConfigError(
            f"train.context={context} is longer than the data, {len(ids)} tokens: "
            f"lower train.context to {len(ids) - 1} or less, or give more data"
        )
    if size < 1 or size % world:
        raise ConfigError(
            f"a batch of {size} cannot be shared by {world} ranks: make it a positive multiple of {world}"
        )
    if not 0 <= rank < world:
        raise ConfigError(f"rank {rank} is outside a world of {world}: count ranks from 0")
    share = size // world
    starts = random_starts(len(ids) - context, key, seed, step, size)[rank * share : (rank + 1) * share]
    every_window = np.lib.stride_tricks.sliding_window_view(np.asarray(ids), context + 1)  # a view: takes no memory
    return every_window[starts].astype(np.int64)


def random_starts(places: int, key: str, seed: int, step: int, count: int) -> np.ndarray:
    """`count` independent uniform draws from [0, places), int64: a pure function of the data's name, seed and step."""
    # 64 random bits modulo the number of places: further from uniform by less than one part in 2^30 for any real data
    return (random_words(key, seed, step, count) % np.uint64(places)).astype(np.int64)


def random_words(key: str, seed: int, step: int, count: int) -> np.ndarray:
    """uint64 (count,) random words, a pure function of the data's name, the seed and the step."""
    name = hashlib.sha256(f"batch {key} {seed} {step}".encode()).digest()[:16]
    return np.random.Philox(key=int.from_bytes(name, "little")).random_raw(count)


def windows(count: int, context: int) -> Iterator[tuple[int, int]]:
    """Fixed windows (start, length) over `count` tokens: every token but the first is a target exactly once.

    Inputs are `ids[start : start + length]`, targets `ids[start + 1 : start + length + 1]`; every length is `context`
    but perhaps the last. Raises ConfigError when there is nothing to score.
    """
    if count < 2 or context < 1:
        raise ConfigError(f"{count} tokens in windows of {context} leave nothing to score: give a longer text")
    return ((start, min(context, count - 1 - start)) for start in range(0, count - 1, context))

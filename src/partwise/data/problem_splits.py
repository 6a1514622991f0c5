"""The splits of arithmetic problems: none of the held-out ones in training, rare forms more often if asked."""

from collections.abc import Iterator
from itertools import islice, pairwise

import numpy as np

from partwise.config import ConfigError
from partwise.data.arithmetic import ProblemBatch, ProblemSpec

FORM_BALANCE_VERSION = 2
"""Increases whenever `form_balance` produces other problems, so that cached data are never reused by mistake."""

CHUNK_SIZE = 1 << 15
"""Problems sampled and written at a time: few enough to stay in the CPU cache."""

POOL_FACTOR = 16
"""Problems sampled per chosen problem when forms are balanced: the most by which a form's frequency can grow."""


def generate_problems(
    spec: ProblemSpec,
    *,
    train: int,
    validation: int,
    test: int,
    seed: int = 0,
    validation_tail: float = 0.0,
    form_balance: float = 0.0,
    max_chunks: int | None = None,
) -> dict[str, np.ndarray]:
    """The splits "train", "val" and "test" as ASCII, uint8, concatenated problems without newlines.

    Test and validation problems are distinct, and none of them occurs in training, even with its operands swapped if the
    operation commutes. With `validation_tail` above 0, the validation split is that fraction of the training problems, cut
    from their end, instead of `validation` separate problems; these may repeat training problems. With `form_balance`
    above 0, training has more of the rare forms of problems, see `sample_balanced`. With `max_chunks`, only the first
    `max_chunks` chunks of training problems are written.
    Raises ConfigError if there are too few distinct problems.
    """
    held_out = {"test": test} | ({} if validation_tail else {"val": validation})
    needed = sum(held_out.values())
    if needed > spec.n_distinct // 2:
        raise ConfigError(
            f"cannot hold out {needed} test and validation problems of only {spec.n_distinct}: lower "
            f"data.test and data.validation to {spec.n_distinct // 2} together, or raise data.limit or data.decimals"
        )
    splits: dict[str, np.ndarray] = {}
    excluded = np.array([-1])  # matches no problem; avoids a special case for an empty array
    for name, count in held_out.items():
        problems = _sample_distinct(spec, count, f"{seed} {name}", excluded)
        excluded = np.sort(np.concatenate([excluded, spec.keys(problems)]))
        splits[name] = spec.to_ascii(problems)
    n_train = int((1 - validation_tail) * train)
    if not 0 < n_train < train + (validation_tail == 0):
        raise ConfigError(
            f"data.validation_tail={validation_tail} leaves no problems for training or for validation "
            f"(data.train={train}): raise data.train, or change data.validation_tail"
        )
    chunks = islice(_sample_training(spec, train, seed, excluded, n_train, form_balance), max_chunks)
    text = [spec.to_ascii(problems) for problems in chunks]
    train_chunks = -(-n_train // CHUNK_SIZE)  # no chunk contains both training and validation problems
    splits["train"] = np.concatenate(text[:train_chunks])
    if validation_tail:
        splits["val"] = np.concatenate([np.empty(0, np.uint8), *text[train_chunks:]])
    return {name: splits[name] for name in ("train", "val", "test")}


def _sample_distinct(spec: ProblemSpec, count: int, stream: str, excluded: np.ndarray) -> ProblemBatch:
    problems = ProblemBatch(*(np.empty(0, dtype=np.int64) for _ in range(3)))
    attempt = 0
    while len(problems.first) < count:
        more = spec.sample(count, f"{stream} {attempt}")
        problems = ProblemBatch(
            *(np.concatenate([getattr(problems, field), getattr(more, field)]) for field in vars(problems))
        )
        keys = spec.keys(problems)
        first = np.sort(np.unique(keys, return_index=True)[1])
        problems = problems.take(first[~np.isin(keys[first], excluded)])
        attempt += 1
    return problems.take(np.arange(count))


def sample_balanced(spec: ProblemSpec, count: int, stream: str, form_balance: float) -> ProblemBatch:
    """`count` problems: a form that is a fraction f of its operation occurs in proportion to f ** (1 - form_balance).

    0 samples without balancing, 1 makes all forms of an operation equally frequent. The problems are chosen from
    `POOL_FACTOR` times as many, so no form becomes more than `POOL_FACTOR` times as frequent. Like the balancing of
    languages in Conneau & Lample 2019, arXiv:1901.07291, eq. 1, and of sums by digits and carries in Lee et al. 2023,
    arXiv:2307.03381, section 3.
    """
    if not form_balance:
        return spec.sample(count, stream)
    pool = spec.sample(POOL_FACTOR * count, stream)
    forms, form, available = np.unique(spec.forms(pool), return_inverse=True, return_counts=True)
    operations, quotas = forms // (spec.decimals + 1) ** 3, np.zeros_like(available)
    for operation in np.unique(operations):
        own = operations == operation
        total = count * int(available[own].sum()) // len(form)
        quotas[own] = allocate(total, available[own].astype(np.float64) ** (1 - form_balance), available[own])
    by_form = np.argsort(form, kind="stable")
    rank = np.empty(len(form), dtype=np.int64)  # rank[i]: rank of problem i within its form
    rank[by_form] = np.arange(len(form)) - np.repeat(np.cumsum(available) - available, available)
    chosen = rank < quotas[form]
    spare = np.flatnonzero(~chosen)  # tops up the count after rounding, in pool order
    chosen[spare[: count - int(chosen.sum())]] = True
    return pool.take(np.flatnonzero(chosen))


def allocate(total: int, weights: np.ndarray, available: np.ndarray) -> np.ndarray:
    """About `total` in proportion to `weights`, capped at `available`, int64; the excess is redistributed."""
    allocated = np.zeros(len(available), dtype=np.int64)
    unfilled = np.ones(len(available), dtype=bool)
    while True:
        quotas = (total - allocated.sum()) * np.where(unfilled, weights, 0) / weights[unfilled].sum()
        full = unfilled & (quotas > available)
        if not full.any():
            return np.where(unfilled, np.floor(quotas).astype(np.int64), allocated)
        allocated[full] = available[full]
        unfilled &= ~full


def _sample_training(
    spec: ProblemSpec, count: int, seed: int, excluded: np.ndarray, n_train: int, form_balance: float
) -> Iterator[ProblemBatch]:
    """Chunks of training problems, with every held-out problem resampled; no chunk extends across `n_train`."""
    starts = [*range(0, n_train, CHUNK_SIZE), *range(n_train, count, CHUNK_SIZE), count]
    for chunk, (start, end) in enumerate(pairwise(starts)):
        problems = sample_balanced(spec, end - start, f"{seed} train {chunk}", form_balance)
        attempt, rows = 0, np.arange(end - start)
        while len(rows := rows[_is_in(spec.keys(problems.take(rows)), excluded)]):
            attempt += 1
            problems.put(rows, spec.sample(len(rows), f"{seed} train {chunk} {attempt}"))
        yield problems


def _is_in(keys: np.ndarray, sorted_keys: np.ndarray) -> np.ndarray:
    """Which keys are among the sorted ones, bool (N,)."""
    nearest = np.minimum(np.searchsorted(sorted_keys, keys), len(sorted_keys) - 1)
    return sorted_keys[nearest] == keys

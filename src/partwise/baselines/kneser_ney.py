"""An n-gram language model with modified Kneser-Ney smoothing, vectorized in numpy."""

from dataclasses import dataclass
from typing import Self

import numpy as np

from partwise.config import ConfigError

CHUNK_TOKENS = 1 << 20
"""Tokens scored at once, so that memory does not grow with the text."""


def check_ids(ids: np.ndarray, vocab_size: int, name: str) -> np.ndarray:
    """`ids` as int64. Raises ConfigError unless they are integers in [0, vocab_size)."""
    ids = np.asarray(ids)
    if ids.dtype.kind not in "iu":
        raise ConfigError(f"{name} holds {ids.dtype} values: must be integers")
    if ids.size and not 0 <= int(ids.min()) <= int(ids.max()) < vocab_size:
        worst = int(ids.max()) if ids.max() >= vocab_size else int(ids.min())
        raise ConfigError(f"{name} holds the id {worst}: vocab_size={vocab_size} allows 0 to {vocab_size - 1}")
    return ids.astype(np.int64, copy=False)


def estimate_discounts(counts: np.ndarray) -> np.ndarray:
    """The discounts of n-grams of count 0, 1, 2, and 3 or more: float64 (4,).

    With n_k n-grams of count k: Y = n_1 / (n_1 + 2 n_2), D_k = k - (k + 1) Y n_{k+1} / n_k. If one of these counts of
    counts is zero or D_k is not positive, as in small or repetitive texts, D_k = k / 2.
    """
    n = np.bincount(np.minimum(counts, 5), minlength=6).tolist()
    discounts = np.array([0.0, 0.5, 1.0, 1.5])
    for k in (1, 2, 3):
        if n[1] and n[2] and n[k] and n[k + 1]:
            # integers until the division: rounding must not turn a discount of zero into a small positive one
            denominator = (n[1] + 2 * n[2]) * n[k]
            numerator = k * denominator - (k + 1) * n[1] * n[k + 1]
            if numerator > 0:
                discounts[k] = numerator / denominator
    return discounts


@dataclass(frozen=True)
class NGramTable:
    """All n-grams of one length. The rank -1 means "unseen", so that it indexes the last entry of each table."""

    keys: np.ndarray  # int64, sorted: rank of the context, times the number of symbols, plus rank of the last token
    weight: np.ndarray  # float64 per n-gram and 0 for unseen: (count - D) / count of the context
    backoff: np.ndarray  # float64 per context and 1 for unseen: the context's mass for the lower order

    @classmethod
    def from_counts(cls, keys: np.ndarray, counts: np.ndarray, contexts: np.ndarray, n_contexts: int) -> Self:
        discounts = estimate_discounts(counts)[np.minimum(counts, 3)]
        total = np.bincount(contexts, weights=counts, minlength=n_contexts)
        backoff = np.bincount(contexts, weights=discounts, minlength=n_contexts)
        # some contexts have no continuation: the last one of the text, and those that occur only at its start
        no_continuation = total == 0
        total[no_continuation] = backoff[no_continuation] = 1
        return cls(keys, np.append((counts - discounts) / total[contexts], 0.0), np.append(backoff / total, 1.0))


class KneserNey:
    """Interpolated modified Kneser-Ney over token ids. Chen & Goodman 1998, Harvard TR-10-98.

    P(w | h) = (c(h w) - D(c(h w))) / c(h) + sum_v D(c(h v)) / c(h) * P(w | h without its first token)

    with c(h) = sum_v c(h v). c counts occurrences of the longest n-grams and distinct left neighbors of all others. D has
    three values per n-gram length. P without context is interpolated with 1 / vocab_size, so every token has a positive
    probability. For a context without continuations, P is that of the shorter context.
    """

    def __init__(self, train_ids: np.ndarray, vocab_size: int, context: int = 6) -> None:
        """Count the n-grams of `train_ids` (N,), of up to `context` + 1 tokens (fewer if N is less).

        Raises ConfigError for an empty text, a negative context, or ids outside [0, vocab_size).
        """
        if context < 0:
            raise ConfigError(f"context={context}: must be at least 0")
        if not len(train_ids):
            raise ConfigError("train_ids is empty: n-grams need at least one token to count")
        self.vocab_size = vocab_size
        self.context = context
        # ranks instead of ids keep every key below N squared for any vocabulary size
        self.symbols, tokens = np.unique(check_ids(train_ids, vocab_size, "train_ids"), return_inverse=True)
        self.orders: list[NGramTable] = []
        ranks = np.zeros(len(tokens), dtype=np.int64)  # ranks[i]: rank of the n-gram starting at i
        keys = counts = contexts = np.zeros(0, dtype=np.int64)
        n_contexts = 1
        for shorter in range(min(context + 1, len(tokens))):
            longer_keys, first, longer_ranks, longer_counts = np.unique(
                ranks[: len(tokens) - shorter] * len(self.symbols) + tokens[shorter:],
                return_index=True,
                return_inverse=True,
                return_counts=True,
            )
            if shorter:
                neighbors = np.bincount(ranks[first + 1], minlength=len(keys))
                self.orders.append(NGramTable.from_counts(keys, neighbors, contexts, n_contexts))
                n_contexts = len(keys)
            keys, counts, contexts = longer_keys, longer_counts, longer_keys // len(self.symbols)
            ranks = longer_ranks
        self.orders.append(NGramTable.from_counts(keys, counts, contexts, n_contexts))

    def probabilities(self, ids: np.ndarray) -> np.ndarray:
        """The probability of each token given the up to `context` tokens before it: integers (..., T) -> float64 (..., T).

        Raises ConfigError for ids outside [0, vocab_size).
        """
        tokens = _find(self.symbols, check_ids(ids, self.vocab_size, "ids"))
        result = np.full(tokens.shape, 1 / self.vocab_size)
        ranks = np.zeros(tokens.shape, dtype=np.int64)  # ranks[..., i]: rank of the n-gram starting at i, -1 if unseen
        for shorter, order in enumerate(self.orders[: tokens.shape[-1]]):
            last = tokens[..., shorter:]
            contexts = ranks[..., : last.shape[-1]]
            # an unseen context gives a negative key; an unseen token would give the key of another n-gram
            ranks = _find(order.keys, np.where(last < 0, -1, contexts * len(self.symbols) + last))
            result[..., shorter:] = order.weight[ranks] + order.backoff[contexts] * result[..., shorter:]
        return result

    def distribution(self, context: np.ndarray) -> np.ndarray:
        """The next-token distribution after `context` (T,), T >= 0: float64 (vocab_size,). Raises ConfigError."""
        context = np.asarray(context, dtype=np.int64)[max(0, len(context) - self.context) :]
        rows = np.empty((self.vocab_size, len(context) + 1), dtype=np.int64)
        rows[:, :-1] = context
        rows[:, -1] = np.arange(self.vocab_size)
        return self.probabilities(rows)[:, -1]

    def loss(self, ids: np.ndarray) -> float:
        """Mean nats per token over ids[1:] of one text `ids` (T,), T >= 2. Raises ConfigError."""
        if len(ids) < 2:
            raise ConfigError(f"{len(ids)} tokens in ids: must be at least 2, since the first is not scored")
        total = 0.0
        for start in range(1, len(ids), CHUNK_TOKENS):
            before = min(start, self.context)
            total -= float(np.log(self.probabilities(ids[start - before : start + CHUNK_TOKENS])[before:]).sum())
        return total / (len(ids) - 1)


def _find(keys: np.ndarray, queries: np.ndarray) -> np.ndarray:
    """The index of each query in the sorted `keys`, or -1 if it is absent."""
    nearest = np.minimum(np.searchsorted(keys, queries), len(keys) - 1)
    return np.where(keys[nearest] == queries, nearest, -1)

"""The strongest model without a gradient: n-gram counts with modified Kneser-Ney smoothing, vectorised."""

from dataclasses import dataclass
from typing import Self

import numpy as np

from partwise.config import ConfigError

PIECE = 1 << 20
"""Tokens scored in one go, so that memory does not grow with the text."""


def checked_ids(ids: np.ndarray, vocab_size: int, name: str) -> np.ndarray:
    """`ids` as int64. Raises ConfigError for ids that are no integers in [0, vocab_size)."""
    ids = np.asarray(ids)
    if ids.dtype.kind not in "iu":
        raise ConfigError(f"{name} holds {ids.dtype} values: give integer token ids")
    if ids.size and not 0 <= int(ids.min()) <= int(ids.max()) < vocab_size:
        worst = int(ids.max()) if ids.max() >= vocab_size else int(ids.min())
        raise ConfigError(f"{name} holds the id {worst}: vocab_size={vocab_size} allows 0 to {vocab_size - 1}")
    return ids.astype(np.int64, copy=False)


def find_discounts(counts: np.ndarray) -> np.ndarray:
    """What an n-gram of count 0, 1, 2, 3 or more gives away: float64 (4,).

    With n_k n-grams of count k: Y = n_1 / (n_1 + 2 n_2), D_k = k - (k + 1) Y n_{k+1} / n_k. Where one of these
    counts of counts is zero, or D_k is not positive, as in small or repetitive texts, D_k = k / 2.
    """
    found = np.bincount(np.minimum(counts, 5), minlength=6).tolist()
    discounts = np.array([0.0, 0.5, 1.0, 1.5])
    for k in (1, 2, 3):
        if found[1] and found[2] and found[k] and found[k + 1]:
            # whole numbers until the end: rounding must not turn a discount of zero into one that is barely positive
            unit = (found[1] + 2 * found[2]) * found[k]
            above = k * unit - (k + 1) * found[1] * found[k + 1]
            if above > 0:
                discounts[k] = above / unit
    return discounts


@dataclass(frozen=True)
class Order:
    """All n-grams of one length. A rank of -1 stands for "unseen" and so reads each table's last entry."""

    keys: np.ndarray  # int64, sorted: rank of the context, times the number of symbols, plus rank of the last token
    weight: np.ndarray  # float64 per n-gram and 0 for unseen: (count - D) / count of the context
    backoff: np.ndarray  # float64 per context and 1 for unseen: the mass that the context gives to the lower order

    @classmethod
    def from_counts(cls, keys: np.ndarray, counts: np.ndarray, contexts: np.ndarray, n_contexts: int) -> Self:
        given = find_discounts(counts)[np.minimum(counts, 3)]
        total = np.bincount(contexts, weights=counts, minlength=n_contexts)
        backoff = np.bincount(contexts, weights=given, minlength=n_contexts)
        # nothing was counted after some contexts: the last one of the text, and those that only occur at its start
        never = total == 0
        total[never] = backoff[never] = 1
        return cls(keys, np.append((counts - given) / total[contexts], 0.0), np.append(backoff / total, 1.0))


class KneserNey:
    """Interpolated modified Kneser-Ney over token ids. Chen & Goodman 1998, Harvard TR-10-98.

    P(w | h) = (c(h w) - D(c(h w))) / c(h) + sum_v D(c(h v)) / c(h) * P(w | h without its first token)

    with c(h) = sum_v c(h v). c counts occurrences for the longest n-grams and distinct left neighbours for all others.
    D takes one of three values per length. P without context is interpolated with 1 / vocab_size, so every token has a
    positive probability. A context after which nothing was counted leaves everything to the shorter one.
    """

    def __init__(self, train_ids: np.ndarray, vocab_size: int, context: int = 6) -> None:
        """Count the n-grams of `train_ids` (N,), of up to `context` + 1 tokens (fewer if N is less).

        Raises ConfigError for an empty text, a negative context, or ids outside [0, vocab_size).
        """
        if context < 0:
            raise ConfigError(f"context={context}: give the number of tokens to look back at, 0 or more")
        if not len(train_ids):
            raise ConfigError("train_ids is empty: n-grams need at least one token to count")
        self.vocab_size = vocab_size
        self.context = context
        # ranks instead of ids keep every key below N squared, whatever the vocabulary
        self.symbols, tokens = np.unique(checked_ids(train_ids, vocab_size, "train_ids"), return_inverse=True)
        self.orders: list[Order] = []
        ranks = np.zeros(len(tokens), dtype=np.int64)  # of the n-gram that starts at each position
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
                neighbours = np.bincount(ranks[first + 1], minlength=len(keys))
                self.orders.append(Order.from_counts(keys, neighbours, contexts, n_contexts))
                n_contexts = len(keys)
            keys, counts, contexts = longer_keys, longer_counts, longer_keys // len(self.symbols)
            ranks = longer_ranks
        self.orders.append(Order.from_counts(keys, counts, contexts, n_contexts))

    def probabilities(self, ids: np.ndarray) -> np.ndarray:
        """Of each token given up to `context` tokens before it in its row: integers (..., T) -> float64 (..., T).

        Raises ConfigError for ids outside [0, vocab_size).
        """
        tokens = _find(self.symbols, checked_ids(ids, self.vocab_size, "ids"))
        result = np.full(tokens.shape, 1 / self.vocab_size)
        ranks = np.zeros(tokens.shape, dtype=np.int64)  # of the n-gram that starts at each position, -1 if unseen
        for shorter, order in enumerate(self.orders[: tokens.shape[-1]]):
            last = tokens[..., shorter:]
            contexts = ranks[..., : last.shape[-1]]
            # an unseen context makes a negative key by itself; an unseen token would make another n-gram's
            ranks = _find(order.keys, np.where(last < 0, -1, contexts * len(self.symbols) + last))
            result[..., shorter:] = order.weight[ranks] + order.backoff[contexts] * result[..., shorter:]
        return result

    def distribution(self, context: np.ndarray) -> np.ndarray:
        """Over the vocabulary, after the tokens `context` (T,), T >= 0: float64 (vocab_size,). Raises ConfigError."""
        context = np.asarray(context, dtype=np.int64)[max(0, len(context) - self.context) :]
        rows = np.empty((self.vocab_size, len(context) + 1), dtype=np.int64)
        rows[:, :-1] = context
        rows[:, -1] = np.arange(self.vocab_size)
        return self.probabilities(rows)[:, -1]

    def loss(self, ids: np.ndarray) -> float:
        """Mean nats per token over ids[1:], of `ids` (T,), T >= 2, as one text. Raises ConfigError."""
        if len(ids) < 2:
            raise ConfigError(f"ids holds {len(ids)} tokens: the first is never scored, so give at least 2")
        total = 0.0
        for start in range(1, len(ids), PIECE):
            before = min(start, self.context)
            total -= float(np.log(self.probabilities(ids[start - before : start + PIECE])[before:]).sum())
        return total / (len(ids) - 1)


def _find(keys: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """The index of each of `wanted` in the sorted `keys`, -1 where it is absent."""
    nearest = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where(keys[nearest] == wanted, nearest, -1)

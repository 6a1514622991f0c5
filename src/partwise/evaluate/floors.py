"""What no comparison should be read without: the scores of models that learn nothing but counts."""

import numpy as np

from partwise.config import ConfigError
from partwise.parts.ngram import KneserNey, checked_ids

CONTEXT = 6
"""Tokens of context that suit a megabyte of characters best: a 7-gram."""


def unigram(train_ids: np.ndarray, ids: np.ndarray, vocab_size: int) -> float:
    """Nats per token of the training text's frequencies over ids[1:]; the first token is never scored, as for models.

    P(w) = (c(w) + 1) / (N + vocab_size): the one keeps the loss finite for tokens that training never saw.
    `train_ids` (N,) and `ids` (T,), T >= 2, are integers in [0, vocab_size). Raises ConfigError.
    """
    if len(ids) < 2:
        raise ConfigError(f"ids holds {len(ids)} tokens: the first is never scored, so give at least 2")
    counts = np.bincount(checked_ids(train_ids, vocab_size, "train_ids"), minlength=vocab_size)
    scored = np.bincount(checked_ids(ids, vocab_size, "ids")[1:], minlength=vocab_size)
    return float(-(scored @ np.log((counts + 1) / (len(train_ids) + vocab_size))) / (len(ids) - 1))


def kneser_ney(train_ids: np.ndarray, ids: np.ndarray, vocab_size: int, context: int = CONTEXT) -> float:
    """Nats per token of interpolated modified Kneser-Ney over ids[1:]; Chen & Goodman 1998, Harvard TR-10-98.

    Each token is predicted from the `context` tokens of `ids` before it, fewer at the start: no window starts cold.
    `train_ids` (N,), N >= 1, and `ids` (T,), T >= 2, are integers in [0, vocab_size). Raises ConfigError.
    """
    return KneserNey(train_ids, vocab_size, context).loss(ids)


def text_floors(
    train_ids: np.ndarray, ids: np.ndarray, vocab_size: int, limit: int = 2_000_000
) -> dict[str, float | int]:
    """`unigram` and `kneser_ney` in nats per token over ids[1:], the latter's `context`, and `fitted_tokens`.

    Both are fitted on the first `limit` training tokens, so that a large corpus costs seconds. Raises ConfigError.
    """
    if limit < 1:
        raise ConfigError(f"limit={limit}: fit on at least 1 token")
    fitted = train_ids[:limit]
    return {
        "unigram": unigram(fitted, ids, vocab_size),
        "kneser_ney": kneser_ney(fitted, ids, vocab_size),
        "context": CONTEXT,
        "fitted_tokens": len(fitted),
    }


def most_frequent_per_position(train_answers: np.ndarray, answers: np.ndarray) -> float:
    """Share of right characters when every position gets its most frequent training character; the smallest of a tie.

    `train_answers` (M, W) and `answers` (N, W) are integers. Raises ConfigError.
    """
    _check_answers(train_answers, answers)
    best = []
    for column in train_answers.T:
        characters, counts = np.unique(column, return_counts=True)
        best.append(characters[counts.argmax()])
    return float((answers == np.array(best)).mean())


def constant_answer(train_answers: np.ndarray, answers: np.ndarray) -> float:
    """Share of whole answers that equal the most common training answer, the first in sorted order of a tie.

    `train_answers` (M, W) and `answers` (N, W) are integers. Raises ConfigError.
    """
    _check_answers(train_answers, answers)
    rows = np.zeros(len(train_answers), dtype=np.int64)
    for column in train_answers.T:  # rank after rank: no key outgrows 64 bits
        characters, ranks = np.unique(column, return_inverse=True)
        _, rows = np.unique(rows * len(characters) + ranks, return_inverse=True)
    best = train_answers[np.argmax(rows == np.bincount(rows).argmax())]
    return float((answers == best).all(axis=1).mean())


def _check_answers(train_answers: np.ndarray, answers: np.ndarray) -> None:
    shapes = f"answers of shapes {train_answers.shape} and {answers.shape}"
    if train_answers.ndim != 2 or answers.ndim != 2 or train_answers.shape[1] != answers.shape[1]:
        raise ConfigError(f"{shapes}: give two tables of one width, a row per answer")
    if not train_answers.size or not answers.size:
        raise ConfigError(f"{shapes}: give at least one answer of at least one character to each")

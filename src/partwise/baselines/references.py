"""Reference scores for any comparison: n-gram language models and constant answers."""

from typing import Any

import numpy as np

from partwise.baselines.kneser_ney import KneserNey, check_ids
from partwise.config import ConfigError

NGRAMS = (2, 3, 4, 5, 7)
"""The n-gram models of the scale; a 7-gram model is best on a megabyte of characters."""


def unigram_loss(train_ids: np.ndarray, ids: np.ndarray, vocab_size: int) -> float:
    """Nats per token over ids[1:] of the token frequencies in the training text; as for models, ids[0] is not scored.

    P(w) = (c(w) + 1) / (N + vocab_size): add-one smoothing keeps the loss finite for tokens unseen in training.
    `train_ids` (N,) and `ids` (T,), T >= 2, are integers in [0, vocab_size). Raises ConfigError.
    """
    if len(ids) < 2:
        raise ConfigError(f"{len(ids)} tokens in ids: must be at least 2, since the first is not scored")
    counts = np.bincount(check_ids(train_ids, vocab_size, "train_ids"), minlength=vocab_size)
    scored = np.bincount(check_ids(ids, vocab_size, "ids")[1:], minlength=vocab_size)
    return float(-(scored @ np.log((counts + 1) / (len(train_ids) + vocab_size))) / (len(ids) - 1))


def kneser_ney_loss(train_ids: np.ndarray, ids: np.ndarray, vocab_size: int, context: int = NGRAMS[-1] - 1) -> float:
    """Nats per token over ids[1:] of interpolated modified Kneser-Ney; Chen & Goodman 1998, Harvard TR-10-98.

    Each token is predicted from the `context` tokens of `ids` before it (fewer only at the start of `ids`).
    `train_ids` (N,), N >= 1, and `ids` (T,), T >= 2, are integers in [0, vocab_size). Raises ConfigError.
    """
    return KneserNey(train_ids, vocab_size, context).loss(ids)


def text_references(
    train_ids: np.ndarray, ids: np.ndarray, vocab_size: int, max_tokens: int = 2_000_000
) -> dict[str, Any]:
    """`ngrams`, the losses over ids[1:] of n-gram models in nats per token as [n, loss] by n, and `fitted_tokens`.

    The unigram model is `unigram_loss`, the others are `kneser_ney_loss`. All are fitted on the first `max_tokens` training
    tokens, so that a large corpus takes seconds. Raises ConfigError.
    """
    if max_tokens < 1:
        raise ConfigError(f"max_tokens={max_tokens}: must be at least 1")
    fitted_ids = train_ids[:max_tokens]
    return {
        "ngrams": [
            [1, unigram_loss(fitted_ids, ids, vocab_size)],
            *([n, kneser_ney_loss(fitted_ids, ids, vocab_size, n - 1)] for n in NGRAMS),
        ],
        "fitted_tokens": len(fitted_ids),
    }


def constant_char_accuracy(train_answers: np.ndarray, answers: np.ndarray) -> float:
    """Character accuracy of predicting each position's most frequent training character; ties go to the smallest id.

    `train_answers` (M, W) and `answers` (N, W) are integers. Raises ConfigError.
    """
    _check_answers(train_answers, answers)
    best = []
    for column in train_answers.T:
        characters, counts = np.unique(column, return_counts=True)
        best.append(characters[counts.argmax()])
    return float((answers == np.array(best)).mean())


def constant_exact_match(train_answers: np.ndarray, answers: np.ndarray) -> float:
    """Exact match of predicting the most common training answer; ties go to the first in sorted order.

    `train_answers` (M, W) and `answers` (N, W) are integers. Raises ConfigError.
    """
    _check_answers(train_answers, answers)
    rows = np.zeros(len(train_answers), dtype=np.int64)
    for column in train_answers.T:  # ranking column by column keeps every key within 64 bits
        characters, ranks = np.unique(column, return_inverse=True)
        _, rows = np.unique(rows * len(characters) + ranks, return_inverse=True)
    best = train_answers[np.argmax(rows == np.bincount(rows).argmax())]
    return float((answers == best).all(axis=1).mean())


def _check_answers(train_answers: np.ndarray, answers: np.ndarray) -> None:
    shapes = f"answers of shapes {train_answers.shape} and {answers.shape}"
    if train_answers.ndim != 2 or answers.ndim != 2 or train_answers.shape[1] != answers.shape[1]:
        raise ConfigError(f"{shapes}: must be two tables of equal width, one row per answer")
    if not train_answers.size or not answers.size:
        raise ConfigError(f"{shapes}: must have at least one answer of at least one character each")

"""Reference results of a dataset: n-gram losses, and the accuracies of constant answers to arithmetic problems."""

import contextlib
import json
from typing import Any

import numpy as np

from partwise.baselines.references import (
    constant_char_accuracy,
    constant_exact_match,
    text_references,
    unigram_loss,
)
from partwise.config import digest
from partwise.data import Dataset, ProblemWindows, SequencePairs, build_examples, problem_lines
from partwise.data.problems import answer_of
from partwise.files import replace_file
from partwise.records import DamagedFileError, read_record

REFERENCES_VERSION = 2
FITTED_TOKENS = 2_000_000
"""Training tokens that the n-gram references are fitted on, at most."""

PROBLEM_TOKENS = 4 * FITTED_TOKENS
"""Tokens of problems to take answers from; about a third of them are in answers."""


def dataset_references(dataset: Dataset) -> dict[str, Any]:
    """N-gram losses on a dataset's validation split; for arithmetic also constant accuracies on its test problems.

    For masked tokens, the unigram loss alone: a model that sees both sides of a token has no n-gram model as its peer.
    Cached in the dataset's folder, since they depend on nothing else, with a hash; if damaged, they are computed again.
    """
    if dataset.corpus.masked_share:
        fitted, validation = dataset.split("train")[:FITTED_TOKENS], dataset.split("val")
        loss = unigram_loss(fitted, validation, dataset.vocab_size)
        return {"ngrams": [[1, loss]], "fitted_tokens": len(fitted)}
    # the name has the hash because the tuning split uses the same folder
    suffix = "-answers" if dataset.corpus.answers_only else ""
    cache_file = dataset.folder / f"references-{REFERENCES_VERSION}-{dataset.hash[:16]}{suffix}.json"
    try:
        cached = read_record(cache_file)
        if cached["sha256"] == digest(cached["references"]):
            return cached.record("references")
    except DamagedFileError:
        pass
    train, validation = (target_ids(dataset, split) for split in ("train", "val"))
    references: dict[str, Any] = text_references(train, validation, dataset.vocab_size, max_tokens=FITTED_TOKENS)
    if dataset.corpus.task == "arithmetic" and "test" in dataset.split_names:
        references |= arithmetic_references(dataset)
    with contextlib.suppress(OSError):  # without the cache they are computed again
        replace_file(cache_file, json.dumps({"references": references, "sha256": digest(references)}).encode())
    return references


def is_plain_text(dataset: Dataset) -> bool:
    """Whether n-gram models are a scale of its losses.

    Answers to problems and targets of sources follow by rules; masked tokens are seen from both sides.
    """
    corpus = dataset.corpus
    return corpus.task == "text" and not corpus.paired and not corpus.masked_share


def target_ids(dataset: Dataset, split: str) -> np.ndarray:
    """The ids of a split that models predict: the targets of pairs, the answers of problems if only these are trained on."""
    ids = dataset.split(split)
    examples = build_examples(dataset, split, len(ids), len(ids))
    if isinstance(examples, SequencePairs):
        return examples.target_ids()
    if isinstance(examples, ProblemWindows) and examples.answers_only:
        return examples.answer_ids(PROBLEM_TOKENS if split == "train" else None)
    return ids


def arithmetic_references(dataset: Dataset) -> dict[str, float]:
    """The accuracies of the most frequent character at each position, and of the most frequent answer."""
    test = problem_lines(dataset, "test")
    train = problem_lines(dataset, "train", FITTED_TOKENS // len(test[0]))
    answers = [list(map(answer_of, problems)) for problems in (train, test)]
    width = max(len(answer) for split in answers for answer in split)
    tables = [np.array([list(answer.ljust(width, "$").encode()) for answer in split]) for split in answers]
    return {
        "constant_char_accuracy_closed": constant_char_accuracy(*tables),
        "constant_char_accuracy": constant_char_accuracy(tables[0][:, :-1], tables[1][:, :-1]),
        "constant_exact_match": constant_exact_match(*tables),
    }

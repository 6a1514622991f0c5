"""Scores beside their floors: what a trivial method reaches on the same data."""

import json
import os
from typing import Any

import numpy as np

from partwise.data import Dataset, Pairs, ProblemWindows, examples, problem_lines
from partwise.evaluate.floors import constant_answer, most_frequent_per_position, text_floors

FLOORS_VERSION = 1
FITTED_TOKENS = 2_000_000
PROBLEM_TOKENS = 4 * FITTED_TOKENS
"""Of a text of problems, in which answers are about a third."""


def dataset_floors(dataset: Dataset) -> dict[str, float | int]:
    """A data set's floors: n-gram losses on its validation split; for arithmetic also accuracies on its test problems.

    Kept beside the shards once computed, as they depend on nothing else.
    """
    # by hash: a part of the data held out for tuning lies in the same folder
    scored = "-answers" if dataset.corpus.answers_only else ""
    kept = dataset.folder / f"floors-{FLOORS_VERSION}-{dataset.hash[:16]}{scored}.json"
    try:
        return json.loads(kept.read_text())
    except (OSError, ValueError):
        pass
    train, validation = (predicted_ids(dataset, split) for split in ("train", "val"))
    floors: dict[str, Any] = text_floors(train, validation, dataset.vocab_size, limit=FITTED_TOKENS)
    if dataset.corpus.task == "arithmetic" and "test" in dataset.names:
        floors |= arithmetic_floors(dataset)
    temporary = kept.with_name(f".{kept.name}.{os.getpid()}")
    try:
        temporary.write_text(json.dumps(floors))
        os.replace(temporary, kept)
    except OSError:
        pass  # a cache that cannot be written only costs time
    return floors


def predicted_ids(dataset: Dataset, split: str) -> np.ndarray:
    """The ids of a split that models are asked for: of pairs, the targets alone; of problems it may be the answers."""
    ids = dataset.split(split)
    found = examples(dataset, split, len(ids), len(ids))
    if isinstance(found, Pairs):
        return found.targets_alone()
    if isinstance(found, ProblemWindows) and found.answers_only:
        return found.answers_alone(PROBLEM_TOKENS if split == "train" else None)
    return ids


def arithmetic_floors(dataset: Dataset) -> dict[str, float]:
    """Answering every position with its most frequent character, and every problem with the most common answer."""
    test = problem_lines(dataset, "test")
    train = problem_lines(dataset, "train", FITTED_TOKENS // len(test[0]))
    answers = [[problem[problem.index("=") + 1 :] for problem in problems] for problems in (train, test)]
    width = max(len(answer) for side in answers for answer in side)
    tables = [np.array([list(answer.ljust(width, "$").encode()) for answer in side]) for side in answers]
    return {
        "most_frequent_closed": most_frequent_per_position(*tables),
        "most_frequent": most_frequent_per_position(tables[0][:, :-1], tables[1][:, :-1]),
        "constant_answer": constant_answer(*tables),
    }

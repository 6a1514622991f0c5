"""The accuracies of answers to arithmetic problems, and scores on a task of lm_eval."""

import math
from collections.abc import Iterator

from partwise.comparison.report.cells import fraction_interval, number
from partwise.comparison.results import Accuracy, ArmResult, Results, TaskScore
from partwise.plots.blocks import Table
from partwise.plots.cells import count, percent

ACCURACIES = {
    "char_accuracy_closed": "character accuracy, closing $ included",
    "char_accuracy": "character accuracy, without it",
    "exact_match": "exact match",
}


def accuracy_table(results: Results) -> Iterator[Table]:
    scored = [(arm.name, arm.accuracy) for arm in results.arms if arm.accuracy]
    rows = []
    for kind in dict.fromkeys(kind for _, accuracies in scored for kind in accuracies):
        for name, accuracies in scored:
            found: Accuracy | None = accuracies.get(kind)
            problems = found.exact_match.total if found else None
            cells = [fraction_interval(getattr(found, measure, None)) for measure in ACCURACIES]
            rows.append(["all" if kind == "all" else f"only {kind}", name, *cells, count(problems)])
    if not rows:
        return
    references = results.references.to_dict()
    for name, keys in (
        (
            "the most frequent character at each position",
            ("constant_char_accuracy_closed", "constant_char_accuracy", ""),
        ),
        ("one constant answer", ("", "", "constant_exact_match")),
    ):
        if any(references.get(key) is not None for key in keys):
            rows.append(["reference", name, *(percent(references.get(key)) for key in keys), ""])
    note = (
        "Pooled over the seeds, with Wilson 95% intervals. They treat characters as independent and ignore variation "
    )
    note += "between seeds, so they are too narrow. A constant reference ignores the problem."
    yield Table(["problems", "arm", *ACCURACIES.values(), "problems scored"], rows, note=note, left=2)


def task_table(results: Results) -> Iterator[Table]:
    """The scores of each arm, with the spread between seeds and the standard error over items apart."""
    rows = []
    for arm in results.arms:
        if scores := task_scores(arm):
            errors = [score.item_error for score in scores if score.item_error is not None]
            error = math.hypot(*errors) / math.sqrt(len(errors)) if errors else None
            rows.append([arm.name, number(arm.mean), number(arm.sd), number(error), count(scores[0].items)])
    if rows:
        note = (
            "Intervals and verdicts are over seeds, for these items, which all arms share. The standard error over items, "
            "the root mean square over the seeds, is how far the score of one model would vary with other items. No "
            "interval includes it."
        )
        head = ["arm", results.protocol.metric, "seed SD", "standard error over items", "items"]
        yield Table(head, rows, note=note)


def task_scores(arm: ArmResult) -> list[TaskScore]:
    return [trial.task_score for trial in arm.trials if trial.task_score]

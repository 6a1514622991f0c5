"""The accuracies of answers to arithmetic problems."""

from collections.abc import Iterator

from partwise.comparison.report.cells import fraction_interval
from partwise.comparison.results import Accuracy, Results
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

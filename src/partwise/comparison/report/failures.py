"""Sections for comparisons of any code: trials without a value, and the code that differs between commits."""

from collections.abc import Iterator

from partwise.comparison.results import Results
from partwise.plots.blocks import Paragraph, Table
from partwise.plots.cells import NONE

MAX_DIFF = 20_000
"""Characters of a diff that the report shows; the whole is in `results.json`."""


def failures(results: Results) -> Iterator[Table]:
    """Every trial that ended without a value, why, and where its output is."""
    rows = [
        [arm.name, str(trial.seed), trial.reason, trial.log or NONE]
        for arm in results.arms
        for trial in arm.trials
        if trial.reason
    ]
    if rows:
        note = "Failed trials are counted and compared, never dropped or repeated."
        yield Table(["arm", "seed", "reason", "output"], rows, note=note, left=4, links=(3,))


def code_changes(results: Results) -> Iterator[Paragraph]:
    """The diff from the baseline's commit to that of each arm."""
    for arm in results.arms:
        if arm.code_changes:
            shown = arm.code_changes[:MAX_DIFF]
            cut = (
                f" The first {MAX_DIFF:,} of {len(arm.code_changes):,} characters:" if shown != arm.code_changes else ""
            )
            yield Paragraph(f"From {results.arms[0].name} to {arm.name}.{cut}")
            yield Paragraph(shown, kind="verbatim")

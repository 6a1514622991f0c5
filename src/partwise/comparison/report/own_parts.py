"""The findings of the checks of custom parts, in a report."""

from collections.abc import Iterator

from partwise.comparison.results import Results
from partwise.plots.blocks import Table

RESULTS = {"passed": "passed", "warning": "warning", "leak": "LEAK"}


def leak_sentence(results: Results) -> str:
    """The first line of the report if an arm sees the tokens that it predicts; '' otherwise."""
    names = [arm.name for arm in results.arms if any(each.outcome == "leak" for each in arm.findings)]
    if not names:
        return ""
    measured = next(each.measured for arm in results.arms for each in arm.findings if each.outcome == "leak")
    arms, their = (
        (f"Arm {names[0]} sees", "its loss") if len(names) == 1 else (f"Arms {', '.join(names)} see", "a loss")
    )
    return f"{arms} the tokens to predict, so {their} means nothing and no verdict on it counts: {measured}."


def findings_table(results: Results) -> Iterator[Table]:
    """A row per arm and check; nothing if all parts are of the package."""
    rows = [
        [
            arm.name,
            each.check if each.seed is None else f"{each.check}, seed {each.seed}",
            RESULTS[each.outcome],
            each.measured,
        ]
        for arm in results.arms
        for each in arm.findings
    ]
    if rows:
        yield Table(["arm", "check", "result", "measured"], rows, left=4, kind="facts")

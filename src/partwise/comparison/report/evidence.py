"""Report sections that support a verdict: protocol, matched budgets, tuning, replication, and activation statistics."""

from collections.abc import Iterator
from typing import Any

from partwise.comparison.report.blocks import Figure, Paragraph, Table
from partwise.comparison.report.cells import (
    NONE,
    decimal_places,
    lower_is_better,
    metric_with_unit,
    number,
    with_interval,
)
from partwise.comparison.stats.number_format import format_percent

BUDGETS = {
    "tokens": "equal tokens",
    "parameters": "equal parameters",
    "flops": "equal FLOPs",
    "seconds": "equal seconds",
}
TOLERANCE = 0.01
MIN_FACTOR = 1.2  # minimum ratio between the arms of a statistic that is listed


def forest(results: dict[str, Any]) -> Iterator[Figure | Table]:
    """A forest plot and table of all comparisons, if there are several."""
    from partwise.comparison.report.figures import draw_forest

    rows = results.get("comparisons") or []
    if len(rows) < 2:
        return
    if svg := draw_forest(rows, results.get("margin") or 0.0, lower_is_better(results), "f"):
        note = f"{metric_with_unit(results)}. The band is the margin; the numbers refer to the table."
        yield Figure("Means and intervals", svg, note)
    kinds = {"negative": "negative control", "positive": "positive control"}
    table = []
    for index, row in enumerate(rows, start=1):
        cells = [str(index), f"{row['arm']} − {row['against']}", kinds.get(row.get("role") or "", "claim")]
        table.append([*cells, with_interval(row, decimal_places(row, results)), row.get("verdict") or "no verdict"])
    yield Table(["", "difference", "", "mean (interval)", "verdict"], table, left=3)


def sign_table(results: dict[str, Any]) -> Iterator[Table]:
    """The sign of the difference at 25, 50, 75 and 100% of training."""
    rows = []
    for row in results.get("comparisons") or []:
        points = row.get("effect_over_training") or []
        last = max((point["step"] for point in points), default=0)
        if len(points) < 4:
            continue
        cells = []
        for fraction in (0.25, 0.5, 0.75, 1.0):
            nearest = min(points, key=lambda point: abs(point["step"] - fraction * last))
            cells.append(NONE if abs(nearest["step"] / last - fraction) > 0.07 else sign(nearest))
        rows.append([f"{row['arm']} − {row['against']}", *cells])
    if rows:
        note = "Sign of the mean difference; in parentheses if the interval at that step contains 0."
        yield Table(["sign of the difference", "25%", "50%", "75%", "100%"], rows, note=note)


def sign(point: dict[str, Any]) -> str:
    if point.get("mean") is None:
        return NONE
    mark = "+" if point["mean"] > 0 else "−" if point["mean"] < 0 else "0"
    excludes = point.get("low") is not None and (point["low"] > 0 or point["high"] < 0)
    return mark if excludes else f"({mark})"


def matched_budgets(results: dict[str, Any]) -> Iterator[Table | Paragraph]:
    """The four budgets that a comparison can hold equal, and which of them this one does."""
    arms = {arm["name"]: arm for arm in results.get("arms") or []}
    rows = []
    for row in results.get("comparisons") or []:
        budget, baseline = (arms.get(row[side], {}).get("budget") for side in ("arm", "against"))
        if row.get("role", "claim") != "claim" or not budget or not baseline:
            continue
        cells = []
        for name in BUDGETS:
            if budget.get(name) is None or not baseline.get(name):
                cells.append(NONE)
                continue
            excess = budget[name] / baseline[name] - 1
            equal = abs(excess) <= TOLERANCE
            cells.append(with_interval(row, decimal_places(row, results)) if equal else f"not equal ({excess:+.1%})")
        rows.append([f"{row['arm']} − {row['against']}", *cells])
    if rows:
        note = "The difference is listed under every budget that the arms share within 1%; elsewhere, how much more or less "
        before = (results.get("match") or {}).get("measure") == "seconds"
        how = (
            "measured one arm at a time before the runs"
            if before
            else "of the runs themselves, which trained in parallel"
        )
        note += f"the arm uses. --match holds one budget equal. Seconds are computed from the throughput {how}."
        yield Table(["", *BUDGETS.values()], rows, note=note)
    match = results.get("match") or {}
    for row in match.get("arms") or []:
        yield Paragraph(
            f"Matched by {match['measure']}: {row['key']} of {row['arm']} changed from {row['old']:,} to {row['new']:,}; "
            f"the remaining difference is {row['residual']:+.2%}."
        )


def tuning(results: dict[str, Any]) -> Iterator[Figure | Table | Paragraph]:
    from partwise.comparison.report.figures import ARM_COLORS, draw_tuning

    tuned = results.get("tuning")
    if not tuned:
        return
    ticks = [as_number(value) for value in tuned["values"]]
    numeric = None not in ticks
    x = [float(tick) for tick in ticks if tick is not None] if numeric else [float(i) for i in range(1, len(ticks) + 1)]
    colors = [ARM_COLORS[index % len(ARM_COLORS)] for index in range(len(tuned["arms"]))]
    lines = [(color, list(zip(x, row["means"], strict=True))) for color, row in zip(colors, tuned["arms"], strict=True)]
    if svg := draw_tuning(lines, numeric, "u"):
        legend = [(color, row["arm"]) for color, row in zip(colors, tuned["arms"], strict=True)]
        yield Figure(f"{tuned['key']}", svg, "Mean loss on the held-out text; a star marks the best value.", legend)
    rows = []
    for row in tuned["arms"]:
        where = "inside the range" if row["interior"] else "at the edge of the range: try further values"
        means = [NONE if mean is None else number(mean) for mean in row["means"]]
        rows.append([row["arm"], *means, str(row["best"]), where])
    yield Table(
        ["arm", *tuned["values"], "best", "best value is"], rows, title=f"{tuned['key']}: loss on the held-out text"
    )
    seeds = len(tuned["seeds"])
    yield Paragraph(
        f"Tuned on {seeds} seed{'s' if seeds > 1 else ''} that the test does not use and on the last tenth of the training "
        f"text: {tuned['runs']} runs, {tuned['seconds'] / 60:.1f} minutes. Only the test used the validation split."
    )


def as_number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def replication(results: dict[str, Any]) -> Iterator[Paragraph]:
    row = results.get("replication")
    if row:
        yield Paragraph(f"The winner on fresh seeds {min(row['seeds'])} to {max(row['seeds'])}: {row['sentence']}")


def activation_table(results: dict[str, Any], most: int = 14) -> Iterator[Table]:
    """The sites where activations or gradients differ most between the arms, for one run of each."""
    arms, sites = [arm["name"] for arm in results.get("arms") or []], results.get("activation_statistics") or []

    def ratio(row: dict[str, Any]) -> float:
        nonzero = [value for value in row["values"] if value]
        return max(nonzero) / min(nonzero) if len(nonzero) > 1 else 1.0

    shown = sorted((row for row in sites if ratio(row) >= MIN_FACTOR), key=ratio, reverse=True)[:most]
    rows = []
    for row in shown:
        values = [NONE if value is None else f"{value:.3g}" for value in row["values"]]
        rows.append([row["site"], row["quantity"], *values, f"{ratio(row):.2f}"])
    if rows:
        note = f"The {len(rows)} of {len(sites)} statistics that differ most, by a factor of at least {MIN_FACTOR:g}, in the "
        note += "trained models of the first seed, over the same validation text. A dash: the arm has no such site."
        yield Table(["site", "quantity", *arms, "factor"], rows, note=note, left=2)


def claim(results: dict[str, Any]) -> Iterator[Table]:
    """The published claim under test, and the answer."""
    study = results.get("study")
    if study:
        rows = [["claim", study["claim"]], ["source", study["source"]], ["published result", study["published"]]]
        rows += [["changed here", study["changed"]]] if study["changed"] else []
        rows += [[f"{arm}: expected {expected}", text] for arm, expected, text in study["answers"]]
        yield Table(["", ""], [row for row in rows if row[1]], left=2, kind="facts")


def control_outcome(control: dict[str, Any]) -> str:
    if control["passed"] is None:
        return "no verdict, because a run diverged"
    if control["role"] == "positive":
        power = control.get("power")
        power_text = f"{100 * power:.0f}% power" if power else "power not calibrated"
        return f"positive control {'passed' if control['passed'] else 'failed'} ({power_text})"
    return (
        "negative control passed, no difference" if control["passed"] else "negative control failed, a false difference"
    )


def control_sentence(results: dict[str, Any]) -> str:
    """The outcome of the controls in one sentence; '' without any."""
    outcomes = [f"{control['arm']}: {control_outcome(control)}" for control in results.get("controls") or []]
    failed = [control["role"] for control in results.get("controls") or [] if control["passed"] is False]
    advice = "; note that a negative control fails one time in twenty by chance" if "negative" in failed else ""
    advice = "; do not trust these verdicts" if "positive" in failed else advice
    return f"Controls: {'; '.join(outcomes)}{advice}." if outcomes else ""


def protocol(results: dict[str, Any]) -> Iterator[Table | Paragraph]:
    looks = results.get("looks")
    if not looks:
        yield Paragraph(
            "No looks were planned (a look is an interim analysis at a given number of seeds), so every further look widens "
            "the intervals. --protocol fixes the looks and the stopping rule before the first run."
        )
        return
    rows = [
        ["question", str(results.get("question") or "")],
        ["metric and margin", f"{metric_with_unit(results)}, ±{results.get('margin'):g}"],
        [
            "looks",
            f"at {', '.join(map(str, looks))} seeds, {format_percent(results.get('alpha') or 0.05)} error in total",
        ],
        ["stopping rule", "a claim closes as better, worse or equivalent, or at the last look"],
        [
            "variance",
            {"pair": "of each pair of arms", "residual": "pooled over all arms and seeds"}[results["variance"]],
        ],
        ["claims", str(len([r for r in results["comparisons"] if r.get("role", "claim") == "claim"]))],
    ]
    for control in results.get("controls") or []:
        outcome = (
            "passed: no difference found" if control["passed"] else "failed: a difference found, though there is none"
        )
        if control["role"] == "positive":
            outcome = "passed: effect found" if control["passed"] else "failed: effect missed"
        rows.append([f"{control['role']} control {control['arm']}", outcome])
    if results.get("protocol_hash"):
        rows.append(["hash of the protocol, before the first run", str(results["protocol_hash"])])
    yield Table(["", ""], rows, left=2, kind="facts")

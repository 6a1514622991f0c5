"""Sections on how far a verdict reaches: what was fixed, held equal, tuned and confirmed, and what differs inside."""

from collections.abc import Iterator
from typing import Any

from partwise.comparison.digits import percent
from partwise.comparison.report.blocks import Drawing, Lines, Table
from partwise.comparison.report.cells import NONE, lower, measured, number, places, with_interval

VIEWS = {"tokens": "equal tokens", "parameters": "equal parameters", "flops": "equal FLOPs", "seconds": "equal seconds"}
NEAR = 0.01
DIFFERS = 1.2  # a factor between the arms that is worth a row


def forest(results: dict[str, Any]) -> Iterator[Drawing | Table]:
    """All comparisons at a glance, where there are several."""
    from partwise.comparison.report.figures import draw_forest

    rows = results.get("comparisons") or []
    if len(rows) < 2:
        return
    if svg := draw_forest(rows, results.get("margin") or 0.0, lower(results), "f"):
        note = f"{measured(results)}. The band is the margin; numbers are those of the table."
        yield Drawing("Means and intervals", svg, note)
    kinds = {"null": "control: nothing changed", "planted": "control: a planted effect"}
    table = []
    for index, row in enumerate(rows, start=1):
        cells = [str(index), f"{row['arm']} − {row['against']}", kinds.get(row.get("role") or "", "claim")]
        table.append([*cells, with_interval(row, places(row, results)), row.get("verdict") or "no verdict"])
    yield Table(["", "difference", "", "mean (interval)", "verdict"], table, left=3)


def quarters(results: dict[str, Any]) -> Iterator[Table]:
    """Which way the difference points at 25, 50, 75 and 100 % of training."""
    rows = []
    for row in results.get("comparisons") or []:
        points = row.get("horizons") or []
        last = max((point["step"] for point in points), default=0)
        if len(points) < 4:
            continue
        cells = []
        for share in (0.25, 0.5, 0.75, 1.0):
            near = min(points, key=lambda point: abs(point["step"] - share * last))
            cells.append(NONE if abs(near["step"] / last - share) > 0.07 else sign(near))
        rows.append([f"{row['arm']} − {row['against']}", *cells])
    if rows:
        note = "+ higher, − lower, by the mean; in brackets where the interval at that step holds 0."
        yield Table(["sign of the difference", "25 %", "50 %", "75 %", "100 %"], rows, note=note)


def sign(point: dict[str, Any]) -> str:
    if point.get("mean") is None:
        return NONE
    mark = "+" if point["mean"] > 0 else "−" if point["mean"] < 0 else "0"
    excludes = point.get("low") is not None and (point["low"] > 0 or point["high"] < 0)
    return mark if excludes else f"({mark})"


def four_views(results: dict[str, Any]) -> Iterator[Table | Lines]:
    """The four ways in which a comparison can be fair, and which of them this one is."""
    arms = {arm["name"]: arm for arm in results.get("arms") or []}
    rows = []
    for row in results.get("comparisons") or []:
        mine, theirs = (arms.get(row[side], {}).get("amounts") for side in ("arm", "against"))
        if row.get("role", "claim") != "claim" or not mine or not theirs:
            continue
        cells = []
        for view in VIEWS:
            if mine.get(view) is None or not theirs.get(view):
                cells.append(NONE)
                continue
            off = mine[view] / theirs[view] - 1
            equal = abs(off) <= NEAR
            cells.append(with_interval(row, places(row, results)) if equal else f"not run ({off:+.1%})")
        rows.append([f"{row['arm']} − {row['against']}", *cells])
    if rows:
        note = "A view is held where the arms take as much within 1 %; one that was not run says what the arm takes more or "
        before = (results.get("match") or {}).get("measure") == "seconds"
        how = "measured in turn before the runs" if before else "of the runs, as they trained side by side"
        note += f"less. --match holds one of them. Seconds follow from the rates {how}."
        yield Table(["", *VIEWS.values()], rows, note=note)
    match = results.get("match") or {}
    for found in match.get("arms") or []:
        yield Lines(
            f"Matched by {match['measure']}: {found['key']} of {found['arm']} was {found['old']:,} and is {found['new']:,}; "
            f"{found['residual']:+.2%} remains."
        )


def tuning(results: dict[str, Any]) -> Iterator[Drawing | Table | Lines]:
    from partwise.comparison.report.figures import ARM_COLOURS, draw_tuning

    found = results.get("tuned")
    if not found:
        return
    ticks = [as_number(value) for value in found["values"]]
    numbers = None not in ticks
    at = (
        [float(tick) for tick in ticks if tick is not None] if numbers else [float(i) for i in range(1, len(ticks) + 1)]
    )
    colours = [ARM_COLOURS[index % len(ARM_COLOURS)] for index in range(len(found["arms"]))]
    lines = [
        (colour, list(zip(at, row["means"], strict=True))) for colour, row in zip(colours, found["arms"], strict=True)
    ]
    if svg := draw_tuning(lines, numbers, "u"):
        legend = [(colour, row["arm"]) for colour, row in zip(colours, found["arms"], strict=True)]
        yield Drawing(f"{found['path']}", svg, "Mean loss on the held-out text; a star marks the best value.", legend)
    rows = []
    for row in found["arms"]:
        where = "inside the values tried" if row["inside"] else "at their edge: try further values"
        means = [NONE if mean is None else number(mean) for mean in row["means"]]
        rows.append([row["arm"], *means, str(row["best"]), where])
    yield Table(
        ["arm", *found["values"], "best", "its place"], rows, title=f"{found['path']}: loss on the held-out text"
    )
    seeds = len(found["seeds"])
    yield Lines(
        f"Tuned on {seeds} seed{'s' if seeds > 1 else ''} that the test does not use and on the last tenth of the training "
        f"text: {found['runs']} runs, {found['seconds'] / 60:.1f} minutes. The validation split was read by the test alone."
    )


def as_number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def confirmation(results: dict[str, Any]) -> Iterator[Lines]:
    found = results.get("confirmation")
    if found:
        yield Lines(f"The winner again, on seeds {min(found['seeds'])} to {max(found['seeds'])}: {found['sentence']}")


def insides(results: dict[str, Any], most: int = 14) -> Iterator[Table]:
    """Sites where activations or gradients differ most between the arms, in one run of each."""
    arms, sites = [arm["name"] for arm in results.get("arms") or []], results.get("insides") or []

    def spread(row: dict[str, Any]) -> float:
        known = [value for value in row["values"] if value]
        return max(known) / min(known) if len(known) > 1 else 1.0

    shown = sorted((row for row in sites if spread(row) >= DIFFERS), key=spread, reverse=True)[:most]
    rows = []
    for row in shown:
        values = [NONE if value is None else f"{value:.3g}" for value in row["values"]]
        rows.append([row["site"], row["what"], *values, f"{spread(row):.2f}"])
    if rows:
        note = f"The {len(rows)} of {len(sites)} sites that differ most, by a factor of {DIFFERS:g} or more, after training "
        note += "with the first seed, over the same piece of the validation text. A dash: this arm has no such site."
        yield Table(["site", "", *arms, "factor"], rows, note=note, left=2)


def claim(results: dict[str, Any]) -> Iterator[Table]:
    """The published claim that was checked, and what became of it."""
    found = results.get("claim")
    if found:
        rows = [["claim", found["text"]], ["source", found["source"]], ["published", found["figure"]]]
        rows += [["changed here", found["changed"]]] if found["changed"] else []
        rows += [[f"{arm}: expected {expected}", said] for arm, expected, said in found["answers"]]
        yield Table(["", ""], [row for row in rows if row[1]], left=2, kind="facts")


def what_it_did(control: dict[str, Any]) -> str:
    if control["passed"] is None:
        return "no verdict, as a run diverged"
    if control["role"] == "planted":
        power = control.get("power")
        known = f"expected with {100 * power:.0f} % power" if power else "its power was not calibrated"
        return f"the planted effect was {'found' if control['passed'] else 'missed'} ({known})"
    return "no difference, where there is none" if control["passed"] else "a difference, where there is none"


def control_sentence(results: dict[str, Any]) -> str:
    """What the controls say of the instrument itself; '' without any."""
    said = [f"{control['arm']}: {what_it_did(control)}" for control in results.get("controls") or []]
    failed = [control["role"] for control in results.get("controls") or [] if control["passed"] is False]
    trust = "; mind that a null control fails one time in twenty by chance" if "null" in failed else ""
    trust = "; distrust these verdicts" if "planted" in failed else trust
    return f"Controls: {'; '.join(said)}{trust}." if said else ""


def protocol(results: dict[str, Any]) -> Iterator[Table | Lines]:
    looks = results.get("looks")
    if not looks:
        yield Lines(
            "Looks were not planned: each further look at more seeds pays anew. --protocol fixes them, and the rule for "
            "stopping, before the first run."
        )
        return
    rows = [
        ["question", str(results.get("question") or "")],
        ["metric and margin", f"{measured(results)}, ±{results.get('margin'):g}"],
        [
            "looks",
            f"at {', '.join(map(str, looks))} seeds, {percent(results.get('alpha') or 0.05)} of false claims in all",
        ],
        ["stopping", "a claim ends when it is better, worse or equivalent, and at the last look"],
        ["variance", {"pair": "of each pair of arms", "residual": "over all arms and seeds"}[results["variance"]]],
        ["comparisons counted", str(len([r for r in results["comparisons"] if r.get("role", "claim") == "claim"]))],
    ]
    for control in results.get("controls") or []:
        what = (
            "found no difference where there is none"
            if control["passed"]
            else "called a difference where there is none"
        )
        if control["role"] == "planted":
            what = "found the planted effect" if control["passed"] else "missed the planted effect"
        rows.append([f"control {control['arm']}", f"the instrument {what}"])
    if results.get("protocol"):
        rows.append(["hash, before the first run", str(results["protocol"])])
    yield Table(["", ""], rows, left=2, kind="facts")

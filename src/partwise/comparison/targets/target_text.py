"""Outcomes against a target as sentences, tables and JSON values."""

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Any

from partwise.comparison.stats.number_format import choose_decimals, format_number, format_p, format_percent
from partwise.comparison.stats.rounding import rounding_unit
from partwise.comparison.stats.samples import grubbs, skewness, skewness_p
from partwise.comparison.stats.warnings import OUTLIER_LEVEL, SKEWNESS_LEVEL
from partwise.comparison.targets.runs_needed import runs_needed
from partwise.comparison.targets.target import Entry, Target
from partwise.config import ConfigError

SKEW_ERROR = "5% to 7% of null entries of 3 to 20 runs"
"""How often exponential noise reaches a target at alpha 1%; docs/against-a-target.md simulates it."""

MOST_RUNS = 1000


def headline(entry: Entry, target: Target) -> str:
    """The outcome, and what it follows from."""
    start = f"{entry.name}: {entry.outcome}."
    runs = f"{entry.n} run{'' if entry.n == 1 else 's'}"
    better, worse = ("below", "above") if target.lower_is_better else ("above", "below")
    if not entry.look:
        first = target.looks[0]
        return f"{start} It has {entry.unused} of the {first} runs that the first look needs."
    if entry.p_reached is None or entry.p_missed is None:
        return f"{start} {_no_test(entry)}"
    digits = _digits(entry, target)
    measure = "median" if target.times else "mean"
    if entry.center is None:
        what, joined = f"At least half of {runs} never arrived", "; the median is"
    else:
        what, joined = f"The {measure} of {runs} is {format_number(entry.center, digits)}", ","
    number = f"{target.value:.10g}"
    if entry.outcome == "undecided":
        below, above = (_p(p, target.alpha) for p in (entry.p_reached_adjusted, entry.p_missed_adjusted))
        return f"{start} {what}; neither {better} (p {below}) nor {worse} {number} (p {above}) is shown."
    side = better if entry.outcome == "reached" else worse
    p = entry.p_reached_adjusted if entry.outcome == "reached" else entry.p_missed_adjusted
    return f"{start} {what}{joined} {side} the target of {number} (p {_p(p, target.alpha)})."


def _no_test(entry: Entry) -> str:
    if entry.not_finite:
        have, them = ("has", "it") if entry.not_finite == 1 else ("have", "them")
        return (
            f"{entry.not_finite} of {entry.n} runs {have} no finite value, so there is no mean to judge; without {them} the "
            "entry would look better than it is."
        )
    if entry.n == 1:
        return "One run has no SD: add runs, or give --known-sd with its source."
    return f"Its {entry.n} runs do not vary, so there is no test: give all digits, and no run twice."


def table(entries: Sequence[Entry], target: Target) -> list[list[str]]:
    """One row per entry, with the head first."""
    rows = [
        ["entry", "runs", "median" if target.times else "mean", "SD", "interval", "p reached", "p missed", "outcome"]
    ]
    for entry in entries:
        digits = _digits(entry, target)
        center = "-" if entry.center is None else format_number(entry.center, digits)
        spread = "-" if entry.sd is None else format_number(entry.sd, digits)
        ps = [entry.p_reached_adjusted, entry.p_missed_adjusted]
        row = [entry.name, str(entry.n), center, spread, interval(entry, digits)]
        rows.append([*row, *(_p(p, target.alpha) for p in ps), entry.outcome])
    if target.times:
        rows = [row[:3] + row[4:] for row in rows]
    return rows


def interval(entry: Entry, digits: int) -> str:
    if entry.low is None and entry.high is None:
        return "-"
    low = "no bound" if entry.low is None else format_number(entry.low, digits)
    high = "no bound" if entry.high is None else format_number(entry.high, digits)
    return f"{low} to {high} ({format_percent(1 - entry.confidence, complement=True)})"


def notes(entries: Sequence[Entry], target: Target) -> Iterator[str]:
    """How the outcomes follow, what would decide, and warnings."""
    level = format_percent(target.alpha)
    test = (
        "sign tests of the median, exact for any distribution" if target.times else "t tests, exact for normal values"
    )
    if target.known_sd is not None:
        test = f"normal tests with a known SD of one run of {target.known_sd:.6g} (source: {target.sd_source})"
    yield f"One-sided {test}, at an error of {level} for reached and {level} for missed."
    if len(entries) > 1:
        yield f"{len(entries)} entries: Holm's method keeps each error over all of them; p is adjusted for it."
    if len(target.looks) > 1:
        looks = ", ".join(map(str, target.looks))
        yield f"Looks at {looks} runs: each spends alpha in proportion to its runs; p is adjusted for them."
    for entry in entries:
        yield from _entry_notes(entry, target, target.alpha / len(entries))


def _entry_notes(entry: Entry, target: Target, level: float) -> Iterator[str]:
    """`level` is that of the smallest p of all entries."""
    if entry.look and entry.unused:
        later = [look for look in target.looks if look > entry.n]
        if entry.outcome == "undecided" and later:
            yield f"{entry.name}: {entry.unused} further runs wait for the look at {later[0]}."
        else:
            why = "decided" if entry.outcome != "undecided" else "was the last"
            yield f"{entry.name}: {entry.unused} further runs are not judged, since the look at {entry.n} {why}."
    if entry.p_reached is None:
        return
    if target.times:
        least = math.ceil(-math.log2(level))
        if entry.n < least:
            yield f"{entry.name}: {entry.n} runs cannot decide; {least} runs on one side of the target can."
        if entry.not_finite:
            yield f"{entry.name}: {entry.not_finite} of {entry.n} runs never arrived; each counts as later than any target."
        return
    values = [value for value in entry.values if value is not None]
    if entry.outcome == "undecided" and target.known_sd is None and entry.sd and entry.look >= len(target.looks):
        yield from _would_decide(entry, target)
    if entry.n > 1 and entry.sd is not None and target.known_sd is not None and entry.sd > 2 * target.known_sd:
        yield f"Warning: {entry.name}: the SD of its runs, {entry.sd:.2g}, is over twice the known one."
    if target.known_sd is not None:
        return
    unit = rounding_unit(values)
    if entry.sd is not None and entry.sd < unit:
        yield f"Warning: {entry.name}: the values are rounded to {unit:.3g}, more than their SD; give more digits."
    p_skew, p_outlier = skewness_p(values), grubbs(values)
    if p_skew is not None and p_skew < SKEWNESS_LEVEL:
        yield (
            f"Warning: {entry.name}: its runs are skewed (skewness {skewness(values):.1f}). With a long tail towards the bad "
            f"side, a t test at 1% reaches the target in {SKEW_ERROR}: plan more runs."
        )
    elif p_outlier is not None and p_outlier < OUTLIER_LEVEL:
        yield f"Warning: {entry.name}: one run is an outlier (Grubbs's test, p {_p(p_outlier, OUTLIER_LEVEL)}); inspect it."


def _would_decide(entry: Entry, target: Target) -> Iterator[str]:
    """The runs of a new sample that would decide, if the mean and the SD are as measured."""
    assert entry.center is not None and entry.sd is not None
    distance = abs(entry.center - target.value)
    try:
        needed = runs_needed(distance, entry.sd, target.alpha) if distance else MOST_RUNS + 1
    except ConfigError:
        needed = MOST_RUNS + 1
    count = f"about {needed}" if needed <= MOST_RUNS else f"more than {MOST_RUNS}"
    yield (
        f"{entry.name}: if the mean and the SD are as measured, {count} new runs, judged alone, decide in 4 of 5 cases. "
        "Adding runs to these and judging again needs --looks, planned before the first."
    )


def document(entries: Sequence[Entry], target: Target, read: str | None, rule: dict[str, Any] | None) -> dict[str, Any]:
    """JSON values, as `partwise verdict --target --json` prints them."""
    return {
        "question": "target",
        "target": {**dataclasses.asdict(target), "looks": list(target.looks)},
        "entries": [{**dataclasses.asdict(entry), "values": list(entry.values)} for entry in entries],
        "notes": list(notes(entries, target)),
        "rule": rule,
        "read": read,
    }


def _digits(entry: Entry, target: Target) -> int:
    """The decimals of an entry's numbers; times have two."""
    shown = [value for value in (entry.low, entry.high, entry.center) if value is not None]
    half = max(
        (abs(value - (entry.center or 0.0)) for value in (entry.low, entry.high) if value is not None), default=0.0
    )
    if target.times:
        return 2
    return choose_decimals(half, shown, target.value)


def _p(p: float | None, alpha: float) -> str:
    return "-" if p is None else format_p(p, alpha)

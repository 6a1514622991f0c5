"""The audit of a search as sentences, a table and JSON values."""

import dataclasses
from collections.abc import Iterator
from typing import Any

from partwise.comparison.search.audit import Audit
from partwise.comparison.stats.number_format import choose_decimals, format_number, format_p
from partwise.messages import quantity

SURE = 0.05
ENOUGH_RUNS = 4
"""More runs of the last kept commit, which with its own give an SD from four degrees of freedom."""


def headline(audit: Audit) -> list[str]:
    """What was kept, beside what would be if nothing helped; or what to run, if the noise is not known."""
    kept, noise = len(audit.kept), audit.noise
    start = f"The search kept {kept} of {quantity(audit.candidates, 'candidate')}"
    if noise is None:
        commit = f" {audit.repeat_commit}" if audit.repeat_commit else ", the one kept last,"
        return [
            f"{start}. No run was repeated, so the noise is not known, and how many of them chance would keep is not said.",
            f"Run commit{commit} {ENOUGH_RUNS} more times unchanged, each time with another seed; add a line with the same "
            "commit for each, and ask again. Or give --known-sd with its --sd-source.",
        ]
    assert audit.expected is not None and audit.low is not None and audit.high is not None
    chance = f"{audit.expected:.1f} ({audit.low} to {audit.high})"
    if not kept:
        return [f"{start}. A search in which nothing helps would keep {chance} of these."]
    if kept > audit.high:
        conclusion = "More were kept than chance explains; which of them help is not shown."
    else:
        conclusion = "It kept no more than chance does."
    return [f"{start}. A search in which nothing helps would keep {chance} of these. {conclusion}", _gain(audit)]


def _gain(audit: Audit) -> str:
    assert audit.noise is not None
    assert audit.chance_gain is not None and audit.chance_low is not None and audit.chance_high is not None
    decimals = _decimals(audit)
    gain, chance, low, high = (
        format_number(each, decimals) for each in (audit.gain, audit.chance_gain, audit.chance_low, audit.chance_high)
    )
    if audit.gain > audit.chance_high:
        end = "the gain is more than that."
    elif audit.gain > 0:
        end = "the gain is no more than that."
    else:
        end = "there is no gain."
    return (
        f"The last kept run is {gain} better than the first. With nothing but noise, the best of these would be {chance} "
        f"({low} to {high}) better: {end}"
    )


def notes(audit: Audit) -> Iterator[str]:
    """Where the noise comes from, what was counted, and what the numbers do not say."""
    noise = audit.noise
    if noise is not None:
        df = "" if noise.df is None else f", {quantity(noise.df, 'degree')} of freedom"
        yield f"SD of a run: {format_number(noise.sd, choose_decimals(noise.sd, ()))} (from {noise.source}{df})."
        if noise.df is not None and noise.df < ENOUGH_RUNS:
            yield f"Warning: the SD is from few repeats; run commit {audit.repeat_commit} some more times."
        if audit.repeats > audit.candidates:
            yield "Warning: most lines have the commit of another line and count as repeats; give each change its own commit."
        far = audit.candidates - (audit.contenders or 0)
        if far:
            was = "is" if far == 1 else "are"
            yield f"{quantity(far, 'candidate')} {was} worse by far more than the noise: chance would keep none of them."
        unsure = [kept for kept in audit.kept if kept.p is not None and kept.p > SURE]
        if unsure:
            yield (
                f"{len(unsure)} of {quantity(len(audit.kept), 'kept candidate')} may well be noise: p, of one run against "
                f"one, is above {SURE:g}. A small p shows little either, since it belongs to the best of many runs."
            )
    worse = sum(kept.gain <= 0 for kept in audit.kept)
    if worse:
        yield f"{quantity(worse, 'kept candidate')} had no better value than the best before."
    counted = []
    if audit.crashes:
        counted.append(f"{quantity(audit.crashes, 'line')} without a value")
    if audit.repeats:
        counted.append(quantity(audit.repeats, "repeat"))
    if counted:
        yield f"Not counted as candidates: the first run, {', '.join(counted)}."


def table(audit: Audit) -> list[list[str]]:
    """One row per kept candidate, with the head first."""
    decimals = _decimals(audit)
    rows = [["kept", "value", "gain", "p", "description"]]
    for kept in audit.kept:
        p = "-" if kept.p is None else format_p(kept.p, SURE)
        value, gain = format_number(kept.value, decimals), format_number(kept.gain, decimals)
        rows.append([kept.commit or f"line {kept.line}", value, gain, p, kept.description])
    return rows


def document(audit: Audit, read: str, remarks: tuple[str, ...]) -> dict[str, Any]:
    """JSON values, as `partwise verdict --search --json` prints them."""
    fields = dataclasses.asdict(audit)
    return {
        "question": "search",
        "search": {**fields, "kept": list(fields["kept"])},
        "notes": [*headline(audit), *notes(audit), *remarks],
        "read": read,
    }


def _decimals(audit: Audit) -> int:
    if audit.noise is not None:
        return choose_decimals(audit.noise.sd, ())
    return choose_decimals(abs(audit.gain), ())

"""Whether entries reach a target: one-sided tests both ways, Holm's method over the entries, planned looks.

"Reached" and "missed" are two families of hypotheses with an error rate of alpha each. The true center is on one side of the
target only, so an entry can be the victim of one of the two errors, and its interval has a confidence of 1 - 2 alpha.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from partwise.comparison.stats.failure import has_failed
from partwise.comparison.stats.families import holm, holm_levels
from partwise.comparison.stats.group_sequential import check_looks, nominal_level, repeated_p
from partwise.comparison.targets.one_sample import OneSample, mean_against, median_against
from partwise.config import ConfigError

Outcome = Literal["reached", "missed", "undecided"]

DEFAULT_ALPHA = 0.01
LARGEST_ALPHA = 0.4


@dataclass(frozen=True)
class Target:
    """A number that the mean, or the median time, of an entry must pass. Raises ConfigError for settings that do not fit."""

    value: float
    alpha: float = DEFAULT_ALPHA
    """The error of "reached" over all entries and looks, and that of "missed"."""
    lower_is_better: bool = True
    looks: tuple[int, ...] = ()
    """Numbers of runs at which the entries are judged; empty: all runs at once."""
    known_sd: float | None = None
    sd_source: str = ""
    """Where the known SD comes from; the verdict repeats it."""
    times: bool = False
    """Whether the values are times, infinite for runs that never arrived, which are judged by their median."""

    def __post_init__(self) -> None:
        if not math.isfinite(self.value):
            raise ConfigError(f"--target {self.value:g}: expected a finite number, such as 3.28")
        if not 1e-9 <= self.alpha <= LARGEST_ALPHA:
            raise ConfigError(f"--alpha {self.alpha:g}: expected an error from 1e-9 to {LARGEST_ALPHA}, such as 0.01")
        if self.looks:
            check_looks(self.looks)
        if self.known_sd is not None:
            if not (math.isfinite(self.known_sd) and self.known_sd > 0):
                raise ConfigError(f"--known-sd {self.known_sd:g}: expected the SD of single runs, a positive number")
            if not self.sd_source.strip():
                raise ConfigError(
                    f"--known-sd {self.known_sd:g}: say where it comes from, as in --sd-source '40 runs of the baseline'; "
                    "a known SD that is too small makes false claims"
                )
        elif self.sd_source:
            raise ConfigError(f"--sd-source {self.sd_source!r}: give the SD itself as --known-sd")
        if self.looks and self.known_sd is not None:
            raise ConfigError("--looks with --known-sd: the levels of looks are those of t tests; leave out one")
        if self.times and not self.lower_is_better:
            raise ConfigError("--higher-is-better with --time: a time is better if it is lower")
        if self.times and (self.looks or self.known_sd is not None):
            option = "--looks" if self.looks else "--known-sd"
            raise ConfigError(f"{option} with --time: the median of times is judged by a sign test at one look")


@dataclass(frozen=True, kw_only=True)
class Entry:
    """The runs of one entry against the target, and the outcome."""

    name: str
    outcome: Outcome
    n: int
    """The runs that were judged."""
    unused: int
    """Runs after the look that decided, or before the next look."""
    look: int
    """The number of the look, from 1; 0 before the first."""
    not_finite: int
    """Runs without a finite value, or that never arrived."""
    center: float | None
    """The mean, or the median of times; None if runs have no finite value."""
    sd: float | None
    low: float | None
    """The interval's bounds; None if there is none on that side."""
    high: float | None
    confidence: float
    p_reached: float | None
    """The one-sided p that the center is not better than the target, adjusted for looks; None without a test."""
    p_missed: float | None
    p_reached_adjusted: float | None
    """Adjusted for the number of entries, too (Holm)."""
    p_missed_adjusted: float | None
    values: tuple[float | None, ...]
    """The judged values; None for one that is not finite."""


@dataclass(frozen=True)
class _Measured:
    """One entry at its latest look."""

    test: OneSample | None
    n: int
    look: int
    p: tuple[float | None, float | None]
    """That it is not better, and not worse, than the target."""


def judge_entries(values: Mapping[str, Sequence[float]], target: Target) -> list[Entry]:
    """The outcome of every entry. With looks, each is judged at the looks it has runs for, until one decides.

    Holm's method judges all entries together at each look, given the p-values of decided entries at the look that decided
    them and of the others at this look; an entry before its first look counts with a p of 1. Raises ConfigError if no entry
    has enough runs.
    """
    looks = target.looks or (0,)
    measured = {name: _Measured(None, 0, 0, (None, None)) for name in values}
    outcomes: dict[str, Outcome] = dict.fromkeys(values, "undecided")
    levels = dict.fromkeys(values, target.alpha / len(values))
    adjusted: list[tuple[float, float]] = [(1.0, 1.0)] * len(values)
    for look, count in enumerate(looks, start=1):
        open_entries = [name for name in values if outcomes[name] == "undecided" and len(values[name]) >= count]
        if not open_entries:
            break
        measured |= {name: _measure(values[name][: count or None], target, look) for name in open_entries}
        outcomes, levels, adjusted = _decide(measured, target.alpha)
    if not any(each.look for each in measured.values()):
        most = max(map(len, values.values()))
        raise ConfigError(
            f"--looks {','.join(map(str, looks))}: the first look needs {looks[0]} runs, and there are {most}"
        )
    return [
        _entry(name, values[name], target, measured[name], outcomes[name], levels[name], adjusted[index])
        for index, name in enumerate(values)
    ]


def _measure(values: Sequence[float], target: Target, look: int) -> _Measured:
    failed = any(has_failed(value, None, target.lower_is_better) for value in values)
    if failed and not target.times:
        return _Measured(None, len(values), look, (None, None))
    test = median_against(values, target.value) if target.times else mean_against(values, target.value, target.known_sd)
    sides = (test.p_below, test.p_above) if target.lower_is_better else (test.p_above, test.p_below)
    return _Measured(test, len(values), look, (_repeated(sides[0], target, look), _repeated(sides[1], target, look)))


def _repeated(p: float | None, target: Target, look: int) -> float | None:
    """The one-sided p adjusted for the looks: half the repeated p of the two-sided test, whose boundary is symmetric."""
    if p is None or len(target.looks) < 2:
        return p
    return repeated_p(2 * p, target.looks, look) / 2 if p < 0.5 else 1.0


def _decide(
    measured: Mapping[str, _Measured], alpha: float
) -> tuple[dict[str, Outcome], dict[str, float], list[tuple[float, float]]]:
    """The outcomes, the levels of the intervals, and the p-values adjusted by Holm's method in each family."""
    families = [
        [1.0 if p is None else p for p in side] for side in zip(*(each.p for each in measured.values()), strict=True)
    ]
    adjusted, levels = [holm(p) for p in families], [holm_levels(p, alpha) for p in families]
    outcomes: dict[str, Outcome] = {}
    shown: dict[str, float] = {}
    for index, name in enumerate(measured):
        reached, missed = (p[index] <= alpha for p in adjusted)
        outcomes[name] = "reached" if reached else "missed" if missed else "undecided"
        of_both = levels[0][index], levels[1][index]
        shown[name] = of_both[0] if reached else of_both[1] if missed else min(of_both)
    return outcomes, shown, list(zip(*adjusted, strict=True))


def _entry(
    name: str,
    values: Sequence[float],
    target: Target,
    measured: _Measured,
    outcome: Outcome,
    level: float,
    adjusted: tuple[float, float],
) -> Entry:
    used = tuple(None if has_failed(value, None, target.lower_is_better) else value for value in values[: measured.n])
    test, (p_reached, p_missed) = measured.test, measured.p
    low = high = None
    if test is not None:
        low, high = test.interval(nominal_level(target.looks, measured.look, 2 * level) / 2)
    entry = Entry(
        name=name,
        outcome=outcome,
        n=measured.n,
        unused=len(values) - measured.n,
        look=measured.look,
        not_finite=sum(value is None for value in used),
        center=_finite(test.center if test else None),
        sd=test.spread if test else None,
        low=_finite(low),
        high=_finite(high),
        confidence=1 - 2 * level,
        p_reached=p_reached,
        p_missed=p_missed,
        p_reached_adjusted=adjusted[0],
        p_missed_adjusted=adjusted[1],
        values=used,
    )
    return replace(entry, p_reached_adjusted=None, p_missed_adjusted=None) if p_reached is None else entry


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None

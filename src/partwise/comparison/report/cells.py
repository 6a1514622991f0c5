"""The text of the report's table cells: differences, intervals and proportions."""

from typing import Protocol

from partwise.comparison.results import Proportion, Results
from partwise.comparison.stats.effect import Effect
from partwise.comparison.stats.number_format import choose_decimals, format_number, format_percent
from partwise.comparison.stats.verdict_text import seed_count
from partwise.plots.cells import NONE, count, percent


class Interval(Protocol):
    """A mean with its interval; None if unknown."""

    @property
    def mean(self) -> float | None: ...
    @property
    def low(self) -> float | None: ...
    @property
    def high(self) -> float | None: ...


ADJUSTED = (
    "The last interval has the verdict's level; the others are adjusted for all differences by Bonferroni's method."
)
"""A note on intervals of several differences, each at several steps."""


def decimal_places(effect: Effect) -> int:
    if effect.low is None or effect.high is None:
        return 4
    return choose_decimals((effect.high - effect.low) / 2, (effect.low, effect.high), effect.margin)


def number(value: float | None, digits: int = 4) -> str:
    return NONE if value is None else format_number(value, digits)


def seed_counts(results: Results) -> list[str]:
    """The seeds of each arm, `8 (5 judged)` if its verdicts are from fewer; [] if all are equal and judged."""
    cells = [seed_count(arm.name, len(arm.trials), results.effects) for arm in results.arms]
    return [] if len({*cells}) == 1 and cells[0].isdecimal() else cells


def with_relative_change(value: float | None, base: float | None) -> str:
    if value is None or not base or value == base:
        return count(value)
    return f"{count(value)} ({100 * (value / base - 1):+.1f}%)"


def confidence(effect: Effect) -> str:
    """The confidence level of the interval, over all planned looks if there are any."""
    return format_percent(effect.alpha, complement=True)


def with_interval(row: Interval, digits: int) -> str:
    if row.low is None or row.high is None:
        return number(row.mean, digits)
    return f"{number(row.mean, digits)} ({format_number(row.low, digits)} to {format_number(row.high, digits)})"


def fraction_interval(found: Proportion | None) -> str:
    if not found or found.proportion is None:
        return NONE
    if found.low is None or found.high is None:
        return percent(found.proportion)
    return f"{percent(found.proportion)} ({100 * found.low:.2f} to {100 * found.high:.2f})"

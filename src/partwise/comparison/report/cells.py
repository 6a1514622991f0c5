"""The text of the report's table cells: numbers, percentages and intervals, with a dash for unknown values."""

import json
from typing import Any, Protocol

from partwise.comparison.results import Proportion
from partwise.comparison.stats.effect import Effect
from partwise.comparison.stats.number_format import choose_decimals, format_number, format_percent

NONE = "–"
"""An unknown value."""


class Interval(Protocol):
    """A mean with its interval; None if unknown."""

    @property
    def mean(self) -> float | None: ...
    @property
    def low(self) -> float | None: ...
    @property
    def high(self) -> float | None: ...


def decimal_places(effect: Effect) -> int:
    if effect.low is None or effect.high is None:
        return 4
    return choose_decimals((effect.high - effect.low) / 2, (effect.low, effect.high), effect.margin)


def number(value: float | None, digits: int = 4) -> str:
    return NONE if value is None else format_number(value, digits)


def count(value: float | None) -> str:
    return NONE if value is None else f"{value:,.0f}"


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


def percent(value: float | None) -> str:
    return NONE if value is None else f"{100 * value:.2f}%"


def fraction_interval(found: Proportion | None) -> str:
    if not found or found.proportion is None:
        return NONE
    if found.low is None or found.high is None:
        return percent(found.proportion)
    return f"{percent(found.proportion)} ({100 * found.low:.2f} to {100 * found.high:.2f})"


def format_value(value: Any) -> str:
    """A configuration value on one line."""
    if value is None:
        return NONE
    if isinstance(value, str):
        return value
    return (
        f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) and value > 9999 else json.dumps(value)
    )


def capitalize_first(text: str) -> str:
    return text[:1].upper() + text[1:]

"""The text of the report's table cells: numbers, percentages and intervals, with a dash for unknown values."""

import json
import math
from collections.abc import Sequence
from typing import Any

from partwise.comparison.stats.number_format import choose_decimals, format_number, format_percent

NONE = "–"
"""An unknown value."""


def lower_is_better(results: dict[str, Any]) -> bool:
    return results.get("lower_is_better") is not False


def metric_with_unit(results: dict[str, Any]) -> str:
    """The metric and its unit."""
    return ", ".join(filter(None, (results.get("metric") or "value", results.get("unit"))))


def mean(arm: dict[str, Any]) -> float | None:
    """The mean over seeds; None if one diverged, since averaging the others would hide it."""
    values = arm.get("values") or []
    return math.fsum(values) / len(values) if values and None not in values else None


def sd(arm: dict[str, Any]) -> float | None:
    values, center = arm.get("values") or [], mean(arm)
    if center is None or len(values) < 2:
        return None
    return math.hypot(*(value - center for value in values)) / math.sqrt(len(values) - 1)


def decimal_places(row: dict[str, Any], results: dict[str, Any]) -> int:
    if row.get("low") is None or row.get("high") is None:
        return 4
    return choose_decimals((row["high"] - row["low"]) / 2, (row["low"], row["high"]), results.get("margin") or 0.0)


def number(value: float | None, digits: int = 4) -> str:
    return NONE if value is None else format_number(value, digits)


def count(value: float | None) -> str:
    return NONE if value is None else f"{value:,.0f}"


def with_relative_change(value: float | None, base: float | None) -> str:
    if value is None or not base or value == base:
        return count(value)
    return f"{count(value)} ({100 * (value / base - 1):+.1f}%)"


def confidence(row: dict[str, Any]) -> str:
    """The confidence level of the interval, over all planned looks if there are any."""
    alpha = row.get("total_alpha") if row.get("looks") else row.get("alpha")
    return format_percent(alpha, complement=True) if alpha else ""


def with_interval(row: dict[str, Any], digits: int) -> str:
    if row.get("low") is None or row.get("high") is None:
        return number(row.get("mean"), digits)
    return f"{number(row.get('mean'), digits)} ({format_number(row['low'], digits)} to {format_number(row['high'], digits)})"


def percent(value: float | None) -> str:
    return NONE if value is None else f"{100 * value:.2f}%"


def fraction_interval(found: dict[str, Any] | None) -> str:
    if not found or found.get("proportion") is None:
        return NONE
    if found.get("low") is None or found.get("high") is None:
        return percent(found["proportion"])
    return f"{percent(found['proportion'])} ({100 * found['low']:.2f} to {100 * found['high']:.2f})"


def item_or_none(values: Sequence[Any] | None, index: int) -> Any:
    return values[index] if values and index < len(values) else None


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

"""How the report writes its numbers: what a cell of a table says, and what it says where nothing is known."""

import json
import math
from collections.abc import Sequence
from typing import Any

from partwise.comparison.digits import decimals, percent, show

NONE = "–"
"""Stands wherever a number is not known."""


def lower(results: dict[str, Any]) -> bool:
    return results.get("lower_is_better") is not False


def measured(results: dict[str, Any]) -> str:
    """The metric and its unit."""
    return ", ".join(filter(None, (results.get("metric") or "value", results.get("unit"))))


def mean(arm: dict[str, Any]) -> float | None:
    """Over the seeds; None where one diverged, as a mean over the others would hide it."""
    values = arm.get("values") or []
    return math.fsum(values) / len(values) if values and None not in values else None


def sd(arm: dict[str, Any]) -> float | None:
    values, middle = arm.get("values") or [], mean(arm)
    if middle is None or len(values) < 2:
        return None
    return math.hypot(*(value - middle for value in values)) / math.sqrt(len(values) - 1)


def places(row: dict[str, Any], results: dict[str, Any]) -> int:
    if row.get("low") is None or row.get("high") is None:
        return 4
    return decimals((row["high"] - row["low"]) / 2, (row["low"], row["high"]), results.get("margin") or 0.0)


def number(value: float | None, digits: int = 4) -> str:
    return NONE if value is None else show(value, digits)


def count(value: float | None) -> str:
    return NONE if value is None else f"{value:,.0f}"


def relative(value: float | None, base: float | None) -> str:
    if value is None or not base or value == base:
        return count(value)
    return f"{count(value)} ({100 * (value / base - 1):+.1f} %)"


def confidence(row: dict[str, Any]) -> str:
    """Of the interval: over all planned looks together, where there are any."""
    alpha = row.get("total_alpha") if row.get("looks") else row.get("alpha")
    return percent(alpha, complement=True) if alpha else ""


def with_interval(row: dict[str, Any], digits: int) -> str:
    if row.get("low") is None or row.get("high") is None:
        return number(row.get("mean"), digits)
    return f"{number(row.get('mean'), digits)} ({show(row['low'], digits)} to {show(row['high'], digits)})"


def share(value: float | None) -> str:
    return NONE if value is None else f"{100 * value:.2f} %"


def share_interval(found: dict[str, Any] | None) -> str:
    if not found or found.get("share") is None:
        return NONE
    if found.get("low") is None or found.get("high") is None:
        return share(found["share"])
    return f"{share(found['share'])} ({100 * found['low']:.2f} to {100 * found['high']:.2f})"


def pick(values: Sequence[Any] | None, index: int) -> Any:
    return values[index] if values and index < len(values) else None


def plain(value: Any) -> str:
    """A configuration's value on one line."""
    if value is None:
        return NONE
    if isinstance(value, str):
        return value
    return (
        f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) and value > 9999 else json.dumps(value)
    )


def capital(text: str) -> str:
    return text[:1].upper() + text[1:]

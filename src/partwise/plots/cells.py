"""The text of cells on pages: numbers, percentages and settings, with a dash for unknown values."""

import json
from typing import Any

NONE = "–"
"""An unknown value."""


def count(value: float | None) -> str:
    return NONE if value is None else f"{value:,.0f}"


def percent(value: float | None) -> str:
    return NONE if value is None else f"{100 * value:.2f}%"


def format_value(value: Any) -> str:
    """A configuration value on one line, floats with six significant digits."""
    if value is None:
        return NONE
    if isinstance(value, str):
        return value
    if isinstance(value, int) and not isinstance(value, bool) and value > 9999:
        return f"{value:,}"
    return json.dumps(round_floats(value))


def round_floats(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {key: round_floats(item) for key, item in value.items()}
    return [round_floats(item) for item in value] if isinstance(value, list | tuple) else value


def capitalize_first(text: str) -> str:
    return text[:1].upper() + text[1:]

"""How numbers are shown: never so rounded that a bound seems to lie where it does not."""

import math
from collections.abc import Sequence


def decimals(half_width: float, values: Sequence[float], margin: float = 0.0) -> int:
    """How many decimals to show: two digits of the half width, at least 4, and never so few that one of `values`
    would be shown as exactly 0 or the margin while lying beside it."""
    start = 4
    if 0 < half_width < math.inf:
        start = max(start, min(10, 1 - math.floor(math.log10(half_width))))
    marks = (0.0, margin, -margin)
    for places in range(start, 20):
        if not any(float(f"{v:.{places}f}") == mark != v for v in values for mark in marks):
            return places
    return 20


def show(value: float, places: int) -> str:
    """`value` with that many decimals; without them where they would hide it or say nothing."""
    text = f"{value:.{places}f}"
    if abs(value) >= 1e9 or (value != 0 and float(text) == 0):
        return f"{value:.6g}"
    return text.removeprefix("-") if value == 0 else text


def percent(probability: float, complement: bool = False) -> str:
    """0.05 -> '5 %', or its complement '95 %', to three digits of the smaller one: never a false '100 %'."""
    places = max(0, 2 - math.floor(math.log10(100 * probability))) if probability > 0 else 0
    text = f"{100 * (1 - probability) if complement else 100 * probability:.{places}f}"
    return (text.rstrip("0").rstrip(".") if "." in text else text) + " %"


def show_p(p: float, alpha: float) -> str:
    """A p value with two digits, or as many as it takes to stand on the right side of alpha."""
    if p < 0.0001 <= alpha:
        return "<0.0001"
    texts = (f"{p:.{digits}g}" for digits in range(2, 18))
    return next((text for text in texts if (float(text) < alpha) == (p < alpha)), f"{p!r}")

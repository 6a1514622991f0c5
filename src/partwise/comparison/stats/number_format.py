"""Number formatting that never rounds an interval's bound onto or across zero, the margin or alpha."""

import math
from collections.abc import Sequence


def choose_decimals(half_width: float, values: Sequence[float], margin: float = 0.0) -> int:
    """Number of decimals to show: two digits of the half-width, at least 4, and enough that none of `values` reads as
    exactly 0 or the margin unless it is."""
    start = 4
    if 0 < half_width < math.inf:
        start = max(start, min(10, 1 - math.floor(math.log10(half_width))))
    thresholds = (0.0, margin, -margin)
    for digits in range(start, 20):
        rounded = [float(f"{value:.{digits}f}") for value in values]
        if not any(r in thresholds and r != value for r, value in zip(rounded, values, strict=True)):
            return digits
    return 20


def format_number(value: float, digits: int) -> str:
    """`value` with `digits` decimals; 2 significant digits if those would read as 0, and 6 if `value` is 1e9 or more.

    Powers of ten are for values of 1e9 or more and below 1e-6: few readers of a table take in -5.4e-05 at a glance.
    """
    text = f"{value:.{digits}f}"
    if abs(value) >= 1e9:
        return f"{value:.6g}"
    if value != 0 and float(text) == 0:
        decimals = 1 - math.floor(math.log10(abs(value)))
        return f"{value:.{decimals}f}" if abs(value) >= 1e-6 else f"{value:.2g}"
    return text.removeprefix("-") if value == 0 else text


def format_percent(probability: float, complement: bool = False) -> str:
    """0.05 -> '5%', or its complement '95%', to three digits of `probability`, so 99.99% never reads as '100%'."""
    digits = max(0, 2 - math.floor(math.log10(100 * probability))) if probability > 0 else 0
    text = f"{100 * (1 - probability) if complement else 100 * probability:.{digits}f}"
    return (text.rstrip("0").rstrip(".") if "." in text else text) + "%"


def format_p(p: float, alpha: float) -> str:
    """A p-value with two significant digits, or as many as keep it on the correct side of alpha."""
    if p < 0.0001 <= alpha:
        return "<0.0001"
    texts = (f"{p:.{digits}g}" for digits in range(2, 18))
    return next((text for text in texts if (float(text) < alpha) == (p < alpha)), f"{p!r}")

"""The unit that results were rounded to, which limits what equal results show."""

import math
from collections.abc import Sequence
from decimal import Decimal
from fractions import Fraction

from partwise.comparison.stats.samples import ROUNDING

MOST_PARTS = 10_000
"""Fractions k / n, such as accuracies of n answers, are recognized up to this n."""

EXACT_DIGITS = 15
"""Decimals of a magnitude of 1 that any float64 value keeps: results with as many or more were not rounded."""


def rounding_unit(values: Sequence[float]) -> float:
    """The unit that finite `values` were rounded to: all are multiples of it. 0 for the full precision of float64.

    It is the largest of 10^-k and 1 / n, with n up to 10,000, that fits.
    """
    scale = max(map(abs, values))
    unit = max(_decimal_unit(values), _fraction_unit(values))
    return unit if unit > scale * 10.0**-EXACT_DIGITS else 0.0


def _decimal_unit(values: Sequence[float]) -> float:
    exponents = [Decimal(repr(float(value))).normalize().as_tuple().exponent for value in values if value]
    return 10.0 ** min(int(exponent) for exponent in exponents) if exponents else 0.0


def _fraction_unit(values: Sequence[float]) -> float:
    """1 / n, if all values lie within 0..1 and are fractions with the common denominator n; else 0."""
    parts = 1
    for value in values:
        fraction = Fraction(value).limit_denominator(MOST_PARTS)
        if not 0 <= value <= 1 or abs(value - float(fraction)) > ROUNDING * value:
            return 0.0
        parts = math.lcm(parts, fraction.denominator)
        if parts > MOST_PARTS:
            return 0.0
    return 1 / parts

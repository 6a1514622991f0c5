"""Tests of one sample against a number, one-sided in both directions: Student's t, a known SD, and the sign test."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from scipy import special

from partwise.comparison.stats.samples import mean, sd, t_critical, t_sf


@dataclass(frozen=True)
class OneSample:
    """The center of a sample, and the p-values that the true center is not below, and not above, a number."""

    center: float
    spread: float | None
    """The SD of the runs; None for one run, and for times."""
    p_below: float | None
    """None if there is no test."""
    p_above: float | None
    error: float | None = None
    """The standard error; None for the sign test."""
    df: float | None = None
    ordered: tuple[float, ...] = ()
    """The sorted values, for the interval of the median."""

    def interval(self, level: float) -> tuple[float | None, float | None]:
        """Bounds that the true center exceeds, and falls below, each with an error of at most `level`; None: no bound."""
        if self.ordered:
            return median_interval(self.ordered, level)
        if self.error is None or self.df is None:
            return None, None
        half = t_critical(self.df, 2 * level) * self.error
        return self.center - half, self.center + half


def mean_against(values: Sequence[float], number: float, known_sd: float | None = None) -> OneSample:
    """One-sided t tests of the mean of finite values, exact if they are normal; with `known_sd`, normal tests.

    A single value, and values that do not vary, give a test only with a known SD.
    """
    n, center = len(values), mean(values)
    spread = sd(values, max(map(abs, values))) if n > 1 else None
    error = (known_sd if known_sd is not None else spread or 0.0) / math.sqrt(n)
    if not error:
        return OneSample(center, spread, None, None)
    df = math.inf if known_sd is not None else n - 1.0
    t = (center - number) / error
    return OneSample(center, spread, t_sf(df, -t), t_sf(df, t), error, df)


def median_against(values: Sequence[float], number: float) -> OneSample:
    """One-sided sign tests of the median, exact for any distribution; infinite values are runs that never arrived.

    A run exactly at the number counts for neither side.
    """
    ordered = tuple(sorted(math.inf if math.isnan(value) else value for value in values))
    n = len(ordered)
    below, above = sum(value < number for value in ordered), sum(value > number for value in ordered)
    middle = ordered[(n - 1) // 2], ordered[n // 2]
    return OneSample(sum(middle) / 2, None, binomial_tail(below, n), binomial_tail(above, n), ordered=ordered)


def binomial_tail(successes: int, n: int) -> float:
    """P(X >= successes) for X ~ Binomial(n, 1/2)."""
    return float(special.bdtrc(successes - 1, n, 0.5)) if successes else 1.0


def median_interval(ordered: Sequence[float], level: float) -> tuple[float | None, float | None]:
    """Order statistics that bound the median, each with an error of at most `level`; None if the sample is too small.

    The j-th smallest of n values exceeds the median with probability P(Binomial(n, 1/2) < j) (Hahn & Meeker 1991).
    """
    n = len(ordered)
    rank = sum(special.bdtr(j - 1, n, 0.5) <= level for j in range(1, n + 1))
    return (ordered[rank - 1], ordered[n - rank]) if rank else (None, None)

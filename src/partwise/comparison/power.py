"""Before the runs: which difference a number of seeds can show, and how many seeds a difference needs."""

import bisect
import math
from collections.abc import Callable

import numpy as np
from scipy import special

from partwise.config import ConfigError

MOST_SEEDS = 1_000_000
"""A plan that needs more seeds than this is refused."""


def smallest_detectable(sd: float, n: int, correlation: float = 0.0, alpha: float = 0.05, power: float = 0.8) -> float:
    """The smallest true difference that `n` paired seeds show with probability `power`, in the unit of `sd`.

    To show it is to get an interval that excludes 0. `sd` is the seed SD of each arm; a difference then has the SD
    sd sqrt(2 (1 - correlation)). Solved from the noncentral t distribution. Raises ConfigError for impossible values.
    """
    _check(sd, correlation, alpha, power)
    if not 2 <= n <= MOST_SEEDS:
        raise ConfigError(f"n={n}: expected a number of paired seeds from 2 to {MOST_SEEDS}")
    from scipy.optimize import brentq

    high = 2.0
    while _power(high, n, alpha) < power:
        high *= 2
    noncentrality = float(brentq(lambda x: _power(x, n, alpha) - power, 0.0, high, xtol=1e-12, rtol=1e-12))
    return noncentrality * sd * math.sqrt(2 * (1 - correlation) / n)


def seeds_needed(effect: float, sd: float, correlation: float = 0.0, alpha: float = 0.05, power: float = 0.8) -> int:
    """The fewest paired seeds that show a true difference `effect` with probability `power`.

    The inverse of `smallest_detectable`. Raises ConfigError for impossible values or a plan of over a million seeds.
    """
    _check(sd, correlation, alpha, power)
    spread = sd * math.sqrt(2 * (1 - correlation))

    def shows(n: int) -> bool:
        return spread == 0 or _power(min(abs(effect) / spread, 1e100) * math.sqrt(n), n, alpha) >= power

    return _fewest(shows, f"effect={effect:g} at sd={sd:g}", effect)


def seeds_for_margin(margin: float, sd: float, correlation: float = 0.0, alpha: float = 0.05) -> int:
    """The fewest paired seeds whose interval, at the expected SD of differences, is no wider than +-margin.

    Only then can two equal arms be called equivalent. Raises ConfigError as `seeds_needed` does.
    """
    _check(sd, correlation, alpha, 0.8)
    spread = sd * math.sqrt(2 * (1 - correlation))

    def fits(n: int) -> bool:
        return -float(special.stdtrit(n - 1, alpha / 2)) * spread / math.sqrt(n) <= margin

    return _fewest(fits, f"margin={margin:g} at sd={sd:g}", margin)


def _fewest(enough: Callable[[int], bool], wish: str, size: float) -> int:
    if size == 0 or not math.isfinite(size):
        raise ConfigError(f"{wish}: no number of seeds is enough for that; give a difference other than 0")
    high = 2
    while not enough(high):
        if high == MOST_SEEDS:
            raise ConfigError(f"{wish} needs more than {MOST_SEEDS} seeds: choose a larger difference")
        high = min(2 * high, MOST_SEEDS)
    return 2 + bisect.bisect_left(range(2, high), True, key=enough)


def _power(noncentrality: float, n: int, alpha: float) -> float:
    """P(|T| > t) for T noncentral t with n - 1 degrees of freedom and t the two-sided critical value.

    |T| > t says chi2 < df (Z + noncentrality)^2 / t^2: the power is the mean over a normal Z of chi2's distribution
    function. The trapezoid rule is all but exact for it; scipy's nctdtr gives nan in tails that small alphas ask for.
    """
    df = n - 1
    critical = -float(special.stdtrit(df, alpha / 2))
    points = max(4001, math.ceil(40 * math.sqrt(df)))  # the integrand rises within about 1.4 / sqrt(df) of Z
    z = np.linspace(-9.0, 9.0, points)
    chi2 = df * np.square((z + noncentrality) / critical)
    return float(
        np.sum(np.exp(-z * z / 2) * special.gammainc(df / 2, chi2 / 2)) * (z[1] - z[0]) / math.sqrt(2 * math.pi)
    )


def _check(sd: float, correlation: float, alpha: float, power: float) -> None:
    if not (math.isfinite(sd) and sd >= 0):
        raise ConfigError(f"sd={sd:g}: expected a standard deviation, a finite number that is not negative")
    if not -1 <= correlation <= 1:
        raise ConfigError(f"correlation={correlation:g}: expected a number from -1 to 1")
    if not 0 < alpha < power < 1:
        raise ConfigError(f"alpha={alpha:g} power={power:g}: expected 0 < alpha < power < 1, such as 0.05 and 0.8")

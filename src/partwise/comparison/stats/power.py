"""Exact power of a single claim at a single look; `simulated_power` has whole comparisons."""

import bisect
import math
from collections.abc import Callable

import numpy as np
from scipy import special

from partwise.comparison.stats.group_sequential import check_looks
from partwise.config import ConfigError

MAX_SEEDS = 1_000_000
"""A plan that needs more seeds than this raises ConfigError."""


def minimum_detectable_effect(
    sd: float, n: int, correlation: float = 0.0, alpha: float = 0.05, power: float = 0.8
) -> float:
    """The smallest true difference that `n` paired seeds detect with probability `power`, in the unit of `sd`.

    An effect is detected if its interval excludes 0. `sd` is the seed SD of each arm; a difference then has SD
    sd sqrt(2 (1 - correlation)). Solved from the noncentral t distribution. Raises ConfigError for invalid values.
    """
    _check(sd, correlation, alpha, power)
    if not 2 <= n <= MAX_SEEDS:
        raise ConfigError(f"n={n}: expected a number of paired seeds from 2 to {MAX_SEEDS}")
    noncentrality = _bisect(lambda x: paired_t_power(x, n, alpha) >= power, 1e-12)
    return noncentrality * sd * math.sqrt(2 * (1 - correlation) / n)


def seeds_needed(effect: float, sd: float, correlation: float = 0.0, alpha: float = 0.05, power: float = 0.8) -> int:
    """The fewest paired seeds that detect a true difference `effect` with probability `power`.

    The inverse of `minimum_detectable_effect`. Raises ConfigError for invalid values or if it takes over a million seeds.
    """
    _check(sd, correlation, alpha, power)
    sd_difference = sd * math.sqrt(2 * (1 - correlation))

    def detects(n: int) -> bool:
        return (
            sd_difference == 0
            or paired_t_power(min(abs(effect) / sd_difference, 1e100) * math.sqrt(n), n, alpha) >= power
        )

    return _min_seeds(detects, f"effect={effect:g} at sd={sd:g}", effect)


def default_looks(seeds: int) -> tuple[int, ...]:
    """Looks at `seeds`, half and a quarter of them, each only if at least 4: 16 -> (4, 8, 16), 5 -> (5,)."""
    looks = [seeds]
    while len(looks) < 3 and looks[0] // 2 >= 4:
        looks.insert(0, looks[0] // 2)
    return check_looks(looks)


def _bisect(detects: Callable[[float], bool], tolerance: float) -> float:
    """The smallest x > 0 for which `detects(x)`, to a relative tolerance; importing scipy.optimize would take 0.3 s."""
    high = 1.0
    while not detects(high):
        high *= 2
        if not math.isfinite(high):
            raise ConfigError("no effect of any size would be detected with that power: raise alpha")
    low = 0.0
    while high - low > tolerance * high:
        middle = (low + high) / 2
        low, high = (low, middle) if detects(middle) else (middle, high)
    return high


def _min_seeds(enough: Callable[[int], bool], goal: str, size: float) -> int:
    if size == 0 or not math.isfinite(size):
        raise ConfigError(f"{goal}: no number of seeds is enough; give a finite difference other than 0")
    high = 2
    while not enough(high):
        if high == MAX_SEEDS:
            raise ConfigError(f"{goal} needs more than {MAX_SEEDS} seeds: choose a larger difference")
        high = min(2 * high, MAX_SEEDS)
    return 2 + bisect.bisect_left(range(2, high), True, key=enough)


def paired_t_power(noncentrality: float, n: float, alpha: float) -> float:
    """P(|T| > t) for a noncentral t variable T with n - 1 degrees of freedom and the two-sided critical value t.

    |T| > t is chi2 < df (Z + noncentrality)^2 / t^2, so the power is the mean of chi2's distribution function over a
    normal Z. The trapezoid rule is nearly exact for it; scipy's nctdtr returns nan in the tails that small alphas need.
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
        raise ConfigError(f"sd={sd:g}: expected a standard deviation, finite and not negative")
    if not -1 <= correlation <= 1:
        raise ConfigError(f"correlation={correlation:g}: expected a number from -1 to 1")
    if not 0 < alpha < power < 1:
        raise ConfigError(f"alpha={alpha:g} power={power:g}: expected 0 < alpha < power < 1, such as 0.05 and 0.8")

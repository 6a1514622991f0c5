"""Before the runs: which difference a number of seeds can show, and how many seeds a difference needs."""

import bisect
import math
from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np
from scipy import special

from partwise.comparison.sequential import check_looks, levels
from partwise.config import ConfigError

DRAWS = 200_000
"""Simulated comparisons behind a power over several looks: it is known to about 0.2 points."""

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
    noncentrality = _smallest(lambda x: _power(x, n, alpha) >= power, 1e-12)
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


def looks_for(seeds: int) -> tuple[int, ...]:
    """At a number of seeds, its half, and its quarter, as far as these are 4 or more: 16 -> (4, 8, 16), 5 -> (5,)."""
    looks = [seeds]
    while len(looks) < 3 and looks[0] // 2 >= 4:
        looks.insert(0, looks[0] // 2)
    return check_looks(looks)


def power_over_looks(
    effect: float, sd: float, looks: Sequence[int], correlation: float = 0.0, alpha: float = 0.05
) -> float:
    """The probability that a true difference `effect` is shown at one of the looks. Simulated, with fixed draws.

    Raises ConfigError for impossible values.
    """
    _check(sd, correlation, alpha, 0.8 if alpha < 0.8 else (1 + alpha) / 2)
    spread = sd * math.sqrt(2 * (1 - correlation))
    return float(bool(effect)) if not spread else _shown(abs(effect) / spread, check_looks(looks), alpha)


def equivalence_over_looks(
    margin: float, sd: float, looks: Sequence[int], correlation: float = 0.0, alpha: float = 0.05
) -> float:
    """The probability that equal arms are called equivalent at one of the looks, before they seem to differ."""
    _check(sd, correlation, alpha, 0.8 if alpha < 0.8 else (1 + alpha) / 2)
    spread = sd * math.sqrt(2 * (1 - correlation))
    if not spread:
        return 1.0
    looks = check_looks(looks)
    still, called = np.ones(DRAWS, bool), np.zeros(DRAWS, bool)
    for (mean, error), level, n in zip(_draws(looks), levels(looks, alpha), looks, strict=True):
        half = -float(special.stdtrit(n - 1, level / 2)) * error
        inside = np.abs(mean) + half <= margin / spread
        called |= still & inside
        still &= ~(inside | (np.abs(mean) > half))
    return float(called.mean())


def smallest_over_looks(
    sd: float, looks: Sequence[int], correlation: float = 0.0, alpha: float = 0.05, power: float = 0.8
) -> float:
    """The smallest true difference that the looks together show with probability `power`: see `power_over_looks`."""
    _check(sd, correlation, alpha, power)
    looks = check_looks(looks)
    if len(looks) == 1:
        return smallest_detectable(sd, looks[0], correlation, alpha, power)
    found = _smallest(lambda x: _shown(x, looks, alpha) >= power, 1e-6)
    return found * sd * math.sqrt(2 * (1 - correlation))


def _smallest(shows: Callable[[float], bool], tolerance: float) -> float:
    """The smallest x > 0 for which `shows(x)`, to a relative tolerance, by halving: scipy's own takes 0.3 s to import."""
    high = 1.0
    while not shows(high):
        high *= 2
        if not math.isfinite(high):
            raise ConfigError("no difference however large would be shown with that power: raise alpha")
    low = 0.0
    while high - low > tolerance * high:
        middle = (low + high) / 2
        low, high = (low, middle) if shows(middle) else (middle, high)
    return high


def _shown(effect: float, looks: tuple[int, ...], alpha: float) -> float:
    """The power over looks, for an effect in SDs of a difference."""
    shown = np.zeros(DRAWS, bool)
    for (mean, error), level, n in zip(_draws(looks), levels(looks, alpha), looks, strict=True):
        shown |= np.abs(mean + effect) > -float(special.stdtrit(n - 1, level / 2)) * error
    return float(shown.mean())


@lru_cache(maxsize=8)
def _draws(looks: tuple[int, ...]) -> list[tuple[np.ndarray, np.ndarray]]:
    """For each look, the mean of so many standard normal differences and its standard error, DRAWS times."""
    rng = np.random.default_rng(0)
    total, squares, n = np.zeros(DRAWS), np.zeros(DRAWS), 0
    found = []
    for look in looks:
        more = look - n
        added = rng.normal(0, math.sqrt(more), DRAWS)
        total, n = total + added, look
        squares = squares + added**2 / more + (rng.chisquare(more - 1, DRAWS) if more > 1 else 0.0)
        error = np.sqrt((squares - total**2 / n) / (n - 1) / n)
        found.append((total / n, error))
    return found


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

"""The power of a one-sided t test against a target, and the runs that it needs."""

import math
from collections.abc import Sequence

import numpy as np
from scipy import special

from partwise.comparison.stats.group_sequential import nominal_level
from partwise.comparison.stats.power import MAX_SEEDS
from partwise.config import ConfigError

DRAWS = 20_000


def power_against_target(distance: float, sd: float, n: int, alpha: float) -> float:
    """The probability that `n` normal runs, whose true mean is `distance` better than the target, reach it at `alpha`.

    T > t with t > 0 is Z + noncentrality > 0 and chi2 < df (Z + noncentrality)^2 / t^2; the integral over Z is a
    trapezoid sum, since scipy's noncentral t returns nan in the tails that small alphas need.
    """
    df = n - 1
    critical = -float(special.stdtrit(df, alpha))
    noncentrality = min(distance / sd * math.sqrt(n), 1e6)
    z = np.linspace(-9.0, 9.0, max(4001, math.ceil(40 * math.sqrt(df))))
    shifted = np.maximum(z + noncentrality, 0.0)
    chi2 = df * np.square(shifted / critical)
    density = np.exp(-z * z / 2) * (z[1] - z[0]) / math.sqrt(2 * math.pi)
    return float(np.sum(density * special.gammainc(df / 2, chi2 / 2)))


def runs_needed(distance: float, sd: float, alpha: float, power: float = 0.8) -> int:
    """The fewest runs that reach the target with probability `power`. Raises ConfigError for more than a million."""
    if not (math.isfinite(distance) and distance > 0):
        raise ConfigError(f"a distance of {distance:g} from the target: expected a positive number, such as 0.002")
    check_spread(sd)
    low, high = 1, 2
    while power_against_target(distance, sd, high, alpha) < power:
        low, high = high, 2 * high
        if high > MAX_SEEDS:
            raise ConfigError(f"a distance of {distance:g} at an SD of {sd:g} needs more than {MAX_SEEDS} runs")
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if power_against_target(distance, sd, middle, alpha) >= power else (middle, high)
    return high


def check_spread(sd: float) -> None:
    """Raise ConfigError unless `sd` is a possible SD of runs."""
    if not (math.isfinite(sd) and sd > 0):
        raise ConfigError(f"--sd {sd:g}: expected the SD of single runs, a positive number such as 0.0013")


def detectable_distance(sd: float, n: int, alpha: float, power: float = 0.8) -> float:
    """How much better than the target the true mean must be for `n` runs to reach it with probability `power`."""
    low, high = 0.0, 1.0
    while power_against_target(high * sd, sd, n, alpha) < power:
        low, high = high, 2 * high
    while high - low > 1e-6 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if power_against_target(middle * sd, sd, n, alpha) >= power else (middle, high)
    return high * sd


def power_with_looks(distance: float, sd: float, looks: Sequence[int], alpha: float) -> tuple[float, float]:
    """The probability of reaching the target at some look, and the mean number of runs; 20,000 entries are simulated.

    An entry stops at the look that reaches or misses the target.
    """
    levels = [nominal_level(looks, look, 2 * alpha) / 2 for look in range(1, len(looks) + 1)]
    x = np.random.default_rng(0).normal(distance / sd, 1.0, (DRAWS, looks[-1]))
    reached, open_entries, runs = np.zeros(DRAWS, bool), np.ones(DRAWS, bool), 0.0
    before = 0
    for n, level in zip(looks, levels, strict=True):
        runs += float(np.mean(open_entries)) * (n - before)
        t = x[:, :n].mean(1) / (x[:, :n].std(1, ddof=1) / math.sqrt(n))
        critical = -float(special.stdtrit(n - 1, level))
        reached |= open_entries & (t >= critical)
        open_entries &= np.abs(t) < critical
        before = n
    return float(np.mean(reached)), runs

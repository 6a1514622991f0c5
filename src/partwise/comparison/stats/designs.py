"""How the runs of the baseline are used: paired, unpaired, or as a covariate; and how many there are."""

import math
from collections.abc import Callable, Mapping
from typing import Any

from partwise.comparison.stats.effect import BaselineDesign, Effect
from partwise.comparison.stats.intervals import with_tests
from partwise.comparison.stats.samples import correlation, harmonic_df, mean, sd
from partwise.config import ConfigError

FEWEST_SEEDS = 8
"""With fewer, these estimates have so few degrees of freedom that more runs of the baseline do not pay."""


def check_design(design: BaselineDesign, baseline_runs: int) -> None:
    """Raise ConfigError for a number of baseline runs, per run of an arm, that the design cannot use."""
    if design not in ("paired", "unpaired", "covariate"):
        raise ConfigError(f"design={design}: expected paired, unpaired or covariate")
    if baseline_runs < 1:
        raise ConfigError(f"baseline_runs={baseline_runs}: expected 1 or more per run of an arm")
    if design == "paired" and baseline_runs > 1:
        raise ConfigError(
            f"baseline_runs={baseline_runs}: design=paired uses one run of the baseline per seed; choose design=unpaired or "
            "design=covariate"
        )
    if design == "covariate" and baseline_runs == 1:
        raise ConfigError("design=covariate needs further runs of the baseline: give baseline_runs=2 or more")


def check_enough_seeds(design: BaselineDesign, baseline_runs: int, seeds: int) -> None:
    """Raise ConfigError for fewer seeds than a design with more runs of the baseline needs."""
    if baseline_runs > 1 and seeds < FEWEST_SEEDS:
        raise ConfigError(
            f"design={design} with baseline_runs={baseline_runs} needs at least {FEWEST_SEEDS} seeds, and {seeds} are "
            "planned: plan more, or choose design=paired"
        )


def measure_covariate(
    measure: Callable[..., Effect],
    arm: str,
    against: str,
    values: Mapping[int, float],
    baseline: Mapping[int, float],
    **options: Any,
) -> Effect:
    """The effect with the baseline as covariate (CUPED, Deng et al. 2013); `measure` is that of the method.

    A line y = a + b x is fitted to the n pairs of equal seeds, x being the baseline. With x0 the mean of all m baseline
    runs, the difference is the line at x0 minus x0. Its variance is that of the line at x0, with n - 2 degrees of freedom,
    plus (1 - b)^2 var(x) / m. Pairs that lie on a line have no such variance: they are judged as pairs. Raises ConfigError.
    """
    effect = measure(arm, against, values, baseline, **{**options, "paired": False})
    seeds = sorted(values.keys() & baseline.keys())
    if effect.failed or effect.not_bracketed or len(seeds) < 3:
        return effect
    x, y, m = [baseline[seed] for seed in seeds], [values[seed] for seed in seeds], len(baseline)
    r, n, scale = correlation(x, y), len(seeds), max(map(abs, (*values.values(), *baseline.values())))
    if r is None:  # an arm without any spread, which explains none
        return effect
    slope = r * sd(y) / sd(x)
    spread = sd([b - slope * a for a, b in zip(x, y, strict=True)], scale)
    if not spread:
        return measure(arm, against, values, baseline, **{**options, "paired": True})
    residual = spread * math.sqrt((n - 1) / (n - 2))
    x0 = mean(list(baseline.values()))
    away = x0 - mean(x)
    line = residual * math.sqrt(1 / n + (away / sd(x)) ** 2 / (n - 1))
    center = abs(1 - slope) * sd(list(baseline.values())) / math.sqrt(m)
    error, df = harmonic_df(line, n - 2, center, m - 1)
    tested = with_tests(effect, mean(y) + slope * away - x0, error, df, options.get("tuning"))
    return tested.replace(correlation=r, slope=slope)

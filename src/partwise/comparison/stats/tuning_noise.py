"""The noise of tuning: two arms at their best values also differ because tuning may have chosen the wrong values."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from partwise.comparison.stats.expected_regret import mean_squared_regret

RESAMPLES = 2000

Curve = Sequence[Sequence[float | None]]
"""The losses of an arm in tuning, or its values of another metric: for each value, one per seed; None if a run failed."""


@dataclass(frozen=True)
class TuningNoise:
    """The standard error that the choice of values adds to a difference, and its degrees of freedom."""

    standard_error: float
    df: float
    not_bracketed: str = ""
    """Why the claim gets no verdict, if the best value of an arm lies at the edge of the values tried."""

    def add_to(self, error: float, df: float) -> tuple[float, float]:
        """The standard error of a tuned difference, and its degrees of freedom (Satterthwaite 1946)."""
        total = math.hypot(error, self.standard_error)
        if not self.standard_error:
            return total, df
        if not error:
            return total, self.df
        return total, 1 / ((error / total) ** 4 / df + (self.standard_error / total) ** 4 / self.df)


def tuning_noise(arm: Curve, baseline: Curve, not_bracketed: str = "", lower_is_better: bool = True) -> TuningNoise:
    """The noise of the choice of both arms' values, with one degree of freedom less than there are seeds.

    The true mean losses are redrawn around the measured ones; the regret of an arm is the redrawn loss at the chosen value
    minus the lowest redrawn loss. The variance is twice the mean of the sum of both squared regrets: the measured minimum is
    too low, and with that factor identical arms get a verdict in at most 5% of simulated comparisons, for any ratio of noise
    to curvature, and with noise that differs between the values.
    """
    rng = np.random.default_rng(0)
    variance = sum(_mean_squared_regret(curve, rng, lower_is_better) for curve in (arm, baseline))
    return TuningNoise(math.sqrt(2 * variance), len(arm[0]) - 1, not_bracketed)


def _mean_squared_regret(curve: Curve, rng: np.random.Generator, lower_is_better: bool) -> float:
    """The mean squared regret over the values without failed runs, if means are redrawn with the covariance of the seeds.

    So a seed's effect on all values shifts them together and does not change the choice. A value at which training is
    unstable may have been the best by its mean, and can supply most of the noise.
    """
    losses = _without_failures(curve, lower_is_better)
    n_values, n_seeds = losses.shape
    if n_values < 2:
        return 0.0
    means = losses.mean(axis=1)
    draws = rng.standard_normal((RESAMPLES, n_seeds))
    redrawn = means + draws @ (losses.T - means) / math.sqrt(n_seeds * (n_seeds - 1))
    return float(np.mean((redrawn[:, means.argmin()] - redrawn.min(axis=1)) ** 2))


def exact_tuning_noise(
    arm: Curve, baseline: Curve, not_bracketed: str = "", lower_is_better: bool = True
) -> TuningNoise:
    """The noise of `tuning_noise`, from the expected squared regret itself instead of the mean of 2,000 draws."""
    variance = sum(mean_squared_regret(_without_failures(curve, lower_is_better)) for curve in (arm, baseline))
    return TuningNoise(math.sqrt(2 * variance), len(arm[0]) - 1, not_bracketed)


def _without_failures(curve: Curve, lower_is_better: bool) -> np.ndarray:
    """The losses of the values without failed runs, `[n_values, n_seeds]`, negated if higher is better."""
    losses = np.array([[math.nan if x is None else x for x in row] for row in curve])
    return losses[np.isfinite(losses).all(axis=1)] * (1 if lower_is_better else -1)

"""How much less training an arm needs for the same loss, from runs that end at several numbers of steps.

A loss during a run with a decaying learning rate says nothing of a run that ends there, so only ends of runs count. Imports
no torch.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from partwise.comparison.stats.samples import mean, t_interval

Ends = Sequence[tuple[int, float]]
"""[steps, loss] of the runs of one arm on one seed, by ascending steps."""


LARGEST_EXPONENT = 3.0
"""Bound of the exponent of a power law: two losses that are equal but for noise would make it infinite."""


class LogRatio(NamedTuple):
    """The logarithm of the baseline's steps over the arm's at equal loss, or the bound of it that is known."""

    value: float
    censored: bool
    """Whether the true value is further from 0: the arm that ends lower had that loss before its shortest run ended."""


@dataclass(frozen=True)
class Saved:
    """The ratio of the baseline's steps to the arm's at equal loss, a geometric mean over pairs, with its interval.

    If some pairs are censored, only one end of the interval is known: the one nearer to 1. With runs of two lengths, there is
    no interval, because the shape of the curve between them is unknown.
    """

    ratio: float | None
    low: float | None
    high: float | None
    n: int
    n_censored: int

    def times(self, factor: float) -> "Saved | None":
        """Convert a ratio of steps to another cost: a step of the baseline costs `factor` times as much as one of the arm.

        None if only a bound is known, and it no longer tells which arm needs less.
        """
        ratio, low, high = (None if value is None else value * factor for value in (self.ratio, self.low, self.high))
        if ratio is None and (low is None or low < 1) and (high is None or high > 1):
            return None
        return Saved(ratio, low, high, self.n, self.n_censored)


def steps_at(loss: float, ends: Ends) -> tuple[float, bool]:
    """The steps after which a run ends at this loss, and whether it is fewer than that.

    Between two lengths, the loss follows the power law through these and the length before them (of the first two, the one
    after them). The first of several crossings counts. The last run must have reached the loss.
    """
    if ends[0][1] <= loss:
        return float(ends[0][0]), ends[0][1] < loss
    for index, ((steps, before), (next_steps, after)) in enumerate(pairwise(ends)):
        if after <= loss < before:
            start = max(index - 1, 0)
            width = math.log(next_steps / steps)
            bend = exponent(ends[start : start + 3]) * width
            fraction = (before - loss) / (before - after)
            if abs(bend) > 1e-9:
                fraction = -math.log1p(fraction * math.expm1(-bend)) / bend
            return math.exp(math.log(steps) + fraction * width), False
    raise ValueError(f"no run reached a loss of {loss}")


def exponent(ends: Ends) -> float:
    """The a of the power law L + A n^-a through three ends, within LARGEST_EXPONENT of 0.

    It exists for any three losses that fall, and all such laws fall: a below 0 is a curve that bends downwards. It is 0, a
    straight line in the logarithm of the steps, without three ends or if one of the losses does not fall.
    """
    if len(ends) < 3 or not ends[0][1] > ends[1][1] > ends[2][1]:
        return 0.0
    first, second = (math.log(after / before) for (before, _), (after, _) in pairwise(ends))
    falls_by = (ends[0][1] - ends[1][1]) / (ends[1][1] - ends[2][1])
    low, high = -LARGEST_EXPONENT, LARGEST_EXPONENT
    for _ in range(60):  # the ratio of the two falls grows with a
        middle = (low + high) / 2
        ratio = math.expm1(middle * first) / -math.expm1(-middle * second) if middle else first / second
        low, high = (middle, high) if ratio < falls_by else (low, middle)
    return (low + high) / 2


def log_ratio(arm: Ends, baseline: Ends) -> LogRatio:
    """The ratio of one pair: both have the higher of the two final losses, one at its last step and the other earlier.

    The shorter runs of the first must end above that loss (see `falls`).
    """
    if arm[-1][1] > baseline[-1][1]:
        value, censored = log_ratio(baseline, arm)
        return LogRatio(-value, censored)
    steps, censored = steps_at(baseline[-1][1], arm)
    return LogRatio(math.log(baseline[-1][0]) - math.log(steps), censored)


def falls(arm: Ends, baseline: Ends) -> bool:
    """Whether the arm with the higher final loss reaches it in its longest run only."""
    higher = max(arm, baseline, key=lambda ends: ends[-1][1])
    return all(loss > higher[-1][1] for _, loss in higher[:-1])


def steps_saved(pairs: Sequence[tuple[Ends, Ends]], alpha: float) -> Saved | str:
    """The ratio over pairs of (arm, baseline), at a confidence of 1 - alpha; or the reason why it cannot be computed."""
    if len(pairs) < 2:
        return "an interval needs at least two pairs"
    if not all(len(ends) > 1 and math.isfinite(loss) for pair in pairs for ends in pair for _, loss in ends):
        return "a run failed"
    if not all(falls(*pair) for pair in pairs):
        return "a loss does not fall with the number of steps"
    ratios = [log_ratio(arm, baseline) for arm, baseline in pairs]
    values, censored = [ratio.value for ratio in ratios], [ratio.value for ratio in ratios if ratio.censored]
    low, high = t_interval(values, alpha)
    center = math.exp(mean(values))
    if len(censored) < len(pairs) and min(len(ends) for pair in pairs for ends in pair) < 3:
        if censored:
            return "some arms lead before their shortest run ends, and runs of two lengths give no bound"
        return Saved(center, None, None, len(pairs), 0)
    if not censored:
        known = (center, center) if low is None or high is None else (math.exp(low), math.exp(high))
        return Saved(center, *known, len(pairs), 0)
    if max(values) > 0 > min(values):
        return "the arms lead on different seeds, some before their shortest run ends"
    # censored values are further from 0 than stated, and so is their mean: the end nearer to 0 remains a bound
    above = max(values) > 0
    if low is None or high is None:
        # every pair is censored; if the true ratio were not beyond the bound, each pair would be with a probability of
        # at most 1/2 (of a symmetric distribution)
        if 2.0 ** -len(pairs) > alpha / 2:
            return f"all arms lead before their shortest run ends, and {len(pairs)} pairs are too few for a bound"
        bound = mean(values)
    else:
        bound = low if above else high
    if (bound > 0) is not above:
        return "some arms lead before their shortest run ends, by amounts too different for a bound"
    low, high = (math.exp(bound), None) if above else (None, math.exp(bound))
    return Saved(None, low, high, len(pairs), len(censored))

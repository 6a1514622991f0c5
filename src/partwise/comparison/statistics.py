"""What seeds show: the difference between two arms, its interval, and a verdict in one exact sentence.

Student's t throughout: a percentile bootstrap covers far less than it claims at the 3 to 10 seeds people can afford.
Nothing here reads files or trains; a run that diverged is given as nan or inf.
"""

import bisect
import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from scipy import special

from partwise.comparison.effect import LARGEST, MANY_SEEDS, MARGIN, Effect, Verdict
from partwise.comparison.power import seeds_for_margin as seeds_for_margin
from partwise.comparison.power import seeds_needed as seeds_needed
from partwise.comparison.power import smallest_detectable as smallest_detectable
from partwise.comparison.sentences import told
from partwise.comparison.sequential import levels, spent
from partwise.config import ConfigError

LIKELY = 0.8416
"""Of a normal distribution, 80 % lies below so many SDs: what a number of seeds likely decides is decided 4 times in 5."""


class Spread(NamedTuple):
    """What an interval rests on, where it is not the pairs' own SD: the SD of one difference, and its degrees of freedom."""

    sd: float
    df: float


def look_alpha(look: int, alpha: float = 0.05) -> float:
    """The error probability that one look at growing data spends: alpha at the first, alpha / 2^k at look k >= 2.

    The intervals of all looks hold together with probability 1 - 3/2 alpha or more, however many looks there are.
    Raises ConfigError for a look outside 1..100 or alpha outside 1e-9..0.5.
    """
    if not 1 <= look <= 100:
        raise ConfigError(f"look={look}: expected 1 for the first time these seeds are compared, then 2, ... up to 100")
    if not 1e-9 <= alpha <= 0.5:
        raise ConfigError(f"alpha={alpha:g}: expected an error probability from 1e-9 to 0.5, such as 0.05")
    return alpha if look == 1 else math.ldexp(alpha, -look)


def alpha_spent(looks: int, alpha: float = 0.05) -> float:
    """What the first `looks` looks spend together: alpha (1 + 1/4 + 1/8 + ...) = alpha (3/2 - 1/2^looks)."""
    return look_alpha(1, alpha) if looks == 1 else alpha / 2 + alpha - look_alpha(looks, alpha)


def judge(
    arm: str,
    against: str,
    values: Mapping[int, float],
    baseline: Mapping[int, float],
    *,
    margin: float = MARGIN,
    alpha: float = 0.05,
    look: int = 1,
    looks: Sequence[int] = (),
    lower_is_better: bool = True,
    metric: str = "validation loss",
    unit: str = "nats per character",
    paired: bool = True,
    spread: Spread | None = None,
    known_sd: float | None = None,
) -> Effect:
    """Compare an arm with its baseline; `values` and `baseline` map each seed to its run's result, in `unit`.

    The interval is mean +- t(df) SE at confidence 1 - look_alpha(look, alpha), or, where `looks` were planned, at
    1 - levels(looks, alpha)[look - 1], so that the intervals of all looks hold together with probability 1 - alpha. Seeds
    that both arms have are paired, with df = n - 1, or with the SD of differences and the df of `spread`; where none is
    shared, or for `paired=False`, the interval is Welch's. A `known_sd` of one run, paired or not, makes it that of the
    normal distribution, with SE = known_sd sqrt(1 / n_arm + 1 / n_against). The verdict, in this order:
    'equivalent' if the interval lies in [-margin, margin], ends included, even where it excludes 0; 'better' or 'worse'
    if it excludes 0 (one that ends at 0 does not); else 'undecided', also where a single run gives no interval. Arms
    whose true difference is the margin itself are called equivalent with probability alpha / 2 at most.
    Raises ConfigError for an arm without runs, a margin that is negative or not finite, or an impossible look or alpha.
    """
    if known_sd is not None and not (math.isfinite(known_sd) and known_sd > 0):
        raise ConfigError(f"known_sd={known_sd:g}: expected the SD of single runs, a positive number such as 0.0013")
    if not (math.isfinite(margin) and margin >= 0):
        raise ConfigError(f"margin={margin:g}: expected a difference too small to matter, such as {MARGIN}")
    for name, runs in ((arm, values), (against, baseline)):
        if not runs:
            raise ConfigError(f"arm {name!r} has no runs: train it on at least two seeds")
    level, used, following = _levels(look, tuple(looks), alpha)
    shared = tuple(sorted(values.keys() & baseline.keys())) if paired and known_sd is None else ()
    a = [values[seed] for seed in shared or sorted(values)]
    b = [baseline[seed] for seed in shared or sorted(baseline)]
    diverged_arm, diverged_against = (
        sum(not abs(value) <= LARGEST for value in runs.values()) for runs in (values, baseline)
    )
    effect = Effect(
        arm=arm,
        against=against,
        metric=metric,
        unit=unit,
        lower_is_better=lower_is_better,
        n=min(len(a), len(b)),
        n_arm=len(values),
        n_against=len(baseline),
        paired=bool(shared),
        left_out=len(values) + len(baseline) - 2 * len(shared) if shared else 0,
        seeds=shared,
        differences=tuple(x - y for x, y in zip(a, b, strict=True)) if shared else (),
        diverged_arm=diverged_arm,
        diverged_against=diverged_against,
        margin=margin,
        look=look,
        looks=tuple(looks),
        alpha=level,
        confidence=1 - level,
        alpha_spent=used,
        total_alpha=alpha,
    )
    if not diverged_arm and not diverged_against:
        if known_sd is not None:
            spread = Spread(known_sd, math.inf)
        effect = _estimate(effect, a, b, spread, following)
    return told(effect)


def _levels(look: int, looks: tuple[int, ...], alpha: float) -> tuple[float, float, float]:
    """The level of this look, what has been spent by it, and the level of the next."""
    if not looks:
        return look_alpha(look, alpha), alpha_spent(look, alpha), math.ldexp(alpha, -look - 1)
    if not 1 <= look <= len(looks):
        raise ConfigError(f"look={look}: expected 1 to {len(looks)}, the looks at {','.join(map(str, looks))} pairs")
    each = levels(looks, alpha)
    return each[look - 1], spent(looks, alpha)[look - 1], each[min(look, len(looks) - 1)]


def _estimate(
    effect: Effect, a: Sequence[float], b: Sequence[float], spread: Spread | None, next_alpha: float
) -> Effect:
    """The effect with its mean, interval and verdict, from the runs `a` of the arm and `b` of its baseline."""
    mean = _mean(effect.differences) if effect.paired else _mean(a) - _mean(b)
    if effect.n < 2:
        return dataclasses.replace(effect, mean=mean, verdict="undecided")
    sd_a, sd_b = _sd(a), _sd(b)
    own = _sd(effect.differences) if effect.paired else None

    def error_at(n_a: int, n_b: int) -> tuple[float, float]:
        """The standard error of the difference at those numbers of runs, and its degrees of freedom."""
        if spread and effect.paired:
            return spread.sd / math.sqrt(n_a), spread.df / (effect.n - 1) * (n_a - 1)
        if spread:
            return spread.sd * math.sqrt(1 / n_a + 1 / n_b), spread.df
        return (own / math.sqrt(n_a), n_a - 1.0) if own is not None else _welch(sd_a, n_a, sd_b, n_b)

    error, df = error_at(len(a), len(b))
    if not error and (mean or not sd_a):
        # runs that do not vary tell nothing of how far others would lie; equal results over unequal seeds tell enough
        return dataclasses.replace(effect, mean=mean, sd_arm=sd_a, sd_against=sd_b, verdict="undecided")
    half = _t(df, effect.alpha) * error if error else 0.0
    low, high = mean - half, mean + half
    verdict: Verdict = "undecided"
    if -effect.margin <= low and high <= effect.margin:
        verdict = "equivalent"
    elif low > 0 or high < 0:
        verdict = "better" if (high < 0) == effect.lower_is_better else "worse"

    def decides(n: int) -> bool:
        error, df = error_at(n, n)
        half = _t(df, next_alpha) * error
        sure = half + LIKELY * error
        return sure < abs(mean) or abs(mean) + sure <= effect.margin

    more = range(effect.n + 1, max(effect.n, MANY_SEEDS) + 1)
    asked = verdict == "undecided" and effect.look >= len(effect.looks)  # else the next look is planned
    return dataclasses.replace(
        effect,
        mean=mean,
        low=low,
        high=high,
        df=df,
        p=2 * _tail(df, abs(mean) / error) if error else 1.0,
        sd_difference=own,
        sd_interval=spread.sd if spread else own,
        correlation=_correlation(a, b) if effect.paired else None,
        sd_arm=sd_a,
        sd_against=sd_b,
        sd_pooled=pooled_sd([a, b]),
        seeds_to_decide=effect.n + 1 + bisect.bisect_left(more, True, key=decides) if asked else None,
        verdict=verdict,
    )


def _welch(sd_a: float, n_a: int, sd_b: float, n_b: int) -> tuple[float, float]:
    """The standard error of a difference of means, and Satterthwaite's degrees of freedom. Welch 1947."""
    a, b = sd_a / math.sqrt(n_a), sd_b / math.sqrt(n_b)
    error = math.hypot(a, b)
    if not error:
        return 0.0, 1.0
    return error, 1 / ((a / error) ** 4 / (n_a - 1) + (b / error) ** 4 / (n_b - 1))  # in ratios: no overflow


def _t(df: float, alpha: float) -> float:
    """The two-sided critical value of Student's t."""
    return -float(special.stdtrit(df, alpha / 2) if math.isfinite(df) else special.ndtri(alpha / 2))


def _tail(df: float, t: float) -> float:
    """P(T > t)."""
    return float(special.stdtr(df, -t) if math.isfinite(df) else special.ndtr(-t))


def _mean(x: Sequence[float]) -> float:
    return math.fsum(x) / len(x) if min(x) < max(x) else x[0]  # equal values shall have no spread, not even rounding


def _sd(x: Sequence[float]) -> float:
    mean = _mean(x)
    return math.hypot(*(value - mean for value in x)) / math.sqrt(len(x) - 1)


def _correlation(a: Sequence[float], b: Sequence[float]) -> float | None:
    """Pearson's r; None where it says nothing."""
    mean_a, mean_b = _mean(a), _mean(b)
    length_a, length_b = (math.hypot(*(value - mean for value in x)) for x, mean in ((a, mean_a), (b, mean_b)))
    if len(a) < 3 or not length_a or not length_b:
        return None
    r = math.fsum((x - mean_a) / length_a * ((y - mean_b) / length_b) for x, y in zip(a, b, strict=True))
    return max(-1.0, min(1.0, r))


def pooled_sd(arms: Sequence[Sequence[float]]) -> float | None:
    """The SD over seeds shared by all arms: sqrt(sum (n - 1) sd^2 / sum (n - 1)); None without an arm of 2 runs."""
    arms = [arm for arm in arms if len(arm) > 1]
    df = sum(len(arm) - 1 for arm in arms)
    return math.hypot(*(_sd(arm) * math.sqrt((len(arm) - 1) / df) for arm in arms)) if arms else None


def grubbs(x: Sequence[float]) -> float | None:
    """The two-sided p-value of the value farthest from the mean, n times its t test's. Grubbs 1969. None below 4 values."""
    n = len(x)
    if n < 4 or not all(map(math.isfinite, x)) or not (sd := _sd(x)):
        return None
    g = max(abs(value - _mean(x)) for value in x) / sd
    left = (n - 1) ** 2 / n - g * g
    if left <= 0:
        return 0.0
    return min(1.0, 2 * n * _tail(n - 2.0, g * math.sqrt((n - 2) / left)))


def holm(p: Sequence[float]) -> list[float]:
    """P values adjusted for their number, so that the chance of any false claim stays below alpha. Holm 1979."""
    adjusted, floor = [0.0] * len(p), 0.0
    for rank, index in enumerate(sorted(range(len(p)), key=lambda index: p[index])):
        floor = adjusted[index] = max(floor, min(1.0, (len(p) - rank) * p[index]))
    return adjusted

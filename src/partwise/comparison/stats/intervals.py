"""The difference between two arms with its confidence interval and verdict: paired t, Welch, and multiplicity by Holm.

All intervals use Student's t: a percentile bootstrap has poor coverage at the usual 3 to 10 seeds.
Nothing here reads files or trains; pass nan or inf for a run that diverged.
"""

import bisect
import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from scipy import special

from partwise.comparison.stats.effect import DEFAULT_MARGIN, DIVERGENCE_LIMIT, MAX_SEEDS_TO_DECIDE, Effect, Verdict
from partwise.comparison.stats.group_sequential import nominal_levels, spending_function
from partwise.comparison.stats.power import minimum_detectable_effect as minimum_detectable_effect
from partwise.comparison.stats.power import seeds_for_margin as seeds_for_margin
from partwise.comparison.stats.power import seeds_needed as seeds_needed
from partwise.comparison.stats.verdict_text import with_sentence
from partwise.config import ConfigError

Z_80 = 0.8416
"""The 80% quantile of the standard normal distribution: `seeds_to_decide` seeds decide with a probability of 80%."""


class SDEstimate(NamedTuple):
    """An SD estimated from more than the pair's own runs: of one difference, or of one run if known, and its df."""

    sd: float
    df: float


def look_alpha(look: int, alpha: float = 0.05) -> float:
    """The alpha that one unplanned look at accumulating data spends: alpha at the first, alpha / 2^k at look k >= 2.

    The intervals of all looks hold simultaneously with probability at least 1 - 3/2 alpha, for any number of looks.
    Raises ConfigError for a look outside 1..100 or alpha outside 1e-9..0.5.
    """
    if not 1 <= look <= 100:
        raise ConfigError(f"look={look}: expected 1 for the first look at these seeds, then 2, ... up to 100")
    if not 1e-9 <= alpha <= 0.5:
        raise ConfigError(f"alpha={alpha:g}: expected an error probability from 1e-9 to 0.5, such as 0.05")
    return alpha if look == 1 else math.ldexp(alpha, -look)


def alpha_spent(looks: int, alpha: float = 0.05) -> float:
    """The alpha that the first `looks` unplanned looks spend: alpha (1 + 1/4 + 1/8 + ...) = alpha (3/2 - 1/2^looks)."""
    return look_alpha(1, alpha) if looks == 1 else alpha / 2 + alpha - look_alpha(looks, alpha)


def judge(
    arm: str,
    against: str,
    values: Mapping[int, float],
    baseline: Mapping[int, float],
    *,
    margin: float = DEFAULT_MARGIN,
    alpha: float = 0.05,
    look: int = 1,
    looks: Sequence[int] = (),
    lower_is_better: bool = True,
    metric: str = "validation loss",
    unit: str = "nats per character",
    paired: bool = True,
    sd_estimate: SDEstimate | None = None,
    known_sd: float | None = None,
) -> Effect:
    """Compare an arm with its baseline; `values` and `baseline` map each seed to its run's result, in `unit`.

    The interval is mean ± t(df) SE at confidence 1 - look_alpha(look, alpha), or, if `looks` are planned, at
    1 - nominal_levels(looks, alpha)[look - 1], so that the intervals of all looks hold simultaneously with probability
    1 - alpha. Seeds that both arms have are paired, with df = n - 1, or with the SD and df of `sd_estimate`. If they share
    no seed, or with `paired=False`, the interval is Welch's. With `known_sd`, the SD of one run, the interval is normal
    and unpaired, with SE = known_sd sqrt(1 / n_arm + 1 / n_against). The verdict, in this order:
    'equivalent' if the interval lies in [-margin, margin], bounds included, even if it excludes 0; 'better' or 'worse'
    if it excludes 0 (a bound at 0 does not); else 'undecided', also if a single run gives no interval. Arms whose true
    difference equals the margin are called equivalent with probability alpha / 2 at most.
    Raises ConfigError for an arm without runs, a negative or infinite margin, or an invalid look or alpha.
    """
    if known_sd is not None and not (math.isfinite(known_sd) and known_sd > 0):
        raise ConfigError(f"known_sd={known_sd:g}: expected the SD of single runs, a positive number such as 0.0013")
    if not (math.isfinite(margin) and margin >= 0):
        raise ConfigError(f"margin={margin:g}: expected a difference too small to matter, such as {DEFAULT_MARGIN}")
    for name, runs in ((arm, values), (against, baseline)):
        if not runs:
            raise ConfigError(f"arm {name!r} has no runs: train at least 2 seeds of it")
    level, total_spent, next_level = _look_levels(look, tuple(looks), alpha)
    shared = tuple(sorted(values.keys() & baseline.keys())) if paired and known_sd is None else ()
    a = [values[seed] for seed in shared or sorted(values)]
    b = [baseline[seed] for seed in shared or sorted(baseline)]
    diverged_arm, diverged_against = (
        sum(not abs(value) <= DIVERGENCE_LIMIT for value in runs.values()) for runs in (values, baseline)
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
        differences=tuple(_finite_or_none(x - y) for x, y in zip(a, b, strict=True)) if shared else (),
        diverged_arm=diverged_arm,
        diverged_against=diverged_against,
        margin=margin,
        look=look,
        looks=tuple(looks),
        alpha=level,
        confidence=1 - level,
        alpha_spent=total_spent,
        total_alpha=alpha,
    )
    if not diverged_arm and not diverged_against:
        if known_sd is not None:
            sd_estimate = SDEstimate(known_sd, math.inf)
        effect = _estimate(effect, a, b, sd_estimate, next_level)
    return with_sentence(effect)


def _look_levels(look: int, looks: tuple[int, ...], alpha: float) -> tuple[float, float, float]:
    """The nominal level of this look, the alpha spent by it and all before, and the nominal level of the next look."""
    if not looks:
        return look_alpha(look, alpha), alpha_spent(look, alpha), math.ldexp(alpha, -look - 1)
    if not 1 <= look <= len(looks):
        raise ConfigError(f"look={look}: expected 1 to {len(looks)}, the looks at {','.join(map(str, looks))} pairs")
    levels = nominal_levels(looks, alpha)
    return levels[look - 1], spending_function(looks, alpha)[look - 1], levels[min(look, len(looks) - 1)]


def _estimate(
    effect: Effect, a: Sequence[float], b: Sequence[float], sd_estimate: SDEstimate | None, next_alpha: float
) -> Effect:
    """The effect with mean, interval and verdict, from the results `a` of the arm and `b` of its baseline."""
    differences = [difference for difference in effect.differences if difference is not None]
    mean = _mean(differences) if effect.paired else _mean(a) - _mean(b)
    if effect.n < 2:
        return dataclasses.replace(effect, mean=mean, verdict="undecided")
    sd_a, sd_b = _sd(a), _sd(b)
    sd_pairs = _sd(differences) if effect.paired else None

    def standard_error(n_a: int, n_b: int) -> tuple[float, float]:
        """The standard error of the difference with n_a and n_b runs, and its degrees of freedom."""
        if sd_estimate and effect.paired:
            return sd_estimate.sd / math.sqrt(n_a), sd_estimate.df / (effect.n - 1) * (n_a - 1)
        if sd_estimate:
            return sd_estimate.sd * math.sqrt(1 / n_a + 1 / n_b), sd_estimate.df
        return (sd_pairs / math.sqrt(n_a), n_a - 1.0) if sd_pairs is not None else _welch(sd_a, n_a, sd_b, n_b)

    error, df = standard_error(len(a), len(b))
    if not error and (mean or not sd_a):
        # constant results say nothing about the spread between seeds; pairs that agree while seeds vary do
        return dataclasses.replace(effect, mean=mean, sd_arm=sd_a, sd_against=sd_b, verdict="undecided")
    half = _t_critical(df, effect.alpha) * error if error else 0.0
    low, high = mean - half, mean + half
    verdict: Verdict = "undecided"
    if -effect.margin <= low and high <= effect.margin:
        verdict = "equivalent"
    elif low > 0 or high < 0:
        verdict = "better" if (high < 0) == effect.lower_is_better else "worse"

    def decides(n: int) -> bool:
        error, df = standard_error(n, n)
        half = _t_critical(df, next_alpha) * error
        reach = half + Z_80 * error
        return reach < abs(mean) or abs(mean) + reach <= effect.margin

    candidates = range(effect.n + 1, max(effect.n, MAX_SEEDS_TO_DECIDE) + 1)
    needs_more = verdict == "undecided" and effect.look >= len(effect.looks)  # otherwise the next look is planned
    return dataclasses.replace(
        effect,
        mean=mean,
        low=low,
        high=high,
        df=df,
        p=2 * _t_sf(df, abs(mean) / error) if error else 1.0,
        sd_difference=sd_pairs,
        interval_sd=sd_estimate.sd if sd_estimate else sd_pairs,
        correlation=_correlation(a, b) if effect.paired else None,
        sd_arm=sd_a,
        sd_against=sd_b,
        sd_pooled=pooled_sd([a, b]),
        seeds_to_decide=effect.n + 1 + bisect.bisect_left(candidates, True, key=decides) if needs_more else None,
        verdict=verdict,
    )


def _welch(sd_a: float, n_a: int, sd_b: float, n_b: int) -> tuple[float, float]:
    """The standard error of a difference of means and the Welch-Satterthwaite degrees of freedom. Welch 1947."""
    a, b = sd_a / math.sqrt(n_a), sd_b / math.sqrt(n_b)
    error = math.hypot(a, b)
    if not error:
        return 0.0, 1.0
    return error, 1 / ((a / error) ** 4 / (n_a - 1) + (b / error) ** 4 / (n_b - 1))  # ratios, to avoid overflow


def _t_critical(df: float, alpha: float) -> float:
    """The two-sided critical value of Student's t."""
    return -float(special.stdtrit(df, alpha / 2) if math.isfinite(df) else special.ndtri(alpha / 2))


def _t_sf(df: float, t: float) -> float:
    """P(T > t), the survival function."""
    return float(special.stdtr(df, -t) if math.isfinite(df) else special.ndtr(-t))


def _finite_or_none(x: float) -> float | None:
    return x if math.isfinite(x) else None


def _mean(x: Sequence[float]) -> float:
    return math.fsum(x) / len(x) if min(x) < max(x) else x[0]  # equal values have an SD of exactly 0


def _sd(x: Sequence[float]) -> float:
    mean = _mean(x)
    return math.hypot(*(value - mean for value in x)) / math.sqrt(len(x) - 1)


def _correlation(a: Sequence[float], b: Sequence[float]) -> float | None:
    """Pearson's r; None for fewer than 3 pairs or a constant arm."""
    mean_a, mean_b = _mean(a), _mean(b)
    norm_a, norm_b = (math.hypot(*(value - mean for value in x)) for x, mean in ((a, mean_a), (b, mean_b)))
    if len(a) < 3 or not norm_a or not norm_b:
        return None
    r = math.fsum((x - mean_a) / norm_a * ((y - mean_b) / norm_b) for x, y in zip(a, b, strict=True))
    return max(-1.0, min(1.0, r))


def pooled_sd(arms: Sequence[Sequence[float]]) -> float | None:
    """The pooled seed SD of all arms: sqrt(sum (n - 1) sd^2 / sum (n - 1)); None if every arm has fewer than 2 runs."""
    arms = [arm for arm in arms if len(arm) > 1]
    df = sum(len(arm) - 1 for arm in arms)
    return math.hypot(*(_sd(arm) * math.sqrt((len(arm) - 1) / df) for arm in arms)) if arms else None


def grubbs(x: Sequence[float]) -> float | None:
    """The two-sided p-value of Grubbs' outlier test (1969), n times that of its t test; None for fewer than 4 values."""
    n = len(x)
    if n < 4 or not all(map(math.isfinite, x)) or not (sd := _sd(x)):
        return None
    g = max(abs(value - _mean(x)) for value in x) / sd
    remainder = (n - 1) ** 2 / n - g * g
    if remainder <= 0:
        return 0.0
    return min(1.0, 2 * n * _t_sf(n - 2.0, g * math.sqrt((n - 2) / remainder)))


def holm(p: Sequence[float]) -> list[float]:
    """p-values adjusted for multiple comparisons, which controls the family-wise error rate. Holm 1979."""
    adjusted, largest = [0.0] * len(p), 0.0
    for rank, index in enumerate(sorted(range(len(p)), key=lambda index: p[index])):
        largest = adjusted[index] = max(largest, min(1.0, (len(p) - rank) * p[index]))
    return adjusted

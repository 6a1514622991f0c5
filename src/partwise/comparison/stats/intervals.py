"""The difference between two arms: its estimate, tests of no difference and of equivalence, and failure rates.

Nothing here reads files or trains; pass nan or inf for a run that diverged.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from partwise.comparison.stats.effect import DEFAULT_MARGIN, Effect
from partwise.comparison.stats.failure import has_failed
from partwise.comparison.stats.families import decide
from partwise.comparison.stats.group_sequential import check_looks, repeated_p
from partwise.comparison.stats.rounding import rounding_unit
from partwise.comparison.stats.samples import (
    ROUNDING,
    correlation,
    fisher_exact,
    mean,
    pooled_sd,
    sd,
    sign_flip_p,
    skewness,
    t_sf,
    welch,
)
from partwise.comparison.stats.tuning_noise import TuningNoise
from partwise.config import ConfigError


def judge(
    arm: str,
    against: str,
    values: Mapping[int, float],
    baseline: Mapping[int, float],
    *,
    alpha: float = 0.05,
    **options: Any,
) -> Effect:
    """Compare an arm with its baseline, as the only claim. `options` are those of `measure`; `decide` gives the verdict."""
    (effect,) = decide([measure(arm, against, values, baseline, **options)], alpha)
    return effect


def measure(
    arm: str,
    against: str,
    values: Mapping[int, float],
    baseline: Mapping[int, float],
    *,
    margin: float = DEFAULT_MARGIN,
    look: int = 1,
    looks: Sequence[int] = (),
    failure: float | None = None,
    lower_is_better: bool = True,
    metric: str = "validation loss",
    unit: str = "nats per character",
    paired: bool = True,
    known_sd: float | None = None,
    tuning: TuningNoise | None = None,
    summed: bool = False,
) -> Effect:
    """The estimated difference of an arm and its baseline, with p-values but without a verdict, which `decide` adds.

    `values` and `baseline` map each seed to its run's result, in `unit`. Seeds that both arms have are paired, with
    SE = SD / sqrt(n) and df = n - 1. If they share no seed, or with `paired=False`, standard error and df are Welch's. With
    `known_sd`, the SD of one run, the test is normal and unpaired, with SE = known_sd sqrt(1 / n_arm + 1 / n_against).
    `tuning` is the noise of the choice of both arms' values, which adds to the standard error.
    If a run of either arm failed (see `has_failed`), there is no estimate, since averaging the others would hide it; the
    p-value is that of equal failure rates. At a look at m more of the N planned pairs than the look before, Fisher's test is
    made at alpha m / N. If `summed`, the baseline is a sum of effects, not runs: its values fail only if they are not finite,
    and there is no test of failure rates.
    Raises ConfigError for an arm without runs, a negative or infinite margin, or an invalid look or `known_sd`.
    """
    if known_sd is not None and not (math.isfinite(known_sd) and known_sd > 0):
        raise ConfigError(f"known_sd={known_sd:g}: expected the SD of single runs, a positive number such as 0.0013")
    if not (math.isfinite(margin) and margin >= 0):
        raise ConfigError(f"margin={margin:g}: expected a difference too small to matter, such as {DEFAULT_MARGIN}")
    for name, runs in ((arm, values), (against, baseline)):
        if not runs:
            raise ConfigError(f"arm {name!r} has no runs: train at least 2 seeds of it")
    looks = check_looks(looks) if looks else ()
    if not 1 <= look <= max(1, len(looks)):
        planned = (
            f"1 to {len(looks)}, the looks at {','.join(map(str, looks))} pairs"
            if looks
            else "1, as no looks are planned"
        )
        raise ConfigError(f"look={look}: expected {planned}")
    shared = tuple(sorted(values.keys() & baseline.keys())) if paired and known_sd is None else ()
    a = [values[seed] for seed in shared or sorted(values)]
    b = [baseline[seed] for seed in shared or sorted(baseline)]
    limit_against = None if summed else failure
    failed_arm, failed_against = (
        sum([has_failed(value, limit, lower_is_better) for value in runs.values()])
        for runs, limit in ((values, failure), (baseline, limit_against))
    )
    differences = tuple(
        None if has_failed(x, failure, lower_is_better) or has_failed(y, limit_against, lower_is_better) else x - y
        for x, y in (zip(a, b, strict=True) if shared else ())
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
        differences=differences,
        failure=failure,
        failed_arm=failed_arm,
        failed_against=failed_against,
        margin=margin,
        look=look,
        looks=looks,
        alpha=1.0,
        confidence=0.0,
        nominal_alpha=1.0,
        total_alpha=1.0,
    )
    if effect.failed:
        no_test = tuning.not_bracketed if tuning else ""
        return effect.replace(not_bracketed=no_test) if no_test or summed else _compare_failures(effect)
    return _estimate(effect, a, b, known_sd, tuning)


def measure_rounded(
    arm: str, against: str, values: Mapping[int, float], baseline: Mapping[int, float], **options: Any
) -> Effect:
    """As `measure`, but pairs that agree show nothing if the values are rounded to a unit that exceeds the margin."""
    effect = measure(arm, against, values, baseline, **options)
    if effect.sd_difference != 0:  # of pairs that agree; None without a test or pairs
        return effect
    unit = rounding_unit([runs[seed] for runs in (values, baseline) for seed in effect.seeds])
    if unit <= effect.margin:
        return effect
    untested = dict.fromkeys(("p", "p_looks", "p_equivalence", "p_sign_flip", "standard_error", "tuning_error", "df"))
    return effect.replace(**untested, sd_difference=None, rounding_unit=unit)


def _compare_failures(effect: Effect) -> Effect:
    """The effect with the p-values of equal failure rates. The alphas of all looks add up, whatever their dependence."""
    p = fisher_exact(effect.failed_arm, effect.n_arm, effect.failed_against, effect.n_against)
    looks, before = effect.looks, (0, *effect.looks)[effect.look - 1]
    share = (looks[effect.look - 1] - before) / looks[-1] if looks else 1.0
    return effect.replace(p_failures=p, p_looks=min(1.0, p / share))


def _estimate(
    effect: Effect, a: Sequence[float], b: Sequence[float], known_sd: float | None, tuning: TuningNoise | None
) -> Effect:
    """The effect with its estimate and p-values, from the results `a` of the arm and `b` of its baseline."""
    differences = [difference for difference in effect.differences if difference is not None]
    scale = max(map(abs, (*a, *b)))
    center = mean(differences) if effect.paired else mean(a) - mean(b)
    if tuning and tuning.not_bracketed:
        return effect.replace(mean=center, not_bracketed=tuning.not_bracketed)
    if effect.n < 2:
        return effect.replace(mean=center)
    sd_a, sd_b = sd(a, scale), sd(b, scale)
    sd_pairs = sd(differences, scale) if effect.paired else None
    if known_sd is not None:
        error, df = known_sd * math.sqrt(1 / len(a) + 1 / len(b)), math.inf
    elif sd_pairs is not None:
        error, df = sd_pairs / math.sqrt(effect.n), effect.n - 1.0
    else:
        error, df = welch(sd_a, len(a), sd_b, len(b))
    if not error and (abs(center) > ROUNDING * scale or not sd_a or len(set(a)) < len(a)):
        # pairs that agree show that the arms compute the same only if no two seeds have the same value by chance: constant
        # results say nothing about the spread between seeds, nor do ties of a coarse metric
        return effect.replace(mean=center, sd_arm=sd_a, sd_against=sd_b)
    if not error:
        center = 0.0
    return with_tests(effect, center, error, df, tuning).replace(
        sd_arm=sd_a,
        sd_against=sd_b,
        p_sign_flip=sign_flip_p(differences) if effect.paired else None,
        sd_difference=sd_pairs,
        skewness=skewness(differences) if effect.paired else None,
        correlation=correlation(a, b) if effect.paired else None,
        sd_pooled=pooled_sd([a, b]),
    )


def with_tests(effect: Effect, center: float, error: float, df: float, tuning: TuningNoise | None) -> Effect:
    """The effect with an estimate, its standard error and p-values; `tuning` adds its noise to those of the runs."""
    if tuning:
        error, df = tuning.add_to(error, df)
    p = 2 * t_sf(df, abs(center) / error) if error else 1.0
    room = effect.margin - abs(center)  # of the interval on the side of the nearer bound of the margin
    inside = 2 * t_sf(df, room / error) if error and room > 0 else float(bool(error) or room < 0)
    return effect.replace(
        mean=center,
        standard_error=error,
        tuning_error=tuning.standard_error if tuning else None,
        df=df,
        p=p,
        p_looks=repeated_p(p, effect.looks, effect.look),
        p_equivalence=repeated_p(inside, effect.looks, effect.look),
    )

"""Verdicts on a family of claims: two families of hypotheses, each with its error rate controlled by Holm's method.

The hypotheses of the first family are "no difference", those of the second "a difference of at least the margin". A claim is
'equivalent' if its second hypothesis is rejected; else 'better' or 'worse' if its first is; else 'undecided'.
"""

import bisect
import math
from collections.abc import Sequence

from partwise.comparison.stats.effect import MAX_SEEDS_TO_DECIDE, Effect, Verdict
from partwise.comparison.stats.group_sequential import nominal_level
from partwise.comparison.stats.noise import upper_limit
from partwise.comparison.stats.samples import t_critical, welch
from partwise.comparison.stats.verdict_text import with_sentence
from partwise.config import ConfigError

Z_80 = 0.8416
"""The 80% quantile of the standard normal distribution: `seeds_to_decide` seeds decide with a probability of 80%."""


def holm(p: Sequence[float]) -> list[float]:
    """p-values adjusted for multiple comparisons, which controls the family-wise error rate. Holm 1979."""
    adjusted, largest = [0.0] * len(p), 0.0
    for rank, index in enumerate(sorted(range(len(p)), key=lambda index: p[index])):
        largest = adjusted[index] = max(largest, min(1.0, (len(p) - rank) * p[index]))
    return adjusted


def holm_levels(p: Sequence[float], alpha: float) -> list[float]:
    """The level at which Holm's method tests each of k hypotheses: alpha / (k - s + 1) for the s-th smallest p if it is
    rejected; for the others, with r rejected, alpha / (k - r)."""
    k, rejected = len(p), sum(adjusted <= alpha for adjusted in holm(p))
    levels = [0.0] * k
    for rank, index in enumerate(sorted(range(k), key=lambda index: p[index])):
        levels[index] = alpha / (k - min(rank, rejected))
    return levels


def decide(
    effects: Sequence[Effect], alpha: float, untested: int = 0, sd_known: bool = True, single_at_alpha: bool = False
) -> list[Effect]:
    """The effects of one family of claims with adjusted p-values, intervals and verdicts.

    The family has `untested` further claims, which count like claims with p-values of 1. `seeds_to_decide` takes the SDs as
    if they were known, or, without `sd_known`, their 80% upper limits as `plan` does; no verdict depends on it.

    The interval of a claim is the one that its verdict follows from: at the level of the rejected hypothesis, or, if neither
    is rejected, at the smaller level of the two. So it lies within the margin if the verdict is 'equivalent', excludes 0 if
    it is 'better' or 'worse', and includes 0 and exceeds the margin if it is 'undecided'.

    The two one-sided tests of equivalence are at alpha / 2 each. With `single_at_alpha`, those of a single claim are at alpha
    each, as only one of its two hypotheses can be true, and the interval at a confidence of 1 - 2 alpha is within the margin.
    Of several claims some can be equal and others at the margin, and the errors of both families would add up to more than
    alpha. Raises ConfigError for an alpha outside 1e-9..0.5.
    """
    if not 1e-9 <= alpha <= 0.5:
        raise ConfigError(f"alpha={alpha:g}: expected an error probability from 1e-9 to 0.5, such as 0.05")
    sides = 2 if single_at_alpha and len(effects) + untested == 1 else 1
    values = [
        [effect.p_looks for effect in effects],
        [None if p is None else p / sides if p < 1 else 1.0 for p in (effect.p_equivalence for effect in effects)],
    ]
    families = [[*(1.0 if p is None else p for p in tested), *[1.0] * untested] for tested in values]
    adjusted, levels = [holm(p) for p in families], [holm_levels(p, alpha) for p in families]
    decided = []
    for index, effect in enumerate(effects):
        different, equivalent = (p[index] <= alpha for p in adjusted)
        level_different, level_equivalent = (level[index] for level in levels)
        verdict: Verdict | None = None if effect.failed or effect.not_bracketed else "undecided"
        level = min(level_different, level_equivalent)
        if equivalent:
            verdict, level = "equivalent", level_equivalent
        elif different:
            verdict, level = _direction(effect), level_different
        nominal = nominal_level(effect.looks, effect.look, level)
        low, high = _interval(effect, nominal)
        within: tuple[float | None, float | None] = None, None
        if equivalent and sides > 1:
            within = _interval(effect, nominal_level(effect.looks, effect.look, sides * level))
        found = effect.replace(
            verdict=verdict,
            low=low,
            high=high,
            equivalence_low=within[0],
            equivalence_high=within[1],
            alpha=level,
            confidence=1 - level,
            nominal_alpha=nominal,
            total_alpha=alpha,
            n_comparisons=len(effects) + untested,
            p_adjusted=None if effect.p_looks is None else adjusted[0][index],
            p_equivalence_adjusted=None if effect.p_equivalence is None else adjusted[1][index],
        )
        decided.append(with_sentence(found, seeds_to_decide=_seeds_to_decide(found, sd_known, sides)))
    return decided


def _direction(effect: Effect) -> Verdict:
    if effect.failed:  # rates over all runs of each arm
        return "worse" if effect.failed_arm * effect.n_against > effect.failed_against * effect.n_arm else "better"
    assert effect.mean is not None
    return "better" if (effect.mean < 0) == effect.lower_is_better else "worse"


def _interval(effect: Effect, nominal_alpha: float) -> tuple[float | None, float | None]:
    """mean ± t(df) SE at a confidence of 1 - nominal_alpha."""
    if effect.mean is None or effect.standard_error is None or effect.df is None:
        return None, None
    half = t_critical(effect.df, nominal_alpha) * effect.standard_error if effect.standard_error else 0.0
    return effect.mean - half, effect.mean + half


def _seeds_to_decide(effect: Effect, sd_known: bool, sides: int) -> int | None:
    """The fewest seeds per arm that decide a claim with the level and mean of `effect` 4 times in 5."""
    mean, error = effect.mean, effect.standard_error
    if effect.verdict != "undecided" or effect.look < len(effect.looks) or mean is None or error is None:
        return None

    def assumed(sd: float | None, n: int) -> float:
        return (sd or 0.0) if sd_known else upper_limit(sd or 0.0, n - 1.0)

    paired = None if effect.sd_difference is None else assumed(effect.sd_difference, effect.n)
    sd_arm, sd_against = assumed(effect.sd_arm, effect.n_arm), assumed(effect.sd_against, effect.n_against)

    def decides(n: int) -> bool:
        if paired is not None:
            later, df = paired / math.sqrt(n), n - 1.0
        elif effect.slope is not None:  # of a covariate, with as many more runs of the baseline
            later, df = assumed(error * math.sqrt(effect.n), effect.n) / math.sqrt(n), n - 2.0
        elif effect.df == math.inf:  # a known SD of one run
            later, df = error / math.sqrt(1 / effect.n_arm + 1 / effect.n_against) * math.sqrt(2 / n), math.inf
        else:
            later, df = welch(sd_arm, n, sd_against, n)
        later = math.hypot(later, effect.tuning_error or 0.0)  # which more seeds do not reduce
        critical, of_margin = t_critical(df, effect.alpha), t_critical(df, sides * effect.alpha)
        return (critical + Z_80) * later < abs(mean) or abs(mean) + (of_margin + Z_80) * later <= effect.margin

    candidates = range(effect.n + 1, max(effect.n, MAX_SEEDS_TO_DECIDE) + 1)
    return effect.n + 1 + bisect.bisect_left(candidates, True, key=decides)

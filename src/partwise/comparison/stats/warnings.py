"""Warnings about samples on which the t interval may cover less than stated: an outlying pair, or skewed differences."""

from collections.abc import Callable

from partwise.comparison.stats.effect import Effect
from partwise.comparison.stats.samples import grubbs, skewness_p, unequal_spreads_p

OUTLIER_LEVEL = 0.01
SKEWNESS_LEVEL = 0.045
"""The level of D'Agostino's test, an approximation: it rejects 4.9% of normal samples of 8, fewer of larger ones."""

SPREAD_LEVEL = 0.05
"""The level of the test of equal spreads: it warns of 64% of the false claims if an exponential arm has ten times the SD."""

Check = Callable[[Effect], str]
"""The sentence about a problem of an effect; empty if it has none."""


def outlier(effect: Effect) -> str:
    differences = [x for x in effect.differences if x is not None]
    p = grubbs(differences) if len(differences) == len(effect.differences) else None
    if p is None or p >= OUTLIER_LEVEL:
        return ""
    distances = [abs(value - (effect.mean or 0.0)) for value in differences]
    seed = effect.seeds[distances.index(max(distances))]
    return (
        f"seed {seed} of {effect.arm} is an outlier among the pairs (Grubbs's test, p {_p(p)}), so the interval "
        "may cover less than stated: inspect that run and add seeds."
    )


def skewed(effect: Effect) -> str:
    differences = [x for x in effect.differences if x is not None]
    p = skewness_p(differences) if differences and len(differences) == len(effect.differences) else None
    if p is None or effect.skewness is None or p >= SKEWNESS_LEVEL:
        return ""
    return (
        f"the differences of {effect.arm} and {effect.against} are skewed (skewness {effect.skewness:.1f}, D'Agostino's "
        f"test, p {_p(p)}): if they are as skewed as an exponential distribution, a 95% interval covers 89% with 8 pairs, "
        "91% with 16 and 93% with 32. Compare p with the sign-flip p, and plan more seeds."
    )


def unequal_spreads(effect: Effect) -> str:
    """Warn about a claimed difference if the noisier arm is skewed: errors of its mean and SD go together, and inflate t."""
    if effect.verdict not in ("better", "worse") or effect.failed or effect.sd_arm is None or effect.sd_against is None:
        return ""
    n_against = effect.n if effect.paired else effect.n_against
    n_arm = effect.n if effect.paired else effect.n_arm
    p = unequal_spreads_p(effect.sd_arm, n_arm, effect.sd_against, n_against, effect.correlation)
    if p is None or p >= SPREAD_LEVEL:
        return ""
    noisy, quiet = (effect.arm, effect.against) if effect.sd_arm > effect.sd_against else (effect.against, effect.arm)
    test = "Pitman's test" if effect.correlation is not None else "F test"
    return (
        f"the results of {noisy} vary more than those of {quiet} (SD {effect.sd_arm:.2g} of {effect.arm}, "
        f"{effect.sd_against:.2g} of {effect.against}; {test}, p {_p(p)}): if the noise of {noisy} is skewed, false claims "
        "are likelier than stated, 14% instead of 5% for an exponential arm with looks at 4, 8 and 16 pairs. Compare p with "
        "the sign-flip p, and replicate the claim on fresh seeds."
    )


def _p(p: float) -> str:
    return "< 0.0001" if p < 0.0001 else f"= {p:.2g}"

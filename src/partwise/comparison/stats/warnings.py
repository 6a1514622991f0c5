"""Warnings about samples on which the t interval may cover less than stated: an outlying pair, or skewed differences."""

from collections.abc import Sequence

from partwise.comparison.stats.effect import Effect
from partwise.comparison.stats.samples import grubbs, skewness_p

OUTLIER_LEVEL = 0.01
SKEWNESS_LEVEL = 0.045
"""Of D'Agostino's test, whose approximation rejects 4.9% of normal samples of 8, and fewer of larger ones, at this level."""


def warnings(effects: Sequence[Effect]) -> tuple[str, ...]:
    """One sentence per problem of each effect."""
    return tuple(message for effect in effects for message in (_outlier(effect), _skewed(effect)) if message)


def _outlier(effect: Effect) -> str:
    differences = [x for x in effect.differences if x is not None]
    p = grubbs(differences) if len(differences) == len(effect.differences) else None
    if p is None or p >= OUTLIER_LEVEL:
        return ""
    distances = [abs(value - (effect.mean or 0.0)) for value in differences]
    outlier = effect.seeds[distances.index(max(distances))]
    return (
        f"seed {outlier} of {effect.arm} is an outlier among the pairs (Grubbs's test, p {_p(p)}), so the interval "
        "may cover less than stated: inspect that run and add seeds."
    )


def _skewed(effect: Effect) -> str:
    differences = [x for x in effect.differences if x is not None]
    p = skewness_p(differences) if differences and len(differences) == len(effect.differences) else None
    if p is None or effect.skewness is None or p >= SKEWNESS_LEVEL:
        return ""
    return (
        f"the differences of {effect.arm} and {effect.against} are skewed (skewness {effect.skewness:.1f}, D'Agostino's "
        f"test, p {_p(p)}): if they are as skewed as an exponential distribution, a 95% interval covers 89% with 8 pairs, "
        "91% with 16 and 93% with 32. Compare p with the sign-flip p, and plan more seeds."
    )


def _p(p: float) -> str:
    return "< 0.0001" if p < 0.0001 else f"= {p:.2g}"

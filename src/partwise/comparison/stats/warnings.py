"""Warnings about samples on which the t interval may cover less than stated: an outlying pair, or skewed differences."""

from collections.abc import Sequence

from partwise.comparison.stats.effect import Effect
from partwise.comparison.stats.samples import grubbs


def warnings(effects: Sequence[Effect]) -> tuple[str, ...]:
    """One sentence per problem."""
    return tuple(message for effect in effects for message in (_outlier(effect),) if message)


def _outlier(effect: Effect) -> str:
    differences = [x for x in effect.differences if x is not None]
    p = grubbs(differences) if len(differences) == len(effect.differences) else None
    if p is None or p >= 0.01:
        return ""
    distances = [abs(value - (effect.mean or 0.0)) for value in differences]
    outlier = effect.seeds[distances.index(max(distances))]
    return (
        f"seed {outlier} of {effect.arm} is an outlier among the pairs (Grubbs's test, p = {p:.2g}), so the interval "
        "may cover less than stated: inspect that run and add seeds."
    )

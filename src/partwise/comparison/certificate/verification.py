"""Check a certificate: its hashes, that plan and protocol agree, and every verdict from the values. Imports no torch."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from partwise.comparison.certificate.certificate import Certificate, CertifiedVerdict
from partwise.comparison.stats.effect import Effect
from partwise.comparison.stats.methods import FIRST
from partwise.comparison.stats.protocol import add_predictions
from partwise.comparison.stats.samples import pooled_sd
from partwise.config import ConfigError, digest

MOST_SDS = 3
"""SDs over seeds by which a repeated value may differ on another machine: roundings grow over training, but less."""
PRECISION = 1e-9
"""Relative difference allowed between numbers that other versions of scipy computed."""


@dataclass(frozen=True)
class VerifiedPart:
    """One statement of a certificate, and why it does not hold; None if it does."""

    statement: str
    fault: str | None = None
    difference: float | None = None
    """Of a trial that was repeated: its new value minus the stated one, if both are known."""


def largest_difference(certificate: Certificate) -> float | None:
    """How far another machine or version may take a value off; None if no arm has two values.

    Other roundings are at worst another seed, so this is MOST_SDS SDs of a run over seeds, pooled over the arms.
    """
    arms = certificate.numbers.values()
    spread = pooled_sd([[value for value in runs.values() if math.isfinite(value)] for runs in arms])
    return None if spread is None else MOST_SDS * spread


def verify(certificate: Certificate) -> list[VerifiedPart]:
    """Check everything that can be recomputed. Raises ConfigError if the values cannot be judged at all."""
    return [
        VerifiedPart("the file is unchanged", check_hash(certificate)),
        VerifiedPart("the plan matches its hash", check_plan_hash(certificate)),
        VerifiedPart("plan and protocol agree", check_protocol(certificate)),
        VerifiedPart("every planned seed has a value", check_seeds(certificate)),
        *check_values(certificate),
        *check_verdicts(certificate),
    ]


def check_hash(certificate: Certificate) -> str | None:
    found = certificate.computed_hash
    return (
        None
        if found == certificate.hash
        else f"its content has the hash {found[:16]}, but the file states {certificate.hash[:16]}"
    )


def check_plan_hash(certificate: Certificate) -> str | None:
    found = digest(certificate.plan)
    return (
        None
        if found == certificate.plan_hash
        else f"the plan has the hash {found[:16]}, not {certificate.plan_hash[:16]}"
    )


def check_protocol(certificate: Certificate) -> str | None:
    """Whether the rules, claims and arms are those that were fixed before the first run."""
    plan, protocol = certificate.plan, certificate.protocol.to_dict()
    if certificate.online:  # the plan has the rate of the sequence, the protocol the level of this comparison
        rate, level = certificate.online.alpha, certificate.online.level
        if level != protocol["alpha"]:
            return f"alpha is {protocol['alpha']:g}, but the online level is {level:g}"
        protocol["alpha"] = rate
    neutral = {"method": FIRST, "design": "paired", "baseline_runs": 1}
    protocol = {**neutral, **protocol}
    planned = {"looks": [], "failure": None, **neutral, **plan}
    for key in ("margin", "alpha", "metric", "looks", "failure", *neutral):
        if planned.get(key) != protocol[key]:
            return f"{key} was planned as {planned.get(key)}, but is {protocol[key]}"
    judged = [list(verdict.claim[:3]) for verdict in certificate.verdicts]
    claims = plan.get("claims")
    for claim in claims if isinstance(claims, list) else []:
        if claim not in judged:
            return f"the planned claim {claim} has no verdict"
    missing = {verdict.claim.arm for verdict in certificate.verdicts} - certificate.values.keys()
    return f"{sorted(missing)[0]} has no values" if missing else None


def check_seeds(certificate: Certificate) -> str | None:
    """Whether each arm has its first seeds without a gap: one that was left out could have been left out for its value."""
    first = certificate.plan.get("first_seed", 0)
    for arm, runs in certificate.values.items():
        for index, seed in enumerate(sorted(runs)):
            if seed != first + index:  # type: ignore[operator]
                return f"seed {first + index} of {arm} is missing"  # type: ignore[operator]
        planned = [look * certificate.runs_per_seed(arm) for look in certificate.protocol.looks]
        if planned and len(runs) not in planned:
            return f"{arm} has {len(runs)} seeds, which is not a planned look"
    return None


def check_values(certificate: Certificate) -> Iterator[VerifiedPart]:
    """Whether the values are those that were judged first; older certificates do not say."""
    if certificate.judged_values:
        same = certificate.judged_values == certificate.computed_values_hash
        yield VerifiedPart("the values are those that were judged first", None if same else "their hash is another")


def judge_values(certificate: Certificate, method: int | None = None) -> list[Effect]:
    """The effects of the claims, judged from the values by the certificate's method, or by another.

    Raises ConfigError if values are missing.
    """
    rules = certificate.protocol.rules(method)
    claims = [verdict.claim for verdict in certificate.verdicts]
    unknown = (
        {name for claim in claims for name in claim[:2]} - certificate.values.keys() - certificate.predictions.keys()
    )
    if unknown or certificate.baseline not in certificate.values:
        raise ConfigError(
            f"the certificate has no values of {sorted(unknown) or certificate.baseline}: ask for the complete certificate"
        )
    values = add_predictions(certificate.numbers, certificate.baseline, certificate.predictions, rules)
    if certificate.judged is not None and not rules.looks:
        values = certificate.first(values, certificate.judged)
    return rules.judge(values, claims, certificate.predictions)


def check_verdicts(certificate: Certificate) -> Iterator[VerifiedPart]:
    """Judge the values again by the protocol, and compare."""
    effects = judge_values(certificate)
    for number, stated in enumerate(certificate.verdicts):
        statement = f"{stated.claim.arm} against {stated.claim.against}: {stated.verdict or 'no verdict'}"
        if number >= len(effects):
            yield VerifiedPart(statement, "there are too few values for the first look")
            continue
        yield VerifiedPart(statement, difference(stated, CertifiedVerdict.from_effect(stated.claim, effects[number])))


def difference(stated: CertifiedVerdict, found: CertifiedVerdict, source: str = "the values give") -> str | None:
    """The first number or word that is another in what `source` names."""
    for name in (each for each in CertifiedVerdict.model_fields if each != "claim"):
        old, new = getattr(stated, name), getattr(found, name)
        if isinstance(old, float) and isinstance(new, float):
            # a mean near zero is a difference of far larger values: their rounding is absolute
            if math.isclose(old, new, rel_tol=PRECISION, abs_tol=1e-12):
                continue
            return f"{name} is {old!r}, but {source} {new!r}"
        if old != new:
            return f"{name} is {old}, but {source} {new}"
    return None

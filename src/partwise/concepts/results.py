"""The stored result of a claim, for one line."""

from functools import cache

from partwise.comparison.report.cells import decimal_places, with_interval
from partwise.concepts.entries import ClaimName
from partwise.config import ConfigError
from partwise.studies.claims import ClaimOutcome, find_outcomes
from partwise.studies.study import LIBRARY, Study, find_study


def claim_sentence(name: ClaimName) -> str:
    """The difference with its interval, what was compared, and the verdict. Raises ConfigError."""
    found = find_claim(name)
    effect = found.effect
    value = with_interval(effect, decimal_places(effect)) if effect.mean is not None else "failed"
    sign = "+" if effect.mean is not None and effect.mean > 0 else ""
    start, compared = (f"{name.says}: ", "") if name.says else ("", f", {found.short_name} against {effect.against}")
    return f"{start}{sign}{value} in {effect.metric}{compared}, {effect.n} seeds: {effect.verdict} (study {name.study})"


def find_claim(name: ClaimName) -> ClaimOutcome:
    """The outcome of a claim of the package, judged in its family as the page of all claims does. Raises ConfigError."""
    studies = {study.name: study for study in library()}
    protocol = studies[name.study].protocol if name.study in studies else ""
    for each in outcomes(protocol, "" if protocol else name.study).get(name.study, []):
        if each.key == (name.comparison or each.key) and each.short_name.startswith(name.arm):
            return each
    raise ConfigError(f"the study {name.study} has no claim about {name.comparison} {name.arm}")


@cache
def outcomes(protocol: str, name: str) -> dict[str, list[ClaimOutcome]]:
    """Of the studies with a protocol, or of the one of that name."""
    return find_outcomes(
        [study for study in library() if study.name == name or (protocol and study.protocol == protocol)]
    )


@cache
def library() -> list[Study]:
    return [find_study(str(path)) for path in sorted(LIBRARY.glob("*.yaml"))]

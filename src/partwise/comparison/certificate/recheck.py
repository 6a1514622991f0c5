"""Judge the comparisons of a ledger again by the newest method, from their certificates; nothing is written."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from partwise.comparison.certificate.certificate import CERTIFICATE_FILE, Certificate
from partwise.comparison.certificate.verification import judge_values
from partwise.comparison.ledger.chain import ChainEntry
from partwise.comparison.ledger.questions import NO_VERDICT, starts_and_results
from partwise.comparison.stats.methods import newest_method
from partwise.config import ConfigError


@dataclass(frozen=True)
class ChangedVerdict:
    """A verdict that the newest method would change."""

    number: int
    """The number of the record of the comparison's start."""
    name: str
    arm: str
    against: str
    method: int
    """The one that it follows from."""
    verdict: str
    newest: str

    def cells(self) -> list[str]:
        return [
            str(self.number),
            self.name,
            f"{self.arm} - {self.against}",
            str(self.method),
            self.verdict,
            self.newest,
        ]


@dataclass
class Recheck:
    """What judging again has found."""

    verdicts: int = 0
    """How many were judged again."""
    changed: list[ChangedVerdict] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    """Comparisons whose values are not known, as their certificate is gone, damaged or another's: name and reason."""


def recheck(records: Sequence[ChainEntry], project: Path) -> Recheck:
    """Judge the latest comparison of every folder that has a result; `project` is the folder that the ledger's are in."""
    starts, results = starts_and_results(records)
    latest = {
        start["folder"]: number
        for number, start in starts.items()
        if number in results and "search" not in start  # whose tries have a rule of their own
    }
    found = Recheck()
    for folder, number in latest.items():
        start = starts[number]
        try:
            certificate = Certificate.read(project / folder / CERTIFICATE_FILE)
            effects = judge_values(certificate, newest_method())
        except ConfigError as error:
            found.missing.append(f"{start['name']}: {error}")
            continue
        if certificate.plan_hash != start["plan"]:
            found.missing.append(f"{start['name']}: {folder} has the certificate of another plan")
            continue
        for stated, effect in zip(certificate.verdicts, effects, strict=False):  # fewer before the first look
            found.verdicts += 1
            if stated.verdict != effect.verdict:
                ends, method = stated.claim[:2], certificate.protocol.method
                verdicts = (stated.verdict or NO_VERDICT, effect.verdict or NO_VERDICT)
                found.changed.append(ChangedVerdict(number, start["name"], *ends, method, *verdicts))
    return found

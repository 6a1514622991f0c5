"""What is fixed about a comparison, in `compare.json` and in the ledger: its plan, its level, the values that it has judged.

Either may be missing: a process may be killed between the two, a full disk may keep one from being written, and files are
deleted. What one of them has holds for both.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from partwise.comparison.certificate.certificate import CERTIFICATE_FILE, Certificate, certify
from partwise.comparison.certificate.verification import judge_values, verify
from partwise.comparison.design.plan import Plan
from partwise.comparison.ledger.chain import ChainEntry
from partwise.comparison.ledger.entries import LedgerEntries
from partwise.comparison.ledger.project import code_version
from partwise.comparison.ledger.values import JudgedValues, hash_values
from partwise.comparison.plan_file import (
    FixedPlan,
    PlanFile,
    read_plan_file,
    refuse_fewer_seeds,
    refuse_other_plan,
)
from partwise.comparison.results import LedgerEntry, Results
from partwise.comparison.stats.effect import Effect
from partwise.comparison.stats.protocol import Values, first_seeds
from partwise.config import ConfigError
from partwise.drafts import remove_leftovers
from partwise.records import DamagedFileError, Record, read_record


@dataclass
class PlanRecord:
    """The record of the comparison in the folder `path`, whose plan is `fixed` in advance."""

    path: Path
    plan: Plan
    fixed: FixedPlan
    entries: LedgerEntries
    imports: Sequence[str] = ()
    file: PlanFile = field(init=False)
    """`compare.json`, once it was read or the comparison has started."""
    changed: bool = False
    """Whether the values that were judged first have changed since."""
    certificate: Certificate | None = None
    """The certificate of the first verdict, if its values have changed."""

    def read(self, data: str) -> bool:
        """Read the plan file of an earlier run; returns whether there is one. Raises ConfigError if it has another plan.

        A plan file that was deleted is no reason to judge the same trials by another plan.
        """
        stored = read_plan_file(self.path, self.fixed, data)
        if stored is None:
            if earlier := self._deleted_plan():
                refuse_other_plan(self.path, earlier, self.fixed)
            return False
        self.file = stored
        return True

    def resume(self) -> None:
        """Record that a comparison continues, or that it started, if the ledger could not be written then."""
        file = self.file
        if not self.entries.resume(file.ledger, self.plan.seeds, file.online, self.imports, file.hash):
            facts = (self.plan, self.fixed.values, file.data, file.machine, self.imports)
            self.entries.start(*facts, trials_exist=True, late=True)
            file.ledger = self.entries.started
        self._add_recorded()

    def start(self, data: str, setup: dict[str, Any], online: bool, origin: Mapping[str, Any]) -> None:
        """Fix the plan before the first trial. Raises ConfigError."""
        file = self.file = PlanFile.new(self.fixed, data, setup)
        facts = (self.plan, self.fixed.values, data, file.machine, self.imports)
        file.online = self.entries.start(*facts, online, self.has_trials(), **origin)
        file.ledger = self.entries.started
        self._add_recorded()
        refuse_fewer_seeds(self.path, file.looks, self.plan.seeds)
        file.write(self.path)

    def judge(self, seeds: int, values: Values) -> tuple[int, str]:
        """Fix the values of a look; returns the number of seeds that its verdict is from, and the hash of their values."""
        judged = seeds if self.plan.rules.looks else (self.file.judged or seeds)
        found = hash_values(first_seeds(values, judged, self.plan.arms[0].name, self.plan.rules.baseline_runs))
        self.changed |= found != self.file.values.hashes.get(judged, [found])[0]
        if self.file.values.add(judged, [found]):
            self.file.write(self.path)
        return judged, found

    def first_effects(self) -> dict[tuple[str, str], Effect]:
        """The effects of the first verdict by arm and what it is against, from its certificate; {} if that is gone."""
        self.certificate = self.first_certificate()
        return {(each.arm, each.against): each for each in judge_values(self.certificate)} if self.certificate else {}

    def first_certificate(self) -> Certificate | None:
        """The certificate of the first verdict; None if it is gone, or does not hold."""
        certificate = self._own_certificate()
        if certificate is None:
            return None
        first = self.file.values.hashes.get(certificate.judged_seeds, [])[:1]
        return certificate if first == [certificate.computed_values_hash] else None

    def _own_certificate(self) -> Certificate | None:
        """The certificate in the folder, if it is of this plan and holds."""
        try:
            certificate = Certificate.read(self.path)
            holds = not any(check.fault for check in verify(certificate))
        except ConfigError:
            return None
        return certificate if holds and certificate.plan_hash == self.file.hash else None

    def write(self, plan: Plan, results: Results, seeds: int, judged: tuple[int, str]) -> Results:
        """Record results in the ledger, add what it says about them, and write the certificate.

        `plan` is the plan with its tuned arms; `judged` is what `judge` returned for the values over all `seeds`.
        """
        entries = self.entries
        first = entries.result(plan, seeds, results.effects, *judged)
        added: dict[str, Any] = {"asked_before": tuple(entries.asked_before(plan)), "online": self.file.online}
        if entries.warning:
            added["warnings"] = (*results.warnings, entries.warning)
        results = results.model_copy(update=added)
        certificate = self.certificate if self.changed else self._certify(plan, results, first)
        if certificate:
            certificate.model_copy(update={"changes": self.file.values.changes}).write(self.path)
        return results

    def _certify(self, plan: Plan, results: Results, first: ChainEntry | None) -> Certificate:
        record = LedgerEntry(number=first.number, hash=first.hash) if first else None
        return certify(results, plan, self.fixed.values, self.file, code_version(self.imports), self.imports, record)

    def finish(self) -> None:
        """Fix the number of seeds that were judged."""
        self.file.looks = sorted({*self.file.looks, self.plan.seeds})
        self.file.write(self.path)

    def _add_recorded(self) -> None:
        """Add what only the ledger or the certificate has: judged values, and the looks of a plan file that was deleted.

        Older versions wrote no hashes, but certificates with the values.
        """
        judgments, file = self.entries.judgments(), self.file
        file.values = JudgedValues.recorded(judgments).first(file.values)
        results = [record.content for record in judgments if record.content["kind"] == "result"]
        looks = {result.get("judged", result["seeds"]) for result in results}
        certificate = self._own_certificate()
        if certificate and certificate.judged_seeds not in file.values.hashes:
            file.values.add(certificate.judged_seeds, [certificate.computed_values_hash])
            looks.add(certificate.judged_seeds)
        if not self.plan.rules.looks:
            file.looks = sorted({*file.looks, *looks})

    def has_trials(self) -> bool:
        """Whether the folder has trials or a certificate of an earlier run."""
        return (self.path / CERTIFICATE_FILE).exists() or any(self.path.glob("runs/*/*/job.json"))

    def _deleted_plan(self) -> Record | None:
        """The plan that was judged in this folder, if only its file is gone: as the certificate or the ledger has it."""
        try:
            return read_record(self.path / CERTIFICATE_FILE).record("plan")
        except DamagedFileError:
            return self.entries.judged_plan() if self.has_trials() else None


def remove_drafts(folder: Path, of_trials: bool) -> None:
    """Remove what a killed process has half written; `of_trials` only where no other machine may be writing them."""
    patterns = ("runs/*", "runs/*/*", "tuning/*/*") if of_trials else ()
    for path in [folder, *(path for pattern in patterns for path in folder.glob(pattern))]:
        remove_leftovers(path)

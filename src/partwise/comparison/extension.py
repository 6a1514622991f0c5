"""Arms that are added to a judged comparison: a new comparison beside it, which reuses its trials. Its verdict stands."""

import copy
import glob
import shutil
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from partwise.comparison.certificate.certificate import Certificate
from partwise.comparison.design.plan import Arm, Plan
from partwise.comparison.plan_file import FixedPlan, PlanFile
from partwise.comparison.results import EarlierFamily
from partwise.comparison.trials.stored import RESULT
from partwise.comparison.trials.workload import Workload
from partwise.comparison.tuning_file import Losses, read_tuning_file
from partwise.config import ConfigError
from partwise.drafts import make_draft
from partwise.files import rename
from partwise.records import Record
from partwise.run_names import LOCK, OWNER, explain_write_errors


def find_folder(path: Path, fixed: FixedPlan) -> tuple[Path, Path | None]:
    """The folder of a plan, and that of the judged comparison whose arms it extends, if `path` has one.

    The plan with more arms goes to `NAME-2`, beside the folder that it extends; one with still more arms to `NAME-3`.
    """
    folder, extended, number = path, None, 1
    while (stored := judged_plan(folder)) is not None and extends(stored, fixed):
        number, extended = number + 1, folder
        folder = path.with_name(f"{path.name}-{number}")
    return folder, extended


def judged_plan(folder: Path) -> Record | None:
    """The plan of a folder's comparison if that has a verdict. Raises ConfigError for a damaged file."""
    file = PlanFile.read(folder)
    return file.plan if file and file.looks else None


def extends(stored: Record, fixed: FixedPlan) -> bool:
    """Whether a plan is the stored one with further arms, and claims about them."""
    names, identity = [arm.text("name") for arm in stored.records("arms")], fixed.values
    arms = [arm for arm in identity["arms"] if arm["name"] in names]
    if len(arms) == len(identity["arms"]) or identity["arms"][0]["name"] != names[0]:
        return False
    fewer = {
        **identity,
        "arms": arms,
        "claims": [claim for claim in identity["claims"] if claim in stored.get("claims", [])],
    }
    fewer |= {key: stored[key] for key in ("question", "task_items") if key in stored}  # follow from the arms
    return not replace(fixed, values=fewer).differences(stored)


@dataclass
class Extension:
    """A judged comparison whose trials another one with more arms reuses."""

    folder: Path
    file: PlanFile
    workload: Workload
    """As it was set up there."""

    @classmethod
    def of(cls, folder: Path, plan: Plan, workload: Workload, data: str) -> Self:
        """Raises ConfigError if data or judged values have changed, or if this machine cannot provide its setup."""
        file = PlanFile.read(folder)
        assert file is not None, "find_folder has found it"
        if file.data != data:
            raise ConfigError(f"the data of {folder} has changed since its first run: choose another --name")
        if file.values.changes:
            raise ConfigError(
                f"the values of {folder} have changed since its verdict, so further arms cannot be judged with them: choose "
                "another --name"
            )
        there = copy.copy(workload.at(folder))
        there.restore_setup(plan, file.setup)
        return cls(folder, file, there)

    def family(self) -> EarlierFamily:
        """The verdicts that stand; none if the certificate is gone."""
        try:
            claims = [verdict for verdict in Certificate.read(self.folder).verdicts if verdict.claim.role == "claim"]
        except ConfigError:
            claims = []
        verdicts = {verdict.claim.arm: verdict.verdict for verdict in claims}
        return EarlierFamily(folder=self.folder.as_posix(), record=self.file.ledger, verdicts=verdicts)

    def reuse(self, arm: Arm, seed: int, folder: Path, workload: Workload) -> None:
        """Copy the finished trial of an arm into a folder that does not exist yet, if both would compute the same."""
        if folder.exists() or not self._same(arm, workload):
            return
        name = glob.escape(self.workload.folder_name(arm))
        found = [path for path in self.folder.glob(f"runs/*-{name}/seed-{seed}") if (path / RESULT).exists()]
        if len(found) == 1:
            with explain_write_errors(folder):
                draft = make_draft(folder)
                shutil.copytree(
                    found[0], draft, symlinks=True, ignore=shutil.ignore_patterns(LOCK, OWNER), dirs_exist_ok=True
                )
                rename(draft, folder)

    def losses(self, arms: Iterable[Arm], workload: Workload) -> Losses:
        """The measurements of tuning there, if tuning here would repeat them."""
        names = [arm["name"] for arm in self.file.plan["arms"]]
        if not all(self._same(arm, workload) for arm in arms if arm.name in names):
            return {}
        return read_tuning_file(self.folder, self.file.hash, self.file.data, self.file.runtime).losses

    def _same(self, arm: Arm, workload: Workload) -> bool:
        try:
            return self.workload.key(arm) == workload.key(arm)
        except KeyError:  # it was not among the arms there
            return False

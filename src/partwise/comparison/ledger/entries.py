"""What one comparison writes to the ledger of its project: its start, every look, its results."""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from partwise.comparison.ledger.chain import ChainEntry, DamagedLedgerError, Ledger
from partwise.comparison.ledger.project import code_version, project_ledger
from partwise.comparison.ledger.questions import asked_before, question_keys, verdict_rows
from partwise.comparison.ledger.sequence import next_level
from partwise.comparison.plan_file import PLAN_FILE
from partwise.comparison.results import OnlineLevel, RepeatedQuestion
from partwise.config import ConfigError, digest
from partwise.messages import print_message

if TYPE_CHECKING:
    from partwise.comparison.design.plan import Plan
    from partwise.comparison.stats.effect import Effect


@dataclass
class LedgerEntries:
    """The records of the comparison in `folder`. A ledger that cannot be written sets `warning` and stops nothing.

    `started` is the number of the record of the comparison's start; None if it has none.
    """

    folder: Path
    ledger: Ledger = field(default_factory=project_ledger)
    started: int | None = None
    warning: str | None = None
    name: str = ""
    """What the listing calls it; by default the name of its folder."""

    def start(
        self,
        plan: "Plan",
        identity: Mapping[str, Any],
        data: str,
        machine: Mapping[str, Any],
        imports: Sequence[str] = (),
        online: bool = False,
        trials_exist: bool = False,
        **facts: Any,
    ) -> OnlineLevel | None:
        """Record that the comparison starts, before its first run; `facts` are added, such as the study it belongs to.

        A start of the same plan in the same folder that has no result, as a killed process leaves, is adopted instead, and
        so is one with a result if its `trials_exist`: each further start would spend a level. With `online`, returns its
        level. Raises ConfigError if that level cannot be recorded: a comparison that no record shows would be outside the
        sequence.
        """
        code = code_version(imports)
        level: OnlineLevel | None = None
        adopted: ChainEntry | None = None

        def content(records: Sequence[ChainEntry]) -> dict[str, Any] | None:
            nonlocal level, adopted
            adopted = self.same_start(records, identity, data, trials_exist)
            if adopted:
                stored = adopted.content["online"]
                level = OnlineLevel(**stored) if stored else None
                return None
            level = next_level(records, plan.rules.alpha) if online else None
            return {
                "kind": "started",
                **self.place(),
                "question": plan.question,
                "questions": {f"{claim.arm} - {claim.against}": key for claim, key in question_keys(plan).items()},
                "plan": digest(identity),
                "identity": dict(identity),
                "common": list(plan.common),
                "seeds": plan.seeds,
                "data": data,
                "online": level.to_dict() if level else None,
                "code": code,
                "machine": dict(machine),
                "supersedes": self.last_start(records),
                **facts,
            }

        try:
            record = self.ledger.append(content) or adopted
            self.started = record.number if record else None
            if adopted:
                self.append({"kind": "resumed", "seeds": plan.seeds, "code": code})
        except DamagedLedgerError as error:
            if online:
                raise ConfigError(
                    f"--online: {error}; move the file away to start a new ledger, or omit --online"
                ) from None
            self.warn(error)
        return level

    def resume(
        self,
        started: int | None,
        seeds: int,
        online: OnlineLevel | None,
        imports: Sequence[str] = (),
        plan: str | None = None,
    ) -> bool:
        """Record that the comparison of record `started` continues or is judged again; `plan` is its hash.

        Returns False if the ledger has no such start, because it could not be written at the time or is another project's:
        `start` then records it. Raises ConfigError if the record has another level than `online`.
        """
        self.started = started
        records = self.readable()
        if records is None:
            return True
        stored = next((record.content for record in records if record.number == started), {})
        if not self.is_my_start(stored, plan):
            self.started = None
            return False
        if not stored.get("late") and stored["online"] != (online.to_dict() if online else None):
            raise ConfigError(
                f"{self.folder} has another online level than record {started} of {self.ledger.path}, so one of them was "
                "changed: choose another --name"
            )
        self.append({"kind": "resumed", "seeds": seeds, "code": code_version(imports)})
        return True

    def look(self, plan: "Plan", seeds: int, effects: Iterable["Effect"], values: str = "") -> None:
        """Record an interim look at `seeds` pairs; a resumed comparison repeats its looks, which adds nothing."""
        self.append(judgment("look", plan, seeds, effects, seeds, values), repeated=False)

    def result(
        self, plan: "Plan", seeds: int, effects: Iterable["Effect"], judged: int | None = None, values: str = ""
    ) -> ChainEntry | None:
        """Record the outcome; `values` is the hash of the first `judged` seeds.

        Returns the record of the first outcome, which stands; None if there is no ledger to write.
        """
        self.append(judgment("result", plan, seeds, effects, judged or seeds, values), repeated=False)
        return next((record for record in self.judgments() if record.content["kind"] == "result"), None)

    def judgments(self) -> list[ChainEntry]:
        """The records of its looks and results, oldest first; [] without a start, or if the ledger cannot be read."""
        if self.started is None:
            return []
        records = self.readable() or []
        return [record for record in records if self.is_mine(record, "look") or self.is_mine(record, "result")]

    def judged_plan(self) -> Any:
        """The plan of the latest comparison in the same folder, if the ledger has a look or a result of it; else None."""
        records = self.readable()
        if records is None:
            return None
        last = self.last_start(records)
        judged = any(
            record.content["kind"] in ("look", "result") and record.content["started"] == last for record in records
        )
        return next(record.content["identity"] for record in records if record.number == last) if judged else None

    def asked_before(self, plan: "Plan") -> list[RepeatedQuestion]:
        """How often each question of the plan was asked before; [] if the ledger cannot be read."""
        records = self.readable()
        return [] if records is None else asked_before(plan, records, self.started)

    def readable(self) -> Sequence[ChainEntry] | None:
        """The records of the ledger; None, after a warning, if it is damaged."""
        try:
            return self.ledger.read()
        except DamagedLedgerError as error:
            self.warn(error)
            return None

    def append(self, content: Mapping[str, Any], repeated: bool = True) -> ChainEntry | None:
        """Add a record of this comparison, with the one of its kind that it supersedes; None if nothing was added.

        Without `repeated`, a record whose content is there already is not added again.
        """

        def complete(records: Sequence[ChainEntry]) -> dict[str, Any] | None:
            same = [record for record in records if self.is_mine(record, content["kind"])]
            if not repeated and any(content.items() <= record.content.items() for record in same):
                return None
            supersedes = same[-1].number if same and content["kind"] == "result" else None
            return {**content, **self.place(), "started": self.started, "supersedes": supersedes}

        if self.started is None:  # its start could not be recorded
            return None
        try:
            return self.ledger.append(complete)
        except DamagedLedgerError as error:
            self.warn(error)
            return None

    def place(self) -> dict[str, str]:
        """The comparison's name, and its folder relative to the project's."""
        project = self.ledger.path.parent.parent
        return {
            "name": self.name or self.folder.name,
            "folder": Path(os.path.relpath(self.folder.resolve(), project)).as_posix(),
        }

    def is_mine(self, record: ChainEntry, kind: str) -> bool:
        content = record.content
        return bool(content["kind"] == kind and content.get("started") == self.started)

    def is_my_start(self, content: Mapping[str, Any], plan: str | None) -> bool:
        """Whether a record is the start of this plan in this folder, or in one that has been renamed since."""
        if content.get("kind") != "started" or (plan is not None and content["plan"] != plan):
            return False
        recorded = self.ledger.path.parent.parent / content["folder"]
        return bool(content["folder"] == self.place()["folder"]) or not (recorded / PLAN_FILE).exists()

    def same_start(
        self, records: Sequence[ChainEntry], identity: Mapping[str, Any], data: str, trials_exist: bool
    ) -> ChainEntry | None:
        """The latest start in the same folder, if it has this plan and these data, and may be continued."""
        last = next((record for record in records if record.number == self.last_start(records)), None)
        if last is None or (last.content["plan"], last.content.get("data")) != (digest(identity), data):
            return None
        has_result = any(
            record.content["kind"] == "result" and record.content["started"] == last.number for record in records
        )
        return last if trials_exist or not has_result else None

    def last_start(self, records: Sequence[ChainEntry]) -> int | None:
        """The latest comparison in the same folder, which this one replaces."""
        folder = self.place()["folder"]
        same = [record.number for record in records if is_start(record, folder)]
        return same[-1] if same else None

    def warn(self, error: DamagedLedgerError) -> None:
        """One line, once."""
        if self.warning is None:
            self.warning = f"{error}; this comparison is not recorded there: move the file away to start a new ledger"
            print_message(f"warning: {self.warning}")


def is_start(record: ChainEntry, folder: str) -> bool:
    content = record.content
    return content["kind"] == "started" and content["folder"] == folder


def judgment(
    kind: str, plan: "Plan", seeds: int, effects: Iterable["Effect"], judged: int, values: str
) -> dict[str, Any]:
    """The content of a look or a result; `values` is the hash of those of the first `judged` seeds, if it is known."""
    content = {"kind": kind, "seeds": seeds, "verdicts": verdict_rows(plan, effects)}
    return {**content, "judged": judged, "values": values} if values else content

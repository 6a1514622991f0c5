"""What one comparison writes to the ledger of its project: its start, every look, its results."""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from partwise.comparison.ledger.chain import DamagedLedgerError, Ledger, Record
from partwise.comparison.ledger.project import code_version, project_ledger
from partwise.comparison.ledger.questions import Asked, asked_before, question_keys, verdict_rows
from partwise.comparison.ledger.sequence import OnlineLevel, next_level
from partwise.config import ConfigError, digest

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

    def start(
        self,
        plan: "Plan",
        identity: Mapping[str, Any],
        data: str,
        machine: Mapping[str, Any],
        imports: Sequence[str] = (),
        online: bool = False,
        **facts: Any,
    ) -> OnlineLevel | None:
        """Record that the comparison starts, before its first run; `facts` are added, such as the study it belongs to.

        With `online`, returns its level. Raises ConfigError if that level cannot be recorded: a comparison that no
        record shows would be outside the sequence.
        """
        code = code_version(imports)
        level: OnlineLevel | None = None

        def content(records: Sequence[Record]) -> dict[str, Any]:
            nonlocal level
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
                "online": asdict(level) if level else None,
                "code": code,
                "machine": dict(machine),
                "supersedes": self.last_start(records),
                **facts,
            }

        try:
            self.started = self.ledger.append(content).number
        except DamagedLedgerError as error:
            if online:
                raise ConfigError(
                    f"--online: {error}; move the file away to begin a new one, or omit --online"
                ) from None
            self.warn(error)
        return level

    def resume(self, started: int | None, seeds: int) -> None:
        """Record that a comparison that started as record `started` goes on or is judged again."""
        self.started = started
        self.append({"kind": "resumed", "seeds": seeds})

    def look(self, plan: "Plan", seeds: int, effects: Iterable["Effect"]) -> None:
        """Record an interim look at `seeds` pairs."""
        self.append({"kind": "look", "seeds": seeds, "verdicts": verdict_rows(plan, effects)})

    def result(self, plan: "Plan", seeds: int, effects: Iterable["Effect"]) -> Record | None:
        """Record the outcome."""
        return self.append({"kind": "result", "seeds": seeds, "verdicts": verdict_rows(plan, effects)}, supersedes=True)

    def asked_before(self, plan: "Plan") -> list[Asked]:
        """How often each question of the plan was asked before; [] if the ledger cannot be read."""
        try:
            return asked_before(plan, self.ledger.read(), self.started)
        except DamagedLedgerError as error:
            self.warn(error)
            return []

    def append(self, content: Mapping[str, Any], supersedes: bool = False) -> Record | None:
        """Add a record of this comparison; None if there is no ledger to write. `supersedes`: the last one of its kind."""

        def complete(records: Sequence[Record]) -> dict[str, Any]:
            added: dict[str, Any] = {**content, **self.place(), "started": self.started}
            if supersedes:
                same = [
                    record for record in records if self.is_mine(record) and record.content["kind"] == content["kind"]
                ]
                added["supersedes"] = same[-1].number if same else None
            return added

        try:
            return self.ledger.append(complete)
        except DamagedLedgerError as error:
            self.warn(error)
            return None

    def place(self) -> dict[str, str]:
        """The comparison's name, and its folder relative to the project's."""
        project = self.ledger.path.parent.parent
        return {"name": self.folder.name, "folder": Path(os.path.relpath(self.folder.resolve(), project)).as_posix()}

    def is_mine(self, record: Record) -> bool:
        return self.started is not None and record.content.get("started") == self.started

    def last_start(self, records: Sequence[Record]) -> int | None:
        """The latest comparison in the same folder, which this one replaces."""
        folder = self.place()["folder"]
        same = [record.number for record in records if is_start(record, folder)]
        return same[-1] if same else None

    def warn(self, error: DamagedLedgerError) -> None:
        self.warning = (
            self.warning or f"{error}; this comparison is not recorded there: move the file away to begin a new one"
        )


def is_start(record: Record, folder: str) -> bool:
    content = record.content
    return content["kind"] == "started" and content["folder"] == folder

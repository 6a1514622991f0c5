"""`compare.json`: everything that is fixed before the first run of a comparison."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from partwise.comparison.design.plan import Configuration
from partwise.comparison.ledger.values import JudgedValues
from partwise.comparison.results import OnlineLevel, read_json
from partwise.comparison.stats.methods import FIRST, find_method, newest_method
from partwise.config import ConfigError, digest
from partwise.config.overrides import difference
from partwise.json_files import write_json
from partwise.records import Record
from partwise.run_names import explain_write_errors

PLAN_FILE = "compare.json"
FIXED = ("format", "plan", "hash", "looks", "data", "ledger", "online", "values")
"""The keys that are no facts about the setup."""


@dataclass(frozen=True)
class FixedPlan:
    """The part of a plan that must be unchanged on resume, the class of its arms' configurations, and its seeds."""

    values: dict[str, Any]
    """As JSON, stored and hashed."""
    kind: type[Configuration]
    seeds: int

    def differences(self, stored: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
        """(setting, stored value, value of this plan) of everything in which it differs from a stored one."""
        return difference({"plan": self._arms_by_name(stored)}, {"plan": self._arms_by_name(self.values)})

    def _arms_by_name(self, values: Mapping[str, Any]) -> dict[str, Any]:
        return {**values, "arms": {arm["name"]: self._complete(arm["config"]) for arm in values["arms"]}}

    def _complete(self, stored: dict[str, Any]) -> dict[str, Any]:
        """A stored configuration with the options that it lacks: those at their neutral values."""
        try:
            return self.kind.from_stored(stored).to_dict()
        except ConfigError:  # an option or a part that this version does not know: the difference names it
            return stored


@dataclass
class PlanFile:
    """What `compare.json` holds."""

    plan: Record
    """The `values` of the comparison's `FixedPlan`."""
    hash: str
    data: str
    """The hash of its data."""
    setup: Mapping[str, Any]
    """What the workload has fixed on this machine."""
    looks: list[int] = field(default_factory=list)
    """Numbers of seeds that were judged."""
    ledger: int | None = None
    """The number of its start in the ledger."""
    online: OnlineLevel | None = None
    """Its level in the online sequence."""
    values: JudgedValues = field(default_factory=JudgedValues)

    @property
    def judged(self) -> int | None:
        """The number of seeds of the first verdict, which stands; None before it."""
        return min(self.looks, default=None)

    @property
    def machine(self) -> dict[str, Any]:
        return self.setup.get("machine", {})

    @property
    def runtime(self) -> dict[str, Any]:
        return self.setup.get("runtime", {})

    @classmethod
    def new(cls, fixed: FixedPlan, data: str, setup: Mapping[str, Any]) -> Self:
        return cls(Record(fixed.values, PLAN_FILE), digest(fixed.values), data, setup)

    @classmethod
    def read(cls, folder: Path) -> Self | None:
        """The file in a folder, if there is one. Raises ConfigError if it is damaged."""
        path = folder / PLAN_FILE
        if not path.exists():
            return None
        stored = read_json(path)
        plan, online = stored.record("plan"), stored.get("online")
        if not isinstance(stored["looks"], list) or not all(type(look) is int for look in stored["looks"]):
            raise ConfigError(f"{path} was changed: its looks are not numbers of seeds; choose another --name")
        setup = Record({key: value for key, value in stored.items() if key not in FIXED}, stored.source)
        values = JudgedValues.read(stored.get("values", {}), str(path))
        level = OnlineLevel.from_dict(online, str(path)) if online else None
        hash, ledger = stored.get("hash", digest(plan)), stored.get("ledger")
        return cls(plan, hash, stored["data"], setup, stored["looks"], ledger, level, values)

    def write(self, folder: Path) -> None:
        """Replace the file in a folder. Raises ConfigError."""
        content = {
            "format": 1,
            "plan": self.plan,
            "hash": self.hash,
            "looks": self.looks,
            "data": self.data,
            **self.setup,
            "ledger": self.ledger,
            "online": self.online.to_dict() if self.online else None,
            **({"values": self.values.to_dict()} if self.values.hashes else {}),
        }
        with explain_write_errors(folder):
            write_json(folder / PLAN_FILE, content)


def stored_method(folder: Path) -> int:
    """The method of judging of an earlier run in a folder; the newest if there is none.

    Raises ConfigError for a damaged file, and for a method of a newer version.
    """
    file = PlanFile.read(folder)
    if file is None:
        return newest_method()
    number = file.plan.whole("method") if "method" in file.plan else FIRST
    try:
        find_method(number)
    except ConfigError as error:
        raise ConfigError(f"{folder}: {error}") from None
    return number


def read_plan_file(folder: Path, fixed: FixedPlan, data_hash: str) -> PlanFile | None:
    """The file of an earlier run, if any. Raises ConfigError if the plan or its data have changed since."""
    path, file = folder / PLAN_FILE, PlanFile.read(folder)
    if file is None:
        return None
    if "variance" in file.plan:
        raise ConfigError(
            f"{folder} has variance={file.plan['variance']}, which no longer exists: choose another --name"
        )
    refuse_other_plan(folder, file.plan, fixed)
    if file.hash != digest(file.plan):
        raise ConfigError(f"{path} was changed after the first run: its hash does not match; choose another --name")
    if bool(file.online) != ("online" in fixed.values):
        raise ConfigError(f"{path} was changed after the first run: its online level is missing; choose another --name")
    if file.data != data_hash:
        raise ConfigError(f"the data of {folder} has changed since its first run: choose another --name")
    refuse_fewer_seeds(folder, file.looks, fixed.seeds)
    return file


def refuse_fewer_seeds(folder: Path, looks: Sequence[int], seeds: int) -> None:
    """Raise ConfigError for fewer seeds than a comparison was judged at."""
    if looks and seeds < max(looks):
        raise ConfigError(
            f"--seeds {seeds}: {folder} was already judged at {max(looks)} seeds, and a look cannot be undone; "
            "give at least as many"
        )


def refuse_other_plan(folder: Path, stored: Record, fixed: FixedPlan) -> None:
    """Raise ConfigError naming the first difference of a plan from that of a folder."""
    for arm in stored.records("arms"):
        arm.text("name"), arm["config"]  # raise for a damaged file
    if rows := fixed.differences(stored):
        key, old, new = rows[0]
        raise ConfigError(f"{folder} holds another comparison ({key} was {old}, now {new}): choose another --name")

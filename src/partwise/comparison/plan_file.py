"""`compare.json`: everything that is fixed before the first run of a comparison."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from partwise.comparison.design.plan import Configuration
from partwise.comparison.results import read_json
from partwise.comparison.stats.methods import FIRST, find_method, newest_method
from partwise.config import ConfigError, digest
from partwise.config.overrides import difference
from partwise.records import Record

PLAN_FILE = "compare.json"


def new_plan_file(identity: dict[str, Any], data_hash: str, setup: dict[str, Any]) -> dict[str, Any]:
    return {"format": 1, "plan": identity, "hash": digest(identity), "looks": [], "data": data_hash, **setup}


def stored_method(folder: Path) -> int:
    """The method of judging of an earlier run in a folder; the newest if there is none.

    Raises ConfigError for a damaged file, and for a method of a newer version.
    """
    path = folder / PLAN_FILE
    if not path.exists():
        return newest_method()
    plan = read_json(path).record("plan")
    number = plan.whole("method") if "method" in plan else FIRST
    try:
        find_method(number)
    except ConfigError as error:
        raise ConfigError(f"{folder}: {error}") from None
    return number


def read_plan_file(
    folder: Path, identity: dict[str, Any], kind: type[Configuration], seeds: int, data_hash: str
) -> dict[str, Any] | None:
    """The file of an earlier run, if any. Raises ConfigError if the plan or its data have changed since.

    `kind` is the class of the arms' configurations.
    """
    path = folder / PLAN_FILE
    if not path.exists():
        return None
    metadata = read_json(path)
    stored = metadata.record("plan")
    if "variance" in stored:
        raise ConfigError(f"{folder} has variance={stored['variance']}, which no longer exists: choose another --name")
    refuse_other_plan(folder, stored, identity, kind)
    if metadata.get("hash", digest(stored)) != digest(stored):
        raise ConfigError(f"{path} was changed after the first run: its hash does not match; choose another --name")
    if bool(metadata.get("online")) != ("online" in identity):
        raise ConfigError(f"{path} was changed after the first run: its online level is missing; choose another --name")
    if metadata["data"] != data_hash:
        raise ConfigError(f"the data of {folder} has changed since its first run: choose another --name")
    if not isinstance(metadata["looks"], list) or not all(type(look) is int for look in metadata["looks"]):
        raise ConfigError(f"{path} was changed: its looks are not numbers of seeds; choose another --name")
    refuse_fewer_seeds(folder, metadata["looks"], seeds)
    return metadata


def refuse_fewer_seeds(folder: Path, looks: Sequence[int], seeds: int) -> None:
    """Raise ConfigError for fewer seeds than a comparison was judged at."""
    if looks and seeds < max(looks):
        raise ConfigError(
            f"--seeds {seeds}: {folder} was already judged at {max(looks)} seeds, and a look cannot be undone; "
            "give at least as many"
        )


def refuse_other_plan(folder: Path, stored: Record, identity: Mapping[str, Any], kind: type[Configuration]) -> None:
    """Raise ConfigError naming the first difference of a plan from that of a folder."""
    for arm in stored.records("arms"):
        arm.text("name"), arm["config"]  # raise for a damaged file
    if rows := plan_differences(stored, identity, kind):
        key, old, new = rows[0]
        raise ConfigError(f"{folder} holds another comparison ({key} was {old}, now {new}): choose another --name")


def plan_differences(
    stored: Mapping[str, Any], identity: Mapping[str, Any], kind: type[Configuration]
) -> list[tuple[str, Any, Any]]:
    """(setting, stored value, value of the plan) of everything in which a plan differs from a stored one."""
    return difference({"plan": _arms_by_name(stored, kind)}, {"plan": _arms_by_name(identity, kind)})


def _arms_by_name(identity: Mapping[str, Any], kind: type[Configuration]) -> dict[str, Any]:
    return {**identity, "arms": {arm["name"]: _complete(arm["config"], kind) for arm in identity["arms"]}}


def _complete(stored: dict[str, Any], kind: type[Configuration]) -> dict[str, Any]:
    """A stored configuration with the options that it lacks: those at their neutral values."""
    try:
        return kind.from_stored(stored).to_dict()
    except ConfigError:  # an option or a part that this version does not know: the difference names it
        return stored

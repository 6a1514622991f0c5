"""`compare.json`: everything that is fixed before the first run of a comparison."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from partwise.comparison.design.plan import Arm, Configuration
from partwise.comparison.results import read_json
from partwise.config import ConfigError, digest
from partwise.config.overrides import difference

PLAN_FILE = "compare.json"


def new_plan_file(identity: dict[str, Any], data_hash: str, setup: dict[str, Any]) -> dict[str, Any]:
    return {"format": 1, "plan": identity, "hash": digest(identity), "looks": [], "data": data_hash, **setup}


def read_plan_file(
    folder: Path, identity: dict[str, Any], arms: Sequence[Arm], seeds: int, data_hash: str
) -> dict[str, Any] | None:
    """The file of an earlier run, if any. Raises ConfigError if the plan or its data have changed since.

    An option that the stored arms lack, as it was added later, has its neutral value there.
    """
    path = folder / PLAN_FILE
    if not path.exists():
        return None
    metadata = read_json(path)
    stored = metadata.record("plan")
    if "variance" in stored:
        raise ConfigError(f"{folder} has variance={stored['variance']}, which no longer exists: choose another --name")
    kind = type(arms[0].config)
    stored_arms = {arm.text("name"): _complete(kind, arm.record("config")) for arm in stored.records("arms")}
    now = {arm.name: arm.config.to_dict() for arm in arms}
    rows = difference({"plan": {**stored, "arms": stored_arms}}, {"plan": {**identity, "arms": now}})
    if rows:
        key, old, new = rows[0]
        raise ConfigError(f"{folder} holds another comparison ({key} was {old}, now {new}): choose another --name")
    if metadata.get("hash", digest(stored)) != digest(stored):
        raise ConfigError(f"{path} was changed after the first run: its hash does not match; choose another --name")
    if bool(metadata.get("online")) != ("online" in identity):
        raise ConfigError(f"{path} was changed after the first run: its online level is missing; choose another --name")
    if metadata["data"] != data_hash:
        raise ConfigError(f"the data of {folder} has changed since its first run: choose another --name")
    if not isinstance(metadata["looks"], list) or not all(type(look) is int for look in metadata["looks"]):
        raise ConfigError(f"{path} was changed: its looks are not numbers of seeds; choose another --name")
    if metadata["looks"] and seeds < max(metadata["looks"]):
        raise ConfigError(
            f"--seeds {seeds}: {folder} was already judged at {max(metadata['looks'])} seeds, and a look cannot be undone; "
            "give at least as many"
        )
    return metadata


def _complete(kind: type[Configuration], stored: dict[str, Any]) -> dict[str, Any]:
    """A stored configuration with the options that it lacks."""
    try:
        return kind.from_stored(stored).to_dict()
    except ConfigError:  # an option or a part that this version does not know: the difference names it
        return stored

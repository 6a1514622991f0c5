"""`result.json`: how a run ended, bound by hashes to its configuration, its metrics and itself. Imports no torch."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from partwise.config import ConfigError, digest
from partwise.json_files import write_hashed
from partwise.records import DamagedFileError, Record, read_record
from partwise.train.metrics import METRICS, metrics_fingerprint

RESULT = "result.json"
HASHES = ("config_sha256", "metrics_sha256", "sha256")
"""The hashes in a result; one that lacks any is refused, or deleting a key would switch off the check."""
WITHOUT_EFFECT = ("train.log", "train.parallel", "train.activation_checkpointing")
"""Settings that may change when a run resumes; see `without_effect`."""


def write_result(folder: Path, values: Mapping[str, Any], config: Mapping[str, Any]) -> None:
    """Write the result of a run with this configuration; its metrics must be complete."""
    bound = {**values, "config_sha256": config_hash(config), "metrics_sha256": metrics_fingerprint(folder)["sha256"]}
    bound.pop("sha256", None)
    write_hashed(folder / RESULT, bound)


def verified_result(folder: Path, config: Mapping[str, Any]) -> dict[str, Any] | None:
    """The result of the run in a folder; None if there is none.

    Raises ConfigError as `read_result` does, and if its metrics have changed.
    """
    values = read_result(folder, config)
    if values is not None and values["metrics_sha256"] != metrics_fingerprint(folder)["sha256"]:
        raise ConfigError(refusal(f"{folder / METRICS} was changed after the run had ended", folder))
    return values


def read_result(folder: Path, config: Mapping[str, Any]) -> Record | None:
    """The result of the run in a folder, without a look at its metrics, which may be long; None if there is none.

    Raises ConfigError if it is damaged, lacks a hash, was changed, or belongs to another configuration.
    """
    path = folder / RESULT
    if not path.exists():
        return None
    try:
        values = read_record(path)
    except DamagedFileError as error:
        raise ConfigError(f"{error}: delete {folder} to train it again") from None
    content = {key: value for key, value in values.items() if key != "sha256"}
    fault = ""
    if missing := [key for key in HASHES if key not in values]:
        fault = f"{path} lacks {missing[0]!r}, which every run writes as it ends"
    elif digest(content) != values["sha256"]:
        fault = f"{path} was changed after the run had ended"
    elif not is_bound_to(content.get("config_sha256"), folder, config):
        fault = f"{path} belongs to a run with another configuration"
    if fault:
        raise ConfigError(refusal(fault, folder))
    return values


def refusal(fault: str, folder: Path) -> str:
    return f"{fault}: restore it, or delete {folder} to train it again"


def is_bound_to(found: Any, folder: Path, config: Mapping[str, Any]) -> bool:
    """Whether a hash is that of this configuration, or of the stored one, which may lack newer settings."""
    if found == config_hash(config):
        return True
    try:
        stored = read_record(folder / "run.json")["config"]
        known, now = with_new_settings(stored), with_new_settings(config)
        return found == config_hash(stored) and config_hash(known) == config_hash(now)
    except (DamagedFileError, KeyError, TypeError, AttributeError):  # no run.json, or a damaged one
        return False


def with_new_settings(stored: Mapping[str, Any]) -> dict[str, Any]:
    """A stored configuration with settings that were added since: at their neutral values, which compute as before."""
    from partwise.train.config import RunConfig  # imports torch

    try:
        return RunConfig.from_stored(stored).to_dict()
    except ConfigError:  # a setting that this version does not know
        return dict(stored)


def without_effect(config: Mapping[str, Any]) -> tuple[str, ...]:
    """The settings of a run that may change when it resumes."""
    return (*WITHOUT_EFFECT, "train.threads") if config["train"].get("deterministic") else WITHOUT_EFFECT


def config_hash(config: Mapping[str, Any]) -> str:
    """The digest of a run's configuration as a mapping, without the settings that may change when it resumes."""
    ignored = without_effect(config)
    train = {key: value for key, value in config["train"].items() if f"train.{key}" not in ignored}
    return digest({**config, "train": train})

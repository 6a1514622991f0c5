"""`tuning.json`: the losses that tuning has measured. They replace its runs if the comparison moves to another machine.

Copied into the folder of the same comparison there, without the runs, the file spares them: only what it lacks is trained.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from partwise.comparison.trials.trial import Trial, final_values
from partwise.config import ConfigError
from partwise.json_files import check_hash, write_hashed
from partwise.records import DamagedFileError, Record, read_record
from partwise.run_names import explain_write_errors

TUNING_FILE, FORMAT = "tuning.json", 1

OTHER = {
    "plan": "another comparison",
    "data": "other data",
    "device": "another device",
    "precision": "another precision",
}

Losses = dict[str, dict[int, float]]
"""An arm at a value -> seed -> the loss, or the value of another metric; nan if the run failed."""


@dataclass
class TuningFile:
    """The measurements of tuning for `purpose`: the plan, its data and the arithmetic of its runs."""

    path: Path
    purpose: dict[str, Any]
    losses: Losses = field(default_factory=dict)
    seconds: float = 0.0
    """The time that the measurements took."""

    def has(self, arm: str, seed: int) -> bool:
        return seed in self.losses.get(arm, {})

    def add(self, trials: Iterable[Trial], seconds: float) -> None:
        """Write the values of the finished trials among these."""
        for arm, values in final_values([trial for trial in trials if trial.finished]).items():
            self.losses.setdefault(arm, {}).update(values)
        self.seconds += seconds
        losses = {
            arm: {str(seed): value if math.isfinite(value) else None for seed, value in values.items()}
            for arm, values in self.losses.items()
        }
        with explain_write_errors(self.path):
            write_hashed(self.path, {"format": FORMAT, **self.purpose, "losses": losses, "seconds": self.seconds})


def read_tuning_file(folder: Path, plan_hash: str, data_hash: str, runtime: Mapping[str, Any]) -> TuningFile:
    """The file of a comparison's folder, empty if there is none. Raises ConfigError if it is damaged, or of another one."""
    arithmetic = {key: runtime.get(key) for key in ("device", "precision")}
    purpose = {"plan": plan_hash, "data": data_hash, **arithmetic}
    path = folder / TUNING_FILE
    if not path.exists():
        return TuningFile(path, purpose)
    remedy = "delete it to tune again, or restore it"
    try:
        content = read_record(path)
        if "format" not in content:  # an earlier version wrote a summary, which has no use
            return TuningFile(path, purpose)
        check_hash({key: value for key, value in content.items() if key != "sha256"}, content["sha256"], path, remedy)
        if content["format"] != FORMAT:
            raise ConfigError(f"{path} has format {content['format']}, not {FORMAT}: {remedy}")
        for key, expected in purpose.items():
            if content[key] != expected:
                other = OTHER[key]
                raise ConfigError(
                    f"{path} holds the tuning of {other} ({key} {content[key]}, not {expected}): {remedy}"
                )
        return TuningFile(path, purpose, read_losses(content.record("losses")), content.number("seconds"))
    except DamagedFileError as error:
        raise ConfigError(f"{error}: {remedy}") from None


def read_losses(content: Record) -> Losses:
    """Raises DamagedFileError."""
    losses: Losses = {}
    for arm in content:
        values = content.record(arm)
        if not all(seed.isdecimal() for seed in values):
            raise DamagedFileError(f"{content.source} is damaged: the seeds of {arm!r} are not whole numbers")
        losses[arm] = {int(seed): math.nan if values[seed] is None else values.number(seed) for seed in values}
    return losses

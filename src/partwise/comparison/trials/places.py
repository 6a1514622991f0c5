"""The places where trials run: this machine, wherever `partwise work` runs, or a Ray cluster."""

import re
from pathlib import Path

from partwise.comparison.trials.executor import Executor
from partwise.comparison.trials.ray import RayExecutor
from partwise.comparison.trials.shared import SharedExecutor
from partwise.comparison.trials.workload import Workload
from partwise.config import ConfigError, did_you_mean

PLACES = ("local", "workers", "ray", "ray://HOST:PORT")


def check_place(text: str) -> str:
    """Raises ConfigError for an unknown place."""
    if text not in PLACES[:3] and not re.fullmatch(r"ray://[\w.-]+:\d+", text):
        raise ConfigError(f"--on {text}: unknown place{did_you_mean(text, PLACES)}")
    return text


def make_executor(place: str, folder: Path, workload: Workload) -> Executor:
    """The executor of a workload's trials; `folder` is that of the comparison. Raises ConfigError for an unknown place."""
    if check_place(place) == "local":
        return workload.executor()
    return SharedExecutor(folder) if place == "workers" else RayExecutor(folder, place, workload.resources())

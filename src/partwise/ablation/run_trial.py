"""A training run of ours as a trial of a comparison."""

import json
import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from partwise.ablation.outcome import read_outcome
from partwise.ablation.task_metric import is_scored
from partwise.checkpoint import list_checkpoints, load
from partwise.comparison.results import TrialResult
from partwise.comparison.trials.job import JOB, RUNS
from partwise.comparison.trials.trial import REPEATING, VALIDATION_LOSS, Trial
from partwise.compute.runtime import Runtime
from partwise.config import ConfigError, find_part, open_to_read
from partwise.files import own_sources, refuse_links
from partwise.json_files import write_json
from partwise.model import Transformer
from partwise.records import Record, read_record
from partwise.run_names import explain_write_errors
from partwise.train.config import RunConfig
from partwise.train.result import verified_result
from partwise.train.run_metadata import read_metadata
from partwise.train.shared_prefix import with_steps
from partwise.version import __version__


@dataclass
class RunTrial(Trial):
    """One run, in a folder with its `job.json`, and in `horizons/` the shorter runs that it extends, if there are any."""

    horizons: tuple[int, ...] = ()
    """The steps of all of its runs in ascending order; empty if there is one."""

    def progress(self) -> int:
        """The last step in the metrics of any of the runs."""
        return max(
            self._last_step(folder) for folder in (self.folder, *shorter_runs(self.folder, self.horizons).values())
        )

    def _last_step(self, folder: Path) -> int:
        path = folder / "metrics.jsonl"
        if not path.is_file():
            return 0
        with open_to_read(path) as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - 1000))
            lines = file.read().splitlines()
        for line in reversed(lines):
            try:
                return int(json.loads(line)["step"])
            except (ValueError, KeyError, TypeError, RecursionError):
                continue
        return 0

    def stored_status(self) -> str | None:
        return stored_status(self.folder)

    def outcome(self, metric: str) -> TrialResult:
        found = read_outcome(self.folder, self.seed, self.steps, metric)
        shorter = shorter_runs(self.folder, self.horizons)
        values = [(steps, read_outcome(path, self.seed, steps, metric).value) for steps, path in shorter.items()]
        return found.model_copy(update={"horizons": (*values, (self.steps, found.value))}) if values else found


def shorter_runs(folder: Path, horizons: Sequence[int]) -> dict[int, Path]:
    """The folder of each run but the longest, by its steps."""
    return {steps: folder / "horizons" / str(steps) for steps in horizons[:-1]}


def prepare_run(
    folder: Path,
    arm: str,
    seed: int,
    config: RunConfig,
    runtime: Runtime,
    plan: list[dict[str, Any]],
    imports: Sequence[str],
    command: str,
    metric: str = VALIDATION_LOSS,
    horizons: tuple[int, ...] = (),
    processes: int = 1,
    keeps_weights: bool = True,
) -> RunTrial:
    """Write `job.json` and return the trial, waiting or already finished.

    `processes` train the run together. Unless it `keeps_weights`, its checkpoints are removed when it has ended.
    """
    refuse_links(folder.parent)
    refuse_links(folder, {"horizons": 1})
    folder.mkdir(parents=True, exist_ok=True)
    job: dict[str, Any] = {
        "executed_by": RUNS,
        "version": __version__,
        "sources": own_sources(),
        "config": config.to_stored(),
        "runtime": runtime.to_dict(),
        "plan": plan,
        "imports": list(imports),
        "metric": metric,
        "processes": processes,
        "command": shlex.split(command),
    }
    if horizons:
        job["horizons"] = list(horizons)
    if not keeps_weights:
        job["keeps_weights"] = False
    with explain_write_errors(folder):
        write_json(folder / "job.json", job)
    return RunTrial(arm, seed, folder, config.train.steps, stored_status(folder) or "waiting", horizons)


def trained_model(arm: str, trials: Sequence[Trial]) -> Transformer | None:
    """The model of an arm's first trial that did not diverge and whose weights were not deleted; None if there is none.

    A verdict needs no weights, so a comparison can do without them. Raises ConfigError if they are damaged.
    """
    done = (trial.folder for trial in trials if trial.arm == arm and trial.status == "done")
    folder = next((folder for folder in done if list_checkpoints(folder / "checkpoints")), None)
    return load(folder)[0] if folder else None


def check_data(folder: Path, config: RunConfig, data_hash: str) -> None:
    """Raise ConfigError if a finished run was trained on other data: its seeds would be paired with those of new data."""
    if read_metadata(folder)["data"]["hash"] != data_hash:
        raise ConfigError(
            f"{folder} was trained on other data than data={config.data.name} has now: restore the data, or delete this "
            f"folder to train the run again{REPEATING}"
        )


def stored_status(folder: Path) -> str | None:
    """The status of the run in a folder with its job, if all of its runs have ended and are scored; None otherwise.

    Raises ConfigError if a result or metrics are not those with which a run ended.
    """
    job = read_record(folder / JOB)
    config, metric = job.record("config"), job["metric"]
    for steps, path in shorter_runs(folder, read_horizons(job)).items():
        if run_status(path, with_steps(RunConfig.from_stored(config), steps).to_stored(), metric) is None:
            return None
    return run_status(folder, config, metric)


def read_horizons(job: Record) -> tuple[int, ...]:
    """The steps of a job's runs, from its file. Raises ConfigError."""
    horizons = job.get("horizons", [])
    if not isinstance(horizons, list) or not all(type(steps) is int and steps > 0 for steps in horizons):
        raise ConfigError(f"{job.source} is damaged: horizons is not a list of numbers of steps; delete its folder")
    return tuple(horizons)


def run_status(folder: Path, config: Mapping[str, Any], metric: str) -> str | None:
    """The status of one run; None if it has not ended or is not scored. Raises ConfigError for a changed result."""
    try:
        result = verified_result(folder, config)
    except ConfigError as error:
        raise ConfigError(f"{error}{REPEATING}") from None
    if result is None:
        return None
    if "diverged" in result:
        return "diverged"
    corpus: Any = find_part("data", config["data"]["part"])
    has_answers = corpus.task == "arithmetic" and not config["train"]["tuning_split"]
    scored = "accuracy" in result or not has_answers
    return "done" if scored and is_scored(result, metric) else None

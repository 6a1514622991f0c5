"""A training run of ours as a trial of a comparison."""

import json
import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from partwise import __version__
from partwise.checkpoint import write_json
from partwise.comparison.results import TrialResult
from partwise.comparison.runs import EXECUTED_BY
from partwise.comparison.runs.outcome import read_outcome
from partwise.comparison.runs.task_metric import is_scored
from partwise.comparison.trials.job import JOB
from partwise.comparison.trials.trial import VALIDATION_LOSS, Trial
from partwise.compute.runtime import Runtime
from partwise.config import find_part
from partwise.files import open_to_read
from partwise.records import read_record
from partwise.train.config import RunConfig
from partwise.train.result import verified_result
from partwise.train.run_names import explain_write_errors


class RunTrial(Trial):
    """One run, in a folder with its `job.json`."""

    def progress(self) -> int:
        """The last step in the run's metrics."""
        path = self.folder / "metrics.jsonl"
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
        return read_outcome(self.folder, self.seed, self.steps, metric)


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
    processes: int = 1,
) -> RunTrial:
    """Write `job.json` and return the trial, waiting or already finished. `processes` train the run together."""
    folder.mkdir(parents=True, exist_ok=True)
    job = {
        "executed_by": EXECUTED_BY,
        "version": __version__,
        "config": config.to_dict(),
        "runtime": runtime.to_dict(),
        "plan": plan,
        "imports": list(imports),
        "metric": metric,
        "processes": processes,
        "command": shlex.split(command),
    }
    with explain_write_errors(folder):
        write_json(folder / "job.json", job)
    return RunTrial(arm, seed, folder, config.train.steps, stored_status(folder) or "waiting")


def stored_status(folder: Path) -> str | None:
    """The status of the run in a folder with its job, if it has ended and is scored; None otherwise.

    Raises ConfigError if its result or its metrics are not those with which it ended.
    """
    job = read_record(folder / JOB)
    config = job.record("config")
    result = verified_result(folder, config)
    if result is None:
        return None
    if "diverged" in result:
        return "diverged"
    corpus: Any = find_part("data", config["data"]["part"])
    has_answers = corpus.task == "arithmetic" and not config["train"]["tuning_split"]
    scored = "accuracy" in result or not has_answers
    return "done" if scored and is_scored(result, job["metric"]) else None

"""One execution of a command as a trial, and the two files of its folder: `job.json` and `result.json`."""

import os
from pathlib import Path
from typing import Any, Literal, Self

from partwise.checkpoint import write_json
from partwise.comparison.commands import EXECUTED_BY
from partwise.comparison.results import TrialResult, Value, read_json
from partwise.comparison.trials.trial import NO_VALUE, Trial
from partwise.config import ConfigError, digest

JOB, RESULT, OUTPUT = "job.json", "result.json", "output"
"""The files of a trial's folder; `output` is the folder that `{folder}` stands for."""

STDOUT, STDERR = "stdout.txt", "stderr.txt"


class Outcome(Value):
    """What came of a job. It belongs to the job by its hash: a result copied from elsewhere is not believed."""

    format: Literal[1] = 1
    job: str
    status: Literal["done", "failed"]
    reason: str | None = None
    """Why there is no value."""
    value: float | None = None
    curve: tuple[tuple[int, float], ...] = ()
    """[step, value]"""
    exit_status: int | None = None
    seconds: float = 0.0
    attempts: int = 1

    @classmethod
    def of_job(cls, folder: Path, job: str) -> Self | None:
        """The outcome of the job with this hash; None if there is none, or it is damaged or another's."""
        try:
            outcome = cls.from_dict(read_json(folder / RESULT))
        except ConfigError:
            return None
        return outcome if outcome.job == job else None


class CommandTrial(Trial):
    """A command, in a folder with its `job.json`. It counts as one step."""

    job: str = ""

    def progress(self) -> int:
        return int(self.finished)

    def outcome(self, metric: str) -> TrialResult:
        outcome = Outcome.of_job(self.folder, self.job)
        if outcome is None:
            raise ConfigError(f"{self.folder / RESULT} is not the result of its job: run the same command again")
        return TrialResult(
            seed=self.seed,
            value=outcome.value,
            reason=outcome.reason,
            seconds=outcome.seconds,
            log=f"{'/'.join(self.folder.parts[-3:])}/{STDERR if outcome.reason else STDOUT}",
            evaluations=tuple((step, value, None) for step, value in outcome.curve),
        )


def prepare_trial(folder: Path, arm: str, seed: int, job: dict[str, Any], cwd: Path) -> CommandTrial:
    """Write `job.json` and return the trial, waiting or already finished."""
    key = digest(job)
    outcome = Outcome.of_job(folder, key)
    status = "waiting"
    if outcome:
        status = "done" if outcome.status == "done" else f"{NO_VALUE}: {outcome.reason}"
    else:
        folder.mkdir(parents=True, exist_ok=True)
        write_json(
            folder / JOB, {"executed_by": EXECUTED_BY, "parent": os.getpid(), "cwd": str(cwd), "hash": key, "job": job}
        )
    trial = CommandTrial(arm, seed, folder, 1, status)
    trial.job = key
    return trial

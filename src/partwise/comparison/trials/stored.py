"""A trial that is described by `job.json` and whose outcome is `result.json`: a command, or a function."""

import errno
import os
import signal
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field

from partwise.comparison.results import TrialResult, Value, read_json
from partwise.comparison.trials.job import JOB
from partwise.comparison.trials.trial import NO_VALUE, REPEATING, Trial
from partwise.config import ConfigError, digest
from partwise.config.neutral import Neutral
from partwise.files import file_sha256, own_sources, refuse_links, rename
from partwise.json_files import check_hash, write_hashed, write_json
from partwise.records import read_record
from partwise.run_names import explain_write_errors
from partwise.version import __version__

RESULT = "result.json"
STDOUT, STDERR = "stdout.txt", "stderr.txt"


OUTSIDE_SIGNALS = (1, 2, 3, 9, 15, getattr(signal, "SIGBUS", 7))
"""SIGHUP, SIGINT, SIGQUIT, SIGKILL, SIGTERM and SIGBUS by their numbers, also where a record of another system is read.

A program does not cause them itself, unlike SIGSEGV or SIGABRT: they are from a scheduler, a system short of memory, a user.
SIGBUS is what a full disk sends to a program that writes to mapped memory."""

FULL_DISK = (os.strerror(errno.ENOSPC), os.strerror(errno.EDQUOT))
REPEATED = "before-repeat"
"""In the names of the files of an outcome that was set aside."""


class Outcome(Value):
    """A job's result, hashed with the job and the files that its value was read from."""

    format: Literal[1] = 1
    job: str = ""
    status: Literal["done", "failed"]
    reason: str | None = None
    """Why there is no value."""
    value: float | None = None
    curve: tuple[tuple[int, float], ...] = ()
    """[step, value]"""
    exit_status: int | None = None
    seconds: float = 0.0
    attempts: int = 1
    peak_memory: Annotated[int | None, Neutral(None)] = None
    """The most bytes that one process of a command had in memory; None where the system does not tell."""
    sources: dict[str, str] = Field(default_factory=dict)
    """The SHA-256 of each file in the folder that the value was read from, by its name; none for a function."""

    @property
    def trial_status(self) -> str:
        return "done" if self.status == "done" else f"{NO_VALUE}: {self.reason}"

    @property
    def machine_failure(self) -> str | None:
        """The reason of a failure whose cause is the machine: a signal from outside, or a full disk."""
        status = self.exit_status or 0
        number = -status if status < 0 else status - 128  # of a shell whose child the signal ended
        if self.status == "failed" and (number in OUTSIDE_SIGNALS or (self.reason or "").endswith(FULL_DISK)):
            return self.reason
        return None

    @classmethod
    def of_job(cls, folder: Path, job: str) -> Self | None:
        """The outcome of the job with this hash; None if there is none, or it is damaged or another's.

        Raises ConfigError if it, or a file that its value was read from, was changed.
        """
        path = folder / RESULT
        try:
            stored = read_record(path)
            sha256 = stored.pop("sha256", None)
            outcome = cls.from_dict(stored)
        except ConfigError:
            return None
        if outcome.job != job:
            return None
        remedy = f"restore it, or delete {folder} to run it again{REPEATING}"
        check_hash(stored, sha256, path, remedy)
        for name, expected in outcome.sources.items():
            if not has_hash(folder / name, expected):
                raise ConfigError(f"{folder / name} was changed or removed after the trial had ended: {remedy}")
        return outcome

    def write(self, folder: Path, job: str) -> str:
        """Store it as the outcome of a job; returns the status of the trial."""
        write_hashed(folder / RESULT, self.model_copy(update={"job": job}).to_dict())
        return self.trial_status


def hash_files(folder: Path, paths: Iterable[Path]) -> dict[str, str]:
    """The SHA-256 of the files in a trial's folder by name. Others are left out: later trials may write them again."""
    root = folder.resolve()
    found = [path.resolve() for path in paths]
    return {path.relative_to(root).as_posix(): file_sha256(path) for path in found if path.is_relative_to(root)}


def has_hash(path: Path, sha256: str) -> bool:
    try:
        return path.is_file() and file_sha256(path) == sha256
    except OSError:
        return False


class StoredTrial(Trial):
    """A trial in a folder with its `job.json`. It counts as one step."""

    job: str = ""

    def progress(self) -> int:
        return int(self.finished)

    def stored_status(self) -> str | None:
        outcome = Outcome.of_job(self.folder, self.job)
        return outcome.trial_status if outcome else None

    def forget(self) -> None:
        (self.folder / RESULT).unlink(missing_ok=True)

    @property
    def machine_failure(self) -> str | None:
        outcome = Outcome.of_job(self.folder, self.job) if self.has_no_value else None
        return outcome.machine_failure if outcome else None

    def repeat(self) -> None:
        number = len(self.repeats) + 1
        with explain_write_errors(self.folder):
            for name in (STDOUT, STDERR, RESULT):  # the result last: until then it counts
                if (path := self.folder / name).exists():
                    rename(path, path.with_stem(f"{path.stem}-{REPEATED}-{number}"))
        self.status = "waiting"

    @property
    def repeats(self) -> list[str]:
        """The reasons for which it was repeated."""
        files = sorted(self.folder.glob(f"{Path(RESULT).stem}-{REPEATED}-*.json"))
        return [str(read_record(path).get("reason")) for path in files]

    def outcome(self, metric: str) -> TrialResult:
        outcome = Outcome.of_job(self.folder, self.job)
        if outcome is None:
            raise ConfigError(f"{self.folder / RESULT} is not the result of its job: run the same command again")
        log = STDERR if outcome.reason else STDOUT
        return TrialResult(
            seed=self.seed,
            value=outcome.value,
            reason=outcome.reason,
            seconds=outcome.seconds,
            peak_memory=outcome.peak_memory,
            log="/".join((*self.folder.parts[-3:], log)) if (self.folder / log).exists() else None,
            evaluations=tuple((step, value, None) for step, value in outcome.curve),
        )


def stored_status(folder: Path) -> str | None:
    """The status of the trial in a folder, if its job has ended; None otherwise."""
    outcome = Outcome.of_job(folder, read_json(folder / JOB).text("hash"))
    return outcome.trial_status if outcome else None


def prepare_trial(
    folder: Path, arm: str, seed: int, job: dict[str, Any], executed_by: str, place: Mapping[str, Any]
) -> StoredTrial:
    """Write `job.json` and return the trial, waiting or already finished.

    A result belongs to the job alone; `place` is stored beside it, for what it is `executed_by`.
    """
    key = digest(job)
    outcome = Outcome.of_job(folder, key)
    if outcome is None:
        code = {"version": __version__, "sources": own_sources()}
        stored = {"executed_by": executed_by, **code, "place": dict(place), "hash": key, "job": job}
        refuse_links(folder.parent)
        refuse_links(folder)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            write_json(folder / JOB, stored)
        except OSError as error:
            raise ConfigError(
                f"cannot write {folder / JOB}: {error.strerror}: check disk space and permissions, then rerun"
            ) from None
    trial = StoredTrial(arm, seed, folder, 1, outcome.trial_status if outcome else "waiting")
    trial.job = key
    return trial

"""A command in a worker process: run it, wait, read its numbers, write `result.json`."""

import contextlib
import math
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from partwise.any_code.command_plan import CommandConfig
from partwise.any_code.experiment_file import Curve, Metric, TrialLimits
from partwise.any_code.numbers import read_curve, read_metric, source_files
from partwise.any_code.result_files import ResultFiles, empty_output
from partwise.any_code.template import fill_words
from partwise.any_code.worktrees import Repository
from partwise.comparison.trials.stored import JOB, STDERR, STDOUT, Outcome, hash_files, stored_status
from partwise.config import ConfigError, digest, open_to_read
from partwise.files import open_file, rename
from partwise.openmp import without_limit
from partwise.processes import ProcessGroup, ended_by
from partwise.records import read_record

__all__ = ["execute", "stored_status"]

OUTPUT, EVALUATION = "output", "evaluation"
"""In the folder of a trial: what `{folder}` stands for; and the output of the command that measures it."""

POLL_SECONDS = 0.05
GRACE_SECONDS = 10.0
"""Between asking a command to end and killing it."""

THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


@dataclass
class Ended:
    """How a process ended: its exit status, or what stopped it."""

    status: int
    seconds: float
    interrupted: bool = False
    timed_out: bool = False
    rank: int = 0
    """Which of several processes has this status."""
    peak_memory: int | None = None
    """Bytes, summed over several processes; None where the system does not tell."""

    def fault(self, minutes: float | None, folder: Path) -> str | None:
        """Why it has no value; None if it ended well."""
        if self.timed_out:
            return f"it ran longer than {minutes:g} minutes"
        which = f"rank {self.rank}: " if self.rank else ""
        if name := ended_by(self.status):
            memory = ", as by a system that is out of memory" if name == "SIGKILL" else ""
            return f"{which}killed by {name}{memory}"
        if self.status:
            last = last_line(folder / log_name(self.rank))
            return f"{which}exit status {self.status}" + (f": {last}" if last else "")
        return None


def log_name(rank: int) -> str:
    """The file of a trial with what a process writes to stderr; but for the first, to stdout as well."""
    return STDERR if rank == 0 else f"rank-{rank}.txt"


def execute(folders: list[Path], should_stop: Callable[[], bool]) -> list[str]:
    """Run the commands of the folders one after the other; returns their statuses."""
    return [execute_one(folder, should_stop) for folder in folders]


def execute_one(folder: Path, should_stop: Callable[[], bool]) -> str:
    stored = read_record(folder / JOB)
    job = stored["job"]
    if digest(job) != stored["hash"]:
        raise ConfigError(f"{folder / JOB} was changed: run the comparison again")
    limits, place = TrialLimits.from_stored(job["trial"]), stored["place"]
    cwd, locks = Path(place["cwd"]), Path(place.get("locks", folder.parent))
    config, output = CommandConfig.from_stored(job["config"]), folder / OUTPUT
    values = config.values(job["arm"], job["seed"], str(output.resolve()))
    sources = [kind.from_stored(job[key]) for key, kind in (("metric", Metric), ("curve", Curve)) if job[key]]
    evaluation = Evaluation(job["evaluate"], place["evaluation"]) if "evaluate" in job else None
    files = ResultFiles(folder, output, cwd, values, [] if evaluation else sources)
    outcome: Outcome | None = None
    for attempt in range(1, limits.retries + 2):
        with files.reserved(locks, should_stop) as reserved:
            outcome = (
                attempt_once(job, stored["hash"], config, files, limits, attempt, should_stop, evaluation)
                if reserved
                else None
            )
            if "short" in place:
                files.remove_made()
        if outcome is None:
            return "interrupted"
        if outcome.status == "done":
            break
    assert outcome is not None
    folder.mkdir(parents=True, exist_ok=True)  # the command may have removed it
    return outcome.write(folder, stored["hash"])


def attempt_once(
    job: Mapping[str, Any],
    key: str,
    config: CommandConfig,
    files: ResultFiles,
    limits: TrialLimits,
    attempt: int,
    should_stop: Callable[[], bool],
    evaluation: "Evaluation | None" = None,
) -> Outcome | None:
    """One execution of the job with the hash `key`; None if it was stopped."""
    folder, cwd, values = files.folder, files.cwd, files.values
    if attempt > 1:
        for name in (STDOUT, *(log_name(rank) for rank in range(limits.processes))):
            rename(folder / name, folder / name.replace(".txt", f"-attempt-{attempt - 1}.txt"))
    empty_output(folder, files.output, key, resumes=limits.resumable and attempt == 1)
    files.start(key)
    words = config.words(values, tuple(job["check"]))
    ended = run(words, cwd, environment(config.variables(values), limits), folder, limits, should_stop)
    if ended.interrupted:
        return None
    facts: dict[str, Any] = {"exit_status": ended.status, "seconds": ended.seconds, "attempts": attempt}
    facts["peak_memory"] = ended.peak_memory
    reason = ended.fault(limits.minutes, folder)
    metric = Metric.from_stored(job["metric"])
    if reason is None and evaluation:
        files, ended = evaluation.run(files, config, metric, limits, should_stop)
        if ended.interrupted:
            return None
        reason = ended.fault(limits.minutes, files.folder)
        reason = reason and f"the evaluation: {reason}"
    if reason is None:
        try:
            metric = files.written(metric)
            facts["value"] = read_metric(metric, files.folder, files.cwd, values)
            facts["sources"] = hash_files(folder, source_files(metric, files.folder, files.cwd, values))
        except ConfigError as error:
            reason = str(error)
    if job["curve"]:
        with contextlib.suppress(ConfigError):  # a missing curve costs a figure, not the trial
            curve = files.written(Curve.from_stored(job["curve"]))
            facts["curve"] = tuple(read_curve(curve, folder, cwd, values))
    return Outcome(status="failed" if reason else "done", reason=reason, **facts)


@dataclass(frozen=True)
class Evaluation:
    """A command that measures what a trial has left in `{folder}`, in a new checkout at `place`."""

    command: str
    place: Mapping[str, Any]

    def run(
        self,
        trained: ResultFiles,
        config: CommandConfig,
        metric: Metric,
        limits: TrialLimits,
        should_stop: Callable[[], bool],
    ) -> tuple[ResultFiles, Ended]:
        """Measure; returns the files to read the metric from. Raises ConfigError without a checkout."""
        repository = Repository(Path(self.place["repository"]), Path(self.place["inside"]))
        folder, worktree = trained.folder / EVALUATION, Path(self.place["worktree"])
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        if worktree.exists():
            repository.remove_worktree(worktree)
        cwd = repository.add_worktree(worktree, self.place["commit"], self.place["share"], self.place["setup"])
        files = ResultFiles(folder, trained.output, cwd, trained.values, [metric])
        files.start("evaluation")
        words = fill_words(self.command, (), files.values)
        variables = environment(config.variables(files.values), limits)
        return files, run(words, cwd, variables, folder, limits, should_stop)


def environment(variables: Mapping[str, str], limits: TrialLimits) -> dict[str, str]:
    """This process's environment with the trial's variables; threads follow `cpus`, unless the user sets them."""
    threads = dict.fromkeys(THREAD_VARIABLES, str(limits.cpus))
    return {**threads, "PYTHONUNBUFFERED": "1", **without_limit(os.environ), **variables}


def run(
    words: list[str],
    cwd: Path,
    env: Mapping[str, str],
    folder: Path,
    limits: TrialLimits,
    should_stop: Callable[[], bool],
) -> Ended:
    """Run a command to its end, with its output in `folder`, or stop it with all its children.

    If several processes run it, the end of one that fails ends all.
    """
    start = time.monotonic()
    deadline = start + 60 * (math.inf if limits.minutes is None else limits.minutes)
    groups: list[ProcessGroup] = []
    interrupted = timed_out = False
    try:
        for variables in ranks(limits.processes):
            group = launch(words, cwd, {**env, **variables}, folder, len(groups))
            if group is None:
                return Ended(127, 0.0, rank=len(groups))
            groups.append(group)
        while running := [each for each in groups if each.poll() is None]:
            if any(each.poll() for each in groups):
                break
            if running[0].wait(POLL_SECONDS) is not None:
                continue
            interrupted, timed_out = should_stop(), time.monotonic() > deadline
            if interrupted or timed_out:
                break
        # one that was killed comes first: the others fail because they lost it
        order = sorted(range(len(groups)), key=lambda rank: (groups[rank].poll() or 0) >= 0)
        rank = next((rank for rank in order if groups[rank].poll()), 0)
    finally:
        stop(groups)
    used = [group.peak_memory for group in groups if group.peak_memory is not None]
    memory = sum(used) if used else None
    return Ended(groups[rank].wait() or 0, time.monotonic() - start, interrupted, timed_out, rank, memory)


def ranks(n: int) -> list[dict[str, str]]:
    """The variables of torchrun for each of several processes; none for one."""
    if n == 1:
        return [{}]
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    shared = {"WORLD_SIZE": str(n), "LOCAL_WORLD_SIZE": str(n), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    return [{**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(n)]


def launch(words: list[str], cwd: Path, env: Mapping[str, str], folder: Path, rank: int) -> ProcessGroup | None:
    """Start the command as a group of its own; None, with the reason in its log, if it cannot be started."""
    with contextlib.ExitStack() as files:
        for name in {log_name(rank), *([STDOUT] if rank == 0 else [])}:
            (folder / name).unlink(missing_ok=True)  # a worker that lost this trial may still write to it for a moment
        stderr = files.enter_context(open_file(folder / log_name(rank), "wb"))
        stdout = files.enter_context(open_file(folder / STDOUT, "wb")) if rank == 0 else stderr
        try:
            # no command outlives its worker
            return ProcessGroup(words, cwd=cwd, env=dict(env), stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            stderr.write(f"cannot start {words[0]}: {reason}\n".encode())
            return None


def stop(groups: list[ProcessGroup]) -> None:
    """End the processes that still run (ask, wait, kill) and those they left behind, which would disturb the next trial."""
    for group in groups:
        group.ask()
    deadline = time.monotonic() + GRACE_SECONDS
    for group in groups:
        group.wait(max(0.0, deadline - time.monotonic()))
        group.kill()


def last_line(path: Path) -> str:
    """The last line of a log, shortened; "" if the command has removed it."""
    if not path.is_file():
        return ""
    with open_to_read(path) as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - 4096))
        lines = file.read().decode("utf-8", errors="replace").split("\n")
    text = next((line.strip() for line in reversed(lines) if line.strip()), "")
    return text if len(text) <= 120 else f"{text[:120]}..."

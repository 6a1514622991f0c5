"""Many runs at once: one process per core with one thread each, watched from outside."""

import contextlib
import json
import os
import queue
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import partwise
from partwise.checkpoint import write_json
from partwise.config import ConfigError
from partwise.train.choices import Choices
from partwise.train.settings import RunConfig


@dataclass
class Job:
    """One run of a comparison, in a folder that holds its `job.json`."""

    arm: str
    seed: int
    folder: Path
    steps: int
    status: str = "waiting"

    @property
    def finished(self) -> bool:
        return self.status in ("done", "diverged")

    def progress(self) -> int:
        """The last step written to the run's metrics."""
        path = self.folder / "metrics.jsonl"
        if not path.exists():
            return 0
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - 1000))
            lines = file.read().splitlines()
        for line in reversed(lines):
            try:
                return int(json.loads(line)["step"])
            except (ValueError, KeyError, TypeError):
                continue
        return 0


def prepare_job(
    folder: Path, arm: str, seed: int, config: RunConfig, choices: Choices, imports: Sequence[str], command: str
) -> Job:
    """A job with its `job.json`, waiting or already done."""
    folder.mkdir(parents=True, exist_ok=True)
    job = {
        "config": config.to_dict(),
        "choices": choices.to_dict(),
        "imports": list(imports),
        "command": shlex.split(command),
        "parent": os.getpid(),
    }
    write_json(folder / "job.json", job)
    status = "waiting"
    if (folder / "result.json").exists():
        result = json.loads((folder / "result.json").read_text())
        scored = config.data.task != "arithmetic" or config.train.held_out or "accuracy" in result
        status = "diverged" if "diverged" in result else "done" if scored else "waiting"
    return Job(arm, seed, folder, config.train.steps, status)


def programs(jobs: Sequence[Job], together: int) -> list[list[Job]]:
    """The jobs that wait, in their order; those of up to `together` seeds of an arm are one program."""
    waiting = [job for job in jobs if not job.finished]
    found: list[list[Job]] = []
    latest: dict[str, list[Job]] = {}
    for job in waiting:
        if len(latest.get(job.arm, ())) % together == 0:
            latest[job.arm] = []
            found.append(latest[job.arm])
        latest[job.arm].append(job)
    return found


def run_jobs(jobs: list[Job], workers: int, watch: Callable[[], None], together: int = 1) -> None:
    """Run every job that is not finished, `together` seeds of an arm in one program; `watch` is called about twice a second.

    On KeyboardInterrupt the runs save and end, and it is raised again. Raises ConfigError where a run failed.
    """
    waiting = programs(jobs, together)
    if not waiting:
        return
    answers: queue.Queue[tuple[int, str]] = queue.Queue()
    processes = [_start(number, answers) for number in range(min(workers, len(waiting)))]
    current: dict[int, list[Job]] = {}

    def give(number: int) -> None:
        stdin = processes[number].stdin
        assert stdin is not None
        if waiting:
            current[number] = waiting.pop(0)
            for job in current[number]:
                job.status = "running"
            stdin.write(json.dumps([str(job.folder) for job in current[number]]) + "\n")
            stdin.flush()
        else:
            stdin.close()

    failures: list[str] = []
    try:
        for number in range(len(processes)):
            give(number)
        while current and not failures:
            try:
                number, answer = answers.get(timeout=0.5)
            except queue.Empty:
                watch()
                continue
            ended = current.pop(number)
            statuses = json.loads(answer) if answer else ["failed: its process ended"] * len(ended)
            for job, status in zip(ended, statuses, strict=True):
                job.status = status
            # what failed before what was only stopped by that
            unfinished = sorted((job for job in ended if not job.finished), key=lambda job: job.status == "interrupted")
            failures += [f"{job.arm}, seed {job.seed}: {_reason(job, ended[0].folder)}" for job in unfinished]
            if not failures:
                give(number)
                watch()
    except KeyboardInterrupt:
        _end(processes)
        raise
    finally:
        _end(processes)
    if failures:
        raise ConfigError(f"a run failed: {failures[0]}; give the same command again to continue")


def _start(number: int, answers: "queue.Queue[tuple[int, str]]") -> subprocess.Popen[str]:
    home = str(Path(partwise.__file__).parent.parent)
    path = os.pathsep.join([home, *filter(None, [os.environ.get("PYTHONPATH")])])
    process = subprocess.Popen(
        [sys.executable, "-m", "partwise.comparison.worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path},  # the package that runs here, however it was found
        start_new_session=True,  # Ctrl-C reaches the parent alone, which ends the runs in order
    )

    def listen() -> None:
        assert process.stdout is not None
        with process.stdout:
            for line in process.stdout:
                answers.put((number, line.rstrip("\n")))
        if process.wait() != 0:
            answers.put((number, ""))

    threading.Thread(target=listen, daemon=True).start()
    return process


def _end(processes: list[subprocess.Popen[str]]) -> None:
    """Ask whatever still runs to save and stop, and wait for it."""
    for process in processes:
        if process.poll() is None:
            try:
                os.killpg(process.pid, signal.SIGTERM)
            except ProcessLookupError:
                continue
    for process in processes:
        if process.stdin and not process.stdin.closed:
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
        process.wait()


def _reason(job: Job, folder: Path) -> str:
    error = folder / "error.txt"
    if error.exists():
        return error.read_text().strip().splitlines()[-1]
    return job.status.removeprefix("failed").strip(": ") or "it ended without a reason"

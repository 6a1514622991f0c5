"""Train many runs in parallel worker processes: on a CPU one per core, with one thread each."""

import itertools
import json
import os
import queue
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from partwise.checkpoint import write_json
from partwise.comparison.trials.forkserver import ForkServer, take_server
from partwise.compute.runtime import Runtime
from partwise.config import ConfigError
from partwise.train.config import RunConfig


@dataclass
class Job:
    """One run of a comparison, in a folder with its `job.json`."""

    arm: str
    seed: int
    folder: Path
    steps: int
    status: str = "waiting"

    @property
    def finished(self) -> bool:
        return self.status in ("done", "diverged")

    def progress(self) -> int:
        """The last step in the run's metrics."""
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
    folder: Path,
    arm: str,
    seed: int,
    config: RunConfig,
    runtime: Runtime,
    plan: list[dict[str, Any]],
    imports: Sequence[str],
    command: str,
) -> Job:
    """Write `job.json` and return the job, waiting or already finished."""
    folder.mkdir(parents=True, exist_ok=True)
    job = {
        "config": config.to_dict(),
        "runtime": runtime.to_dict(),
        "plan": plan,
        "imports": list(imports),
        "command": shlex.split(command),
        "parent": os.getpid(),
    }
    write_json(folder / "job.json", job)
    status = "waiting"
    if (folder / "result.json").exists():
        result = json.loads((folder / "result.json").read_text())
        scored = config.data.task != "arithmetic" or config.train.tuning_split or "accuracy" in result
        status = "diverged" if "diverged" in result else "done" if scored else "waiting"
    return Job(arm, seed, folder, config.train.steps, status)


def group_jobs(jobs: Sequence[Job], seeds_per_process: int) -> list[list[Job]]:
    """The unfinished jobs in order, grouped by up to `seeds_per_process` seeds of an arm."""
    waiting = [job for job in jobs if not job.finished]
    groups: list[list[Job]] = []
    latest: dict[str, list[Job]] = {}
    for job in waiting:
        if len(latest.get(job.arm, ())) % seeds_per_process == 0:
            latest[job.arm] = []
            groups.append(latest[job.arm])
        latest[job.arm].append(job)
    return groups


class WorkerPool:
    """Up to `workers` concurrent processes, each training up to `seeds_per_process` seeds of an arm.

    They are forks of one server, which starts when there is something to train. Leaving the context stops them.
    """

    def __init__(self, workers: int, seeds_per_process: int = 1) -> None:
        self.workers, self.seeds_per_process = workers, seeds_per_process
        self._server: ForkServer | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._server:
            self._server.end()
        self._server = None

    def run(self, jobs: Sequence[Job], on_progress: Callable[[], None]) -> None:
        """Run every unfinished job; `on_progress` is called about twice a second.

        After a KeyboardInterrupt the runs save and stop when the pool exits. Raises ConfigError if a run failed.
        """
        waiting = group_jobs(jobs, self.seeds_per_process)
        if not waiting:
            return
        server = self._server = self._server or take_server()
        running: dict[int, list[Job]] = {}
        numbers = itertools.count()

        def fill() -> None:
            while waiting and len(running) < self.workers:
                number, group = next(numbers), waiting.pop(0)
                running[number] = group
                for job in group:
                    job.status = "running"
                server.submit(number, [job.folder for job in group])

        fill()
        while running:
            try:
                number, statuses = server.replies.get(timeout=0.5)
            except queue.Empty:
                on_progress()
                continue
            if statuses is None:
                number, *_ = running
                statuses = ["failed: its process ended"] * len(running[number])
            ended = running.pop(number)
            for job, status in zip(ended, statuses, strict=True):
                job.status = status
            # report the job that failed before those interrupted because of it
            unfinished = sorted((job for job in ended if not job.finished), key=lambda job: job.status == "interrupted")
            if unfinished:
                failed = unfinished[0]
                reason = f"{failed.arm}, seed {failed.seed}: {_reason(failed, ended[0].folder)}"
                raise ConfigError(f"a run failed: {reason}; run the same command again to resume")
            fill()
            on_progress()


def _reason(job: Job, folder: Path) -> str:
    error = folder / "error.txt"
    if error.exists():
        return error.read_text().strip().splitlines()[-1]
    return job.status.removeprefix("failed").strip(": ") or "its process exited without an error message"

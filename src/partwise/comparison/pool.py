"""Many runs at once, watched from outside: on a CPU one per core, with one thread each."""

import itertools
import json
import os
import queue
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from partwise.checkpoint import write_json
from partwise.comparison.forkserver import ForkServer, take
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


class Crew:
    """Up to `workers` programs at once, each of up to `together` seeds of an arm; `with Crew(...) as crew` ends them.

    They are forks of one server, which is started when there is something to train.
    """

    def __init__(self, workers: int, together: int = 1) -> None:
        self.workers, self.together = workers, together
        self._server: ForkServer | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._server:
            self._server.end()
        self._server = None

    def run(self, jobs: Sequence[Job], watch: Callable[[], None]) -> None:
        """Run every job that is not finished; `watch` is called about twice a second.

        On KeyboardInterrupt the runs save and end as the crew does. Raises ConfigError where a run failed.
        """
        waiting = programs(jobs, self.together)
        if not waiting:
            return
        server = self._server = self._server or take()
        running: dict[int, list[Job]] = {}
        numbers = itertools.count()

        def fill() -> None:
            while waiting and len(running) < self.workers:
                number, program = next(numbers), waiting.pop(0)
                running[number] = program
                for job in program:
                    job.status = "running"
                server.train(number, [job.folder for job in program])

        fill()
        while running:
            try:
                number, statuses = server.answers.get(timeout=0.5)
            except queue.Empty:
                watch()
                continue
            if statuses is None:
                number, *_ = running
                statuses = ["failed: its process ended"] * len(running[number])
            ended = running.pop(number)
            for job, status in zip(ended, statuses, strict=True):
                job.status = status
            # what failed before what was only stopped by that
            unfinished = sorted((job for job in ended if not job.finished), key=lambda job: job.status == "interrupted")
            if unfinished:
                failed = unfinished[0]
                reason = f"{failed.arm}, seed {failed.seed}: {_reason(failed, ended[0].folder)}"
                raise ConfigError(f"a run failed: {reason}; give the same command again to continue")
            fill()
            watch()


def _reason(job: Job, folder: Path) -> str:
    error = folder / "error.txt"
    if error.exists():
        return error.read_text().strip().splitlines()[-1]
    return job.status.removeprefix("failed").strip(": ") or "it ended without a reason"

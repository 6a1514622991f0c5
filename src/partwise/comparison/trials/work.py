"""`partwise work`: one process that takes the next open trial of a comparison until none is left."""

import contextlib
import os
import platform
import queue
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path

from partwise.comparison.trials.claims import EXPIRES, HEARTBEAT, TrialLock, claim
from partwise.comparison.trials.job import EXECUTORS, check_executor
from partwise.comparison.trials.server import Server
from partwise.comparison.trials.servers import start_server
from partwise.comparison.trials.shared import FAILED, POLL_SECONDS, is_open
from partwise.config import ConfigError
from partwise.config.yaml import show
from partwise.files import own_sources
from partwise.json_files import write_json
from partwise.machine import hardware
from partwise.messages import quantity
from partwise.quoting import quote
from partwise.records import DamagedFileError, read_record
from partwise.run_names import explain_write_errors
from partwise.version import __version__

JOB, WORKER = "job.json", "worker.json"
"""A trial's job, and which machine runs it."""

SCAN_SECONDS = 2.0
"""Between two searches for new jobs, while there are open ones."""


@dataclass(frozen=True)
class Job:
    """A trial as its `job.json` describes it."""

    folder: Path
    executed_by: str

    @property
    def finished(self) -> bool:
        status: str | None = import_module(EXECUTORS[self.executed_by]).stored_status(self.folder)
        return status is not None or (self.folder / FAILED).exists()

    def settle(self, cpu: str) -> str:
        """The kind of machine that the trials of its seed keep to: this one, unless another worker was first."""
        path = self.folder.parent.parent / f"{self.folder.name}.machine.json"
        if not path.exists():
            mine = path.with_name(f".{uuid.uuid4().hex}.json")
            write_json(mine, {"cpu": cpu})
            with contextlib.suppress(FileExistsError):
                os.link(mine, path)  # in one step: of two workers one is first
            mine.unlink()
        return read_record(path).text("cpu")

    def may_run_on(self, cpu: str) -> bool:
        """Whether every trial of its seed ran on this kind of machine: another kind would be a difference in the pair."""
        for other in self.folder.parent.parent.glob(f"*/{self.folder.name}/{WORKER}"):
            try:
                if read_record(other)["cpu"] != cpu:
                    return False
            except DamagedFileError:  # being written
                continue
        return True


@dataclass
class Work:
    """Runs trials of the comparison in `folder`, `parallel` at a time, beside other workers."""

    folder: Path
    parallel: int = 1
    expires: float = EXPIRES
    """Seconds without a sign of life after which another worker's trial is taken over."""
    imports: Sequence[str] | None = None
    """The modules and files of parts that jobs may import; None: those of a comparison that this user has started."""
    on_event: Callable[[str], None] = print
    n_done: int = 0
    told: bool = False
    """Whether other sources were reported."""
    claims: dict[int, TrialLock] = field(default_factory=dict)

    def run(self) -> int:
        """Run trials until all have ended and no more are to come; returns how many this process ran."""
        server, stop = start_server(self._first_job().executed_by), threading.Event()
        threading.Thread(target=self._show_life, args=(stop,), daemon=True).start()
        try:
            with explain_write_errors(self.folder):
                self._loop(server)
        finally:
            stop.set()
            server.end()
            for each in self.claims.values():
                each.release()
        return self.n_done

    def _first_job(self) -> Job:
        while (job := next(find_jobs(self.folder), None)) is None:
            if not is_open(self.folder):
                raise ConfigError(f"{self.folder} has no trials: start `partwise compare ... --on workers` first")
            time.sleep(POLL_SECONDS)
        return job

    def _loop(self, server: Server) -> None:
        cpu, number, scanned = hardware()["cpu"], 0, -SCAN_SECONDS
        open_jobs: list[Job] = []
        while True:
            if not open_jobs and time.monotonic() - scanned >= (POLL_SECONDS if self.claims else 0):
                open_jobs, scanned = [job for job in find_jobs(self.folder) if not job.finished], time.monotonic()
                mine = {each.folder for each in self.claims.values()}
                others = [job for job in open_jobs if job.folder not in mine]
                open_jobs = [job for job in others if job.may_run_on(cpu)]
                if not self.claims and not open_jobs and not is_open(self.folder):
                    if others:
                        self.on_event(
                            f"{len(others)} trials are left for the kind of machine that their pairs began on"
                        )
                    return
            while open_jobs and len(self.claims) < self.parallel:
                job = open_jobs.pop(0)
                allowed = not job.finished and job.may_run_on(cpu) and job.settle(cpu) == cpu
                if allowed:
                    self._check_imports(job)
                taken = claim(job.folder, self.expires) if allowed else None
                if taken and job.finished:  # by the worker that held the claim before
                    taken.release()
                elif taken:
                    number += 1
                    self.claims[number] = taken
                    self._tell_other_sources(job)
                    worker = {"cpu": cpu, "host": platform.node(), "sources": own_sources()}
                    write_json(job.folder / WORKER, worker)
                    server.submit(number, [job.folder])
            self._wait(server)

    def _tell_other_sources(self, job: Job) -> None:
        """Say once if the comparison was started by other code of this package, perhaps of the same version."""
        if not self.told and has_other_sources(job.folder, own_sources()):
            self.told = True
            self.on_event(
                f"warning: the source files of partwise {__version__} here are not those that started "
                f"{self.folder.name}, so results may differ; the report will say so"
            )

    def _check_imports(self, job: Job) -> None:
        """Raise ConfigError for code that a job names and the user of this worker does not."""
        if self.imports is None:
            return
        stored = read_record(job.folder / JOB)
        for source in stored.texts("imports") if "imports" in stored else ():
            if source not in self.imports:
                raise ConfigError(
                    f"{job.folder / JOB} imports {show(source)}: if you trust it, add --import {quote(source)}"
                )

    def _wait(self, server: Server) -> None:
        """Wait a moment for a trial to end."""
        try:
            number, statuses = server.replies.get(timeout=POLL_SECONDS)
        except queue.Empty:
            return
        if statuses is None:
            raise ConfigError(f"the worker process of {self.folder} ended: start `partwise work` again")
        taken, (status,) = self.claims.pop(number), statuses
        shown = f"{taken.folder.parent.name}, {taken.folder.name}"
        if taken.is_lost:
            self.on_event(f"{shown}: another worker has taken it over while this one was suspended")
            return
        if status.startswith("failed"):
            write_json(taken.folder / FAILED, {"reason": status.removeprefix("failed").strip(": ")})
        taken.release()
        self.n_done += 1
        self.on_event(f"{shown}: {status}")

    def _show_life(self, stop: threading.Event) -> None:
        """Touch every claim. The server ends the trials of those that were lost while this process was suspended."""
        while not stop.wait(min(HEARTBEAT, self.expires / 4)):
            for each in list(self.claims.values()):
                each.touch()


def describe_workers(folders: Iterable[Path]) -> list[str]:
    """The machines that ran the trials in these folders, as in `node-1 (AMD EPYC): 20 trials`; empty for local trials.

    It marks trials that other code of the package ran.
    """
    counts: Counter[str] = Counter()
    for folder in folders:
        try:
            worker = read_record(folder / WORKER)
            other = has_other_sources(folder, worker.get("sources"))
            counts[f"{worker['host']} ({worker['cpu']}{', other source files of partwise' if other else ''})"] += 1
        except DamagedFileError:
            continue
    return [f"{machine}: {quantity(count, 'trial')}" for machine, count in sorted(counts.items())]


def has_other_sources(folder: Path, sources: str | None) -> bool:
    """Whether the job in a trial's folder was written by another source of the package than `sources`."""
    try:
        stored = read_record(folder / JOB).get("sources")
    except DamagedFileError:
        return False
    return None not in (stored, sources) and stored != sources


def find_jobs(folder: Path) -> Iterator[Job]:
    """The jobs of a comparison and of its tuning by seed, so that pairs are complete soon. Raises ConfigError."""
    paths = [*folder.glob(f"runs/*/seed-*/{JOB}"), *folder.glob(f"tuning/*/seed-*/{JOB}")]
    seeds = {path: path.parent.name.removeprefix("seed-") for path in paths}
    known = [path for path in paths if seeds[path].isdecimal()]
    for path in sorted(known, key=lambda path: (int(seeds[path]), path.parent.parent.name)):
        try:
            job = read_record(path)
            executed_by, version = job.text("executed_by"), job["version"]
        except DamagedFileError:  # being written
            continue
        if version != __version__:
            raise ConfigError(
                f"{path} is of partwise {version}, and this is {__version__}: install the same version everywhere"
            )
        check_executor(path, executed_by)
        yield Job(path.parent, executed_by)

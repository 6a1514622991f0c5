"""The executor of this machine: worker processes, on a CPU one per core with one thread each."""

import itertools
import queue
from collections.abc import Sequence

from partwise.comparison.trials.execution import CORES, ERROR
from partwise.comparison.trials.executor import Executor
from partwise.comparison.trials.server import Server
from partwise.comparison.trials.servers import give_back, take_server
from partwise.comparison.trials.trial import Trial
from partwise.config import read_file
from partwise.machine import OUT_OF_MEMORY, is_out_of_memory


class LocalExecutor(Executor):
    """Up to `workers` concurrent processes, each with up to `seeds_per_process` seeds of an arm.

    They are forks of one server, or new processes, that have imported what runs the trials that name `executed_by`. Each
    folder must have a `job.json`; see `worker` and `spawned`. With `gpus`, each process has that many of the `devices` to
    itself, and with `cores`, one of these groups of logical CPUs.
    """

    def __init__(
        self,
        workers: int,
        seeds_per_process: int = 1,
        *,
        executed_by: str,
        gpus: int = 0,
        devices: Sequence[str] = (),
        cores: Sequence[Sequence[int]] = (),
    ) -> None:
        self.executed_by = executed_by
        self.gpus, self._free = gpus, list(devices)
        self._devices: dict[int, list[str]] = {}
        self._free_cores = list(cores)
        self._cores: dict[int, Sequence[int]] = {}
        self.workers, self.seeds_per_process = workers, seeds_per_process
        self._server: Server | None = None
        self._waiting: list[list[Trial]] = []
        self._running: dict[int, list[Trial]] = {}
        self._numbers = itertools.count()

    def submit(self, trials: Sequence[Trial]) -> None:
        self._waiting += group_by_arm(trials, self.seeds_per_process)
        self._start()

    def watch(self, seconds: float) -> Sequence[Trial]:
        if not self._server:
            return ()
        try:
            number, statuses = self._server.replies.get(timeout=seconds)
        except queue.Empty:
            return ()
        if statuses is None:
            if not self._running:  # the next trial starts another server
                self._server = None
                return ()
            number, *_ = self._running
            statuses = ["failed: its process ended"] * len(self._running[number])
        ended = self._running.pop(number)
        self._free += self._devices.pop(number, [])
        if number in self._cores:
            self._free_cores.append(self._cores.pop(number))
        for trial, status in zip(ended, statuses, strict=True):
            trial.status = f"failed: {failure_reason(ended[0], status)}" if status.startswith("failed") else status
        if all(trial.finished for trial in ended):
            self._start()
        return ended

    def __exit__(self, *exception: object) -> None:
        if self._server and not self._running and exception[0] is None:  # after an error, its state is not certain
            give_back(self._server)
            self._server = None
        super().__exit__(*exception)

    def cancel(self) -> None:
        if self._server:
            self._server.end()
        self._waiting.clear()
        self._running.clear()
        self._server = None

    def _start(self) -> None:
        """Start waiting trials while there are free workers."""
        while self._waiting and len(self._running) < self.workers and len(self._free) >= self.gpus:
            self._server = self._server or take_server(self.executed_by)
            number, group = next(self._numbers), self._waiting.pop(0)
            self._running[number] = group
            for trial in group:
                trial.status = "running"
            variables = {}
            if self.gpus:
                self._devices[number], self._free = self._free[: self.gpus], self._free[self.gpus :]
                variables["CUDA_VISIBLE_DEVICES"] = ",".join(self._devices[number])
            if self._free_cores:
                self._cores[number] = self._free_cores.pop(0)
                variables[CORES] = ",".join(map(str, self._cores[number]))
            self._server.submit(number, [trial.folder for trial in group], variables)


def group_by_arm(trials: Sequence[Trial], size: int) -> list[list[Trial]]:
    """The trials in order, grouped by up to `size` seeds of an arm."""
    groups: list[list[Trial]] = []
    latest: dict[str, list[Trial]] = {}
    for trial in trials:
        if len(latest.get(trial.arm, ())) % size == 0:
            latest[trial.arm] = []
            groups.append(latest[trial.arm])
        latest[trial.arm].append(trial)
    return groups


def failure_reason(first: Trial, status: str) -> str:
    """Why a group of trials failed: the last line of the traceback in the folder of its `first` trial, or its status."""
    error = first.folder / ERROR
    if error.exists():
        lines = read_file(error).decode(errors="replace").strip().splitlines()
        if lines:  # on a full disk it is empty
            kind, _, message = lines[-1].partition(": ")
            return OUT_OF_MEMORY if is_out_of_memory(kind, message) else lines[-1]
    return status.removeprefix("failed").strip(": ") or "its process exited without an error message"

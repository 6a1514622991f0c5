"""`compare --on workers`: trials that other processes run, on this machine or on others that see the same folder."""

import contextlib
import time
from collections.abc import Sequence
from pathlib import Path

from partwise.comparison.trials.claims import EXPIRES, HEARTBEAT, is_alive, is_claimed
from partwise.comparison.trials.executor import Executor
from partwise.comparison.trials.trial import Trial
from partwise.records import DamagedFileError, read_record
from partwise.run_names import explain_write_errors

OPEN, FAILED = "open-for-workers", "failed.json"
"""In the comparison's folder, that workers may expect further trials; in a trial's, why it could not be run."""

POLL_SECONDS = 0.2


class SharedExecutor(Executor):
    """Waits for trials that processes of `partwise work` run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._waiting: list[Trial] = []
        self._touched = -HEARTBEAT

    def submit(self, trials: Sequence[Trial]) -> None:
        with explain_write_errors(self.folder):
            for trial in trials:
                (trial.folder / FAILED).unlink(missing_ok=True)
        self._waiting += trials
        self._stay_open()

    def watch(self, seconds: float) -> Sequence[Trial]:
        ended: list[Trial] = []
        deadline = time.monotonic() + seconds
        while not ended and time.monotonic() < deadline:
            self._stay_open()
            time.sleep(POLL_SECONDS)
            for trial in self._waiting:
                trial.status = current_status(trial)
            ended = [trial for trial in self._waiting if trial.finished or trial.status.startswith("failed")]
        self._waiting = [trial for trial in self._waiting if trial not in ended]
        return ended

    def cancel(self) -> None:
        """Ask for no more workers; running trials finish."""
        self._waiting.clear()
        with contextlib.suppress(OSError):  # then it expires
            (self.folder / OPEN).unlink(missing_ok=True)

    def _stay_open(self) -> None:
        if time.monotonic() - self._touched >= HEARTBEAT:
            with explain_write_errors(self.folder):
                (self.folder / OPEN).touch()
            self._touched = time.monotonic()


def current_status(trial: Trial) -> str:
    """The status of a trial that another process may run, from the files in its folder."""
    if stored := trial.stored_status():
        return stored
    try:
        return f"failed: {read_record(trial.folder / FAILED)['reason']}"
    except DamagedFileError:
        return "running" if is_claimed(trial.folder) else "waiting"


def is_open(folder: Path, expires: float = EXPIRES) -> bool:
    """Whether a process of `compare` waits for workers."""
    return is_alive(folder / OPEN, expires)

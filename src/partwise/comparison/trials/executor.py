"""Where trials run. An executor has three methods: submit, watch and cancel."""

import contextlib
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Self

from partwise.comparison.trials.trial import Trial
from partwise.config import ConfigError
from partwise.run_names import IN_USE

POLL_SECONDS, RETRY_SECONDS = 0.5, 5.0
ELSEWHERE = "in use by another process"
"""The status of a trial that another comparison trains, with which this one shares it."""


class UnsavedInterrupt(KeyboardInterrupt):
    """A second interrupt while running trials were saving: they were not waited for."""


class Executor(ABC):
    """Runs trials somewhere. As a context manager, it cancels running trials on exit."""

    @abstractmethod
    def submit(self, trials: Sequence[Trial]) -> None:
        """Queue trials that are not finished, and return at once."""

    @abstractmethod
    def watch(self, seconds: float) -> Sequence[Trial]:
        """Wait for a trial to end, `seconds` at most, and return those that have ended, with their status."""

    @abstractmethod
    def cancel(self) -> None:
        """Ask running trials to save and stop, wait for them, and drop the queue."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        """Raises UnsavedInterrupt."""
        try:
            self.cancel()
        except KeyboardInterrupt as error:
            raise UnsavedInterrupt from error


class NoValuesError(ConfigError):
    """No arm has a value: it is the command that fails, not a change that makes it fail."""


def run_trials(executor: Executor, trials: Sequence[Trial], on_progress: Callable[[], None]) -> None:
    """Run every unfinished trial; `on_progress` is called about twice a second.

    A trial that another process trains, as one of a comparison that shares its trials may do, is tried again until it is
    finished. Raises NoValuesError if as many trials as there are arms have ended and none has a value, and ConfigError if a
    trial could not be run; trials of the same arm that were interrupted by it are not reported.
    """
    unfinished = [trial for trial in trials if not trial.finished]
    executor.submit(unfinished)
    n_running, elsewhere, retry_at = len(unfinished), list[Trial](), 0.0
    while n_running:
        if elsewhere and time.monotonic() >= retry_at:
            executor.submit(elsewhere)
            elsewhere = []
        ended = executor.watch(POLL_SECONDS)
        in_use = [trial for trial in ended if IN_USE in trial.status]
        for trial in in_use:
            trial.status, retry_at = ELSEWHERE, time.monotonic() + RETRY_SECONDS
        elsewhere += in_use
        n_running -= len(ended) - len(in_use)
        failed = sorted(
            (t for t in ended if not t.finished and t.status != ELSEWHERE),
            key=lambda trial: trial.status == "interrupted",
        )
        if failed:
            first = failed[0]
            raise ConfigError(
                f"a run failed: {first.arm}, seed {first.seed}: {first.reason}; run the same command again to resume"
            )
        on_progress()
        finished = [trial for trial in trials if trial.finished]
        if len(finished) >= len({trial.arm for trial in trials}) and all(trial.has_no_value for trial in finished):
            raise NoValuesError(
                f"the first {len(finished)} trials all ended without a value ({finished[0].reason}): fix the command and "
                "rerun; nothing was judged"
            )


def run_short_trials(executor: Executor, trials: Sequence[Trial], purpose: str) -> None:
    """Run trials that must all have a value; `purpose` begins the message of the ConfigError if one has none."""
    with executor, contextlib.suppress(NoValuesError):
        run_trials(executor, trials, lambda: None)
    # those that the failure of others has stopped have no reason of their own
    failed = next((trial for trial in trials if trial.has_no_value), None)
    if failed:
        raise ConfigError(f"{purpose} of {failed.arm} failed: {failed.reason}; its output is in {failed.folder}")

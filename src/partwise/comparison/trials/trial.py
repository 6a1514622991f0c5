"""A trial: one arm on one seed, in a folder. A comparison knows nothing else about its arms."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from partwise.comparison.results import TrialResult
from partwise.config import ConfigError

VALIDATION_LOSS = "validation loss"

NO_VALUE = "no value"
"""The status of a finished trial without one, followed by the reason: failures are counted, not repeated."""


REPEATING = (
    " (if its value was judged and is now another, the first verdict stands, and the new estimate is exploratory)"
)
"""The end of the advice to repeat a trial."""


@dataclass
class Trial(ABC):
    """One arm on one seed: a value and a curve, from a folder in which it can be resumed.

    `status` is waiting, running, in use by another process, interrupted, done, diverged, or `NO_VALUE` or failed followed by
    the reason; `steps` is its length, and `progress` the steps done.
    """

    arm: str
    seed: int
    folder: Path
    steps: int
    status: str = "waiting"

    @property
    def finished(self) -> bool:
        return self.status in ("done", "diverged") or self.has_no_value

    @property
    def has_no_value(self) -> bool:
        return self.status.startswith(NO_VALUE)

    @property
    def reason(self) -> str:
        """Why it has failed or has no value; of another trial its status."""
        return self.status.removeprefix(NO_VALUE).removeprefix("failed").strip(": ")

    @abstractmethod
    def progress(self) -> int:
        """The last step that is done."""

    @abstractmethod
    def stored_status(self) -> str | None:
        """The status of a trial that has ended, read from its folder; None if it has not."""

    @property
    def machine_failure(self) -> str | None:
        """Why the machine, not the trial, has ended it without a value, such as a signal or a full disk; else None."""
        return None

    def repeat(self) -> None:
        """Set the outcome of a failure of the machine aside, so that the trial runs again. Raises ConfigError."""
        raise ConfigError(f"{self.folder} cannot be repeated")

    def forget(self) -> None:  # noqa: B027 - a training run that diverged has
        """Remove the outcome, so that the trial is repeated."""

    @abstractmethod
    def outcome(self, metric: str) -> TrialResult:
        """The value and the curves of a finished trial; a value of None if it has none.

        Raises ConfigError if it lacks the metric.
        """


def final_values(trials: Sequence[Trial], metric: str = VALIDATION_LOSS) -> dict[str, dict[int, float]]:
    """arm -> seed -> the value of each finished trial; nan if it diverged."""
    values: dict[str, dict[int, float]] = {}
    for trial in trials:
        value = trial.outcome(metric).value
        values.setdefault(trial.arm, {})[trial.seed] = math.nan if value is None else value
    return values

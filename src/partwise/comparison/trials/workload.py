"""A workload: how the trials of a comparison are made, and facts about them.

Our own training runs are one kind (`ablation/`). Another kind is one more file: a subclass of `Trial` and one of
`Workload`.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

from partwise.comparison.design.plan import Arm, Plan
from partwise.comparison.measures import Measure
from partwise.comparison.results import Matching, Results
from partwise.comparison.trials.executor import Executor
from partwise.comparison.trials.trial import Trial
from partwise.config import ConfigError, digest
from partwise.run_names import default_run_name


@dataclass(frozen=True)
class Resources:
    """The resources that one trial needs."""

    cpus: int = 1
    gpus: int = 0


class Workload(ABC):
    """Makes the trials of a plan's arms. `prepare`, then `choose_setup` or `restore_setup`, come before anything else.

    `imports` name files of the user's own that the trials import.
    """

    imports: tuple[str, ...] = ()
    tunes_on_held_out_data: ClassVar[bool] = False

    @abstractmethod
    def prepare(self, plan: Plan) -> str:
        """Check the arms and prepare what all trials share; returns the hash of their data. Raises ConfigError."""

    def store_parts(self, plan: Plan, folder: Path) -> None:  # noqa: B027 - most kinds have no parts
        """Add the sources of the user's own parts to `imports`, writing them into the folder if necessary."""

    def at(self, folder: Path) -> Self:
        """The workload of a comparison in another folder."""
        return self

    def with_command(self, command: str) -> Self:
        """The workload of the same kind whose trials say that `command` has started them, if they say that."""
        return self

    @abstractmethod
    def choose_setup(self, plan: Plan, timed: bool) -> dict[str, Any]:
        """What is fixed on this machine before the first trial, as JSON; `timed` if the throughput of the arms is needed."""

    @abstractmethod
    def restore_setup(self, plan: Plan, setup: Mapping[str, Any]) -> None:
        """Use the setup that an earlier call of `choose_setup` has returned. Raises ConfigError if it is unavailable."""

    @abstractmethod
    def executor(self) -> Executor:
        """An executor for the trials."""

    def resources(self) -> Resources:
        """The resources of one trial, for executors that place trials."""
        return Resources()

    @abstractmethod
    def trial(self, arm: Arm, seed: int, folder: Path) -> Trial:
        """The trial of an arm on a seed in a folder, waiting or already finished."""

    def folder_name(self, arm: Arm) -> str:
        """The name of the folder of an arm's trials."""
        return default_run_name([arm.name])

    def key(self, arm: Arm) -> str:
        """A name for trials of this arm, equal if those of another comparison would be the same."""
        return digest(arm.config.to_stored())[:16]

    def tuning_trial(self, arm: Arm, seed: int, folder: Path) -> Trial:
        """As `trial`; if `tunes_on_held_out_data`, its value is the loss on data that the verdict does not use."""
        return self.trial(arm, seed, folder)

    def trial_length(self, plan: Plan) -> str:
        """How long each trial is and its data, as the end of a phrase, such as `, 600 steps each on shakespeare`."""
        return ""

    def notes(self, plan: Plan) -> list[str]:
        """Notes on settings to reconsider before the first trial, a line each."""
        return []

    def check_trained(self, plan: Plan, trials: Sequence[Trial]) -> None:  # noqa: B027 - most kinds have no weights
        """Check what finished trials have trained, before they are judged. Raises ConfigError."""

    def describe(self, plan: Plan, trials: Sequence[Trial], results: Results) -> dict[str, Any]:
        """The fields of the gathered results that only this kind of workload knows."""
        return {}

    def control_power(self, plan: Plan) -> float | None:
        """The power of the positive control, if its effect is known. Raises ConfigError if it is too small."""
        return None

    def match(self, plan: Plan, measure: Measure) -> tuple[Plan, Matching]:
        """The plan with its arms matched in `measure`. Raises ConfigError."""
        raise ConfigError(f"--match {measure}: these arms cannot be matched; leave it out")

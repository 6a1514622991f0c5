"""The runs of a search: each in a worktree of its own, one at a time, or on cores of its own."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from partwise.any_code.candidates import Candidate
from partwise.any_code.command_plan import CommandConfig
from partwise.any_code.search_folder import SEEDS, WORKTREES
from partwise.any_code.search_settings import SearchSettings
from partwise.any_code.worktrees import Repository
from partwise.comparison.results import TrialResult
from partwise.comparison.trials.executor import NoValuesError, run_trials
from partwise.comparison.trials.job import COMMANDS
from partwise.comparison.trials.local import LocalExecutor
from partwise.comparison.trials.stored import StoredTrial, prepare_trial
from partwise.config import ConfigError
from partwise.machine import core_groups, visible_devices

OnRun = Callable[[str, TrialResult], None]


@dataclass(frozen=True)
class Places:
    """What runs that go at a time have to themselves: groups of cores, and GPUs where the machine has any."""

    cores: list[list[int]] = field(default_factory=list)
    gpus: int = 0
    devices: list[str] = field(default_factory=list)


def places_of(workers: int) -> Places:
    """Nothing for one worker: it has the machine. Raises ConfigError if this machine has too few cores or GPUs."""
    if workers == 1:
        return Places()
    devices = visible_devices()
    if 0 < len(devices) < workers:
        raise ConfigError(
            f"{workers} workers need GPUs of their own, and this machine has {len(devices)}: give a new search fewer, or "
            "hide them with CUDA_VISIBLE_DEVICES="
        )
    return Places(core_groups(workers), len(devices) // workers, devices)


@dataclass
class SearchRuns:
    """Runs candidates, or reads what has run already; `on_run` hears of each."""

    path: Path
    settings: SearchSettings
    repository: Repository
    on_run: OnRun

    def __post_init__(self) -> None:
        self.places = places_of(self.settings.workers)

    def in_order(self, folder: Path, what: str, candidate: Candidate, first_seed: int) -> Iterator[TrialResult]:
        """The outcomes of a candidate's runs in the order of their seeds. Raises ConfigError if one could not be run.

        All workers run at a time, also ahead of what will be asked for: so every run has as many beside it as the others.
        """
        for first in range(0, SEEDS, self.settings.workers):
            numbers = range(first, min(first + self.settings.workers, SEEDS))
            trials = [self.trial(folder / f"run-{n}", what, candidate, first_seed + n) for n in numbers]
            self.run(trials, candidate)
            for trial in trials:
                outcome = trial.outcome(self.settings.metric.name)
                self.on_run(what, outcome)
                yield outcome

    def run(self, trials: Sequence[StoredTrial], candidate: Candidate) -> None:
        """Run those that have not ended, at the same time. Raises ConfigError if one could not be run."""
        waiting = [trial for trial in trials if not trial.finished]
        if not waiting:
            return
        # a core that is faster than the others does not always have the first run
        turn = waiting[0].seed // SEEDS % max(1, len(self.places.cores))
        try:
            for trial in waiting:
                self.repository.add_worktree(
                    self.worktree(trial.folder), candidate.commit, self.settings.share, self.settings.setup
                )
            with (
                LocalExecutor(
                    self.settings.workers,
                    executed_by=COMMANDS,
                    gpus=self.places.gpus,
                    devices=self.places.devices,
                    cores=self.places.cores[turn:] + self.places.cores[:turn],
                ) as executor,
                contextlib.suppress(NoValuesError),
            ):
                run_trials(executor, waiting, lambda: None)
        finally:
            self.remove_worktrees()

    def worktree(self, folder: Path) -> Path:
        return (self.path / WORKTREES / f"{folder.parent.name}-{folder.name}").resolve()

    def trial(self, folder: Path, what: str, candidate: Candidate, seed: int) -> StoredTrial:
        worktree = self.worktree(folder)
        place: dict[str, Any] = {"cwd": str(worktree / self.repository.inside), "locks": str(self.path.resolve())}
        job: dict[str, Any] = {
            "arm": what,
            "seed": seed,
            "config": CommandConfig(candidate.command, commit=candidate.commit).to_stored(),
            "check": [],
            "metric": self.settings.metric.to_dict(),
            "curve": None,
            "trial": self.settings.limits.to_stored(),
        }
        if self.settings.evaluate is not None:
            job["evaluate"] = self.settings.evaluate
            place["evaluation"] = self.evaluation(worktree, candidate)
        # each an arm of its own: the failure of one does not end the others
        return prepare_trial(folder, f"{what}, {folder.name}", seed, job, COMMANDS, place)

    def evaluation(self, worktree: Path, candidate: Candidate) -> dict[str, Any]:
        """Where a run is measured, by a command of its own."""
        return {
            "repository": str(self.repository.root.resolve()),
            "inside": self.repository.inside.as_posix(),
            "worktree": str(worktree.with_name(f"{worktree.name}-evaluation")),
            "commit": candidate.commit,
            "share": self.settings.share,
            "setup": self.settings.setup,
        }

    def remove_worktrees(self) -> None:
        """Also those that a killed process has left."""
        folder = self.path / WORKTREES
        for worktree in folder.iterdir() if folder.is_dir() and not folder.is_symlink() else ():
            self.repository.remove_worktree(worktree.resolve() if not worktree.is_symlink() else worktree)
        with contextlib.suppress(OSError):
            folder.rmdir()

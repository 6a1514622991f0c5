"""The runs of a search: each in a worktree of its own, one at a time."""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from partwise.any_code.candidates import Candidate
from partwise.any_code.command_plan import CommandConfig
from partwise.any_code.search_folder import WORKTREES
from partwise.any_code.search_settings import SearchSettings
from partwise.any_code.worktrees import Repository
from partwise.comparison.results import TrialResult
from partwise.comparison.trials.executor import NoValuesError, run_trials
from partwise.comparison.trials.job import COMMANDS
from partwise.comparison.trials.local import LocalExecutor
from partwise.comparison.trials.stored import prepare_trial

OnRun = Callable[[str, TrialResult], None]


@dataclass
class SearchRuns:
    """Runs candidates, or reads what has run already; `on_run` hears of each."""

    path: Path
    settings: SearchSettings
    repository: Repository
    on_run: OnRun

    def run(self, folder: Path, what: str, candidate: Candidate, seed: int) -> TrialResult:
        """The outcome of a seed, in a folder of the search. Raises ConfigError if it could not be run."""
        worktree = (self.path / WORKTREES / f"{folder.parent.name}-{folder.name}").resolve()
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
        trial = prepare_trial(folder, what, seed, job, COMMANDS, place)
        if not trial.finished:
            try:
                self.repository.add_worktree(worktree, candidate.commit, self.settings.share, self.settings.setup)
                with LocalExecutor(1, executed_by=COMMANDS) as executor, contextlib.suppress(NoValuesError):
                    run_trials(executor, [trial], lambda: None)
            finally:
                self.remove_worktrees()
        outcome = trial.outcome(self.settings.metric.name)
        self.on_run(what, outcome)
        return outcome

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

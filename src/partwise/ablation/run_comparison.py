"""The comparison of training runs that a request describes."""

import contextlib
import glob
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from partwise.ablation.part_checks import PartChecks
from partwise.ablation.request import Request
from partwise.ablation.run_plan import RunPlan, plan_runs
from partwise.ablation.run_trial import stored_status
from partwise.ablation.run_workload import Estimate, FinishedRuns, RunWorkload
from partwise.comparison.design.plan import Arm
from partwise.comparison.experiment import Comparison
from partwise.comparison.plan_file import FixedPlan, PlanFile, read_plan_file
from partwise.comparison.results import tuned_name
from partwise.comparison.trials.job import JOB
from partwise.comparison.tuning import check_seeds, parse_tune, tuning_seeds
from partwise.comparison.tuning_file import TuningFile
from partwise.config import ConfigError
from partwise.config.overrides import distinct, parse_grid, parse_overrides
from partwise.data import Dataset
from partwise.run_names import check_run_name, default_run_name


@dataclass(repr=False)
class RunComparison(Comparison):
    """A comparison of training runs."""

    plan: RunPlan
    workload: RunWorkload

    def prepare(self) -> Dataset:
        """The data of the training runs, checked against every arm; own parts are checked too. Raises ConfigError."""
        dataset = self.workload.dataset(self.plan)
        self.workload.part_checks.check_arms(self.plan, dataset)
        return dataset

    def estimate(self, finished: Mapping[str, FinishedRuns] | None = None) -> Estimate:
        """The time on this machine, measured over a few training steps; `finished` has the runs that need no time."""
        tuning_values = len(self.tune.values) if self.tune else 0
        return self.workload.estimate(self.plan, tuning_values, self.tune_seeds, finished or {})

    def finished_runs(self) -> dict[str, FinishedRuns]:
        """The runs of each arm that `run` would not repeat: its own, and those of comparisons that share them.

        Raises ConfigError if the folder holds another comparison, or a result was changed.
        """
        data = self.prepare().hash
        file = read_plan_file(self.path, self.fixed(), data)
        if file:
            self.workload.restore_setup(self.plan, file.setup)
        else:
            file = PlanFile.new(self.fixed(), data, self.workload.choose_setup(self.plan, timed=False))
        stored = self.tuning_file(file)
        found = {}
        for number, arm in enumerate(self.plan.arms):
            seeds = range(self.plan.first_seed, self.plan.first_seed + self.plan.seeds_of(arm))
            tried = self._tried_values(number, arm, stored)
            folders = {
                folder for each in (arm, *(at_value for at_value, _ in tried)) for folder in self._folders_of(each)
            }
            tuning = sum(
                stored.has(at_value.name, seed) or is_finished(folder / f"seed-{seed}")
                for at_value, folder in tried
                for seed in tuning_seeds(self.tune_seeds)
            )
            # in a shared folder, another comparison may have extended the range for its own arms
            values = 0 if self._shared_folder(arm) else len(tried)
            finished = sum(is_finished(folder / f"seed-{seed}") for folder in folders for seed in seeds)
            found[arm.name] = FinishedRuns(finished, tuning, values)
        return found

    def _tried_values(self, number: int, arm: Arm, stored: TuningFile) -> list[tuple[Arm, Path]]:
        """The arm at each value that was tried, with the folder of its runs: tuning adds values at the edges of its range."""
        if not self.tune:
            return []
        name, pattern = tuned_name(arm.name, self.tune.key, ""), self._tuning_folder(number, arm, "*")
        values = {each.removeprefix(name) for each in stored.losses if each.startswith(name)}
        values |= {folder.name.removeprefix(pattern.name[:-1]) for folder in pattern.parent.glob(pattern.name)}
        found = []
        for value in values:
            with contextlib.suppress(ConfigError):  # a folder of the user's
                found.append((self.tune.apply(arm, value), self._tuning_folder(number, arm, value)))
        return found

    def _folders_of(self, arm: Arm) -> list[Path]:
        """The folder of an arm's runs, with any number: tuning adds and removes arms, which changes the numbers."""
        if shared := self._shared_folder(arm):
            return [shared]
        return list((self.path / "runs").glob(f"*-{glob.escape(self.workload.folder_name(arm))}"))

    def fixed(self) -> FixedPlan:
        fixed = super().fixed()
        if self.tune and self.workload.tune_steps:
            fixed.values["tune"]["steps"] = self.workload.tune_steps
        if self.tune and self.tune.only:
            fixed.values["tune"]["only"] = True
        return fixed


def is_finished(run: Path) -> bool:
    """Whether the run of a folder has ended and is scored."""
    return (run / JOB).exists() and stored_status(run) is not None


def plan_comparison(
    preset: str,
    *overrides: str,
    name: str | None = None,
    imports: tuple[str, ...] = (),
    workers: int | None = None,
    seeds_per_process: int | None = None,
    processes_per_run: int = 1,
    **settings: Any,
) -> RunComparison:
    """The comparison that `partwise.compare` would run, validated but not started. Raises ConfigError."""
    fields = {key: value for key, value in settings.items() if value is not None}
    request = Request.from_dict({"preset": preset, "change": list(overrides), **fields})
    return make_comparison(request, name, imports, workers, seeds_per_process, processes_per_run=processes_per_run)


def make_comparison(
    request: Request,
    name: str | None = None,
    imports: tuple[str, ...] = (),
    workers: int | None = None,
    seeds_per_process: int | None = None,
    on: str = "local",
    processes_per_run: int = 1,
) -> RunComparison:
    """The comparison for a request, validated but not started. Raises ConfigError."""
    path = Path("runs") / (check_run_name(name) if name else request.name())
    tune = replace(parse_tune(request.tune), only=request.tuned_only) if request.tune else None
    plan = plan_runs(request)
    for flag, given in (("--tune-steps", request.tune_steps), ("--tuned-only", request.tuned_only)):
        if given and not tune:
            raise ConfigError(f"{flag}: nothing is tuned; add --tune, or leave it out")
    if tune:
        check_seeds(plan)
        for value in tune.values:
            tune.apply(plan.arms[0], value)  # raises for an invalid value before anything runs
    command = request.command(name, imports)
    workload = RunWorkload(
        imports,
        workers,
        seeds_per_process,
        command,
        plan.rules.metric,
        tune_steps=request.tune_steps,
        horizons=plan.horizons,
        tuned_only=request.tuned_only,
        processes_per_run=processes_per_run,
        part_checks=PartChecks(request.allow_leak),
    )
    tuning = (request.match, tune, request.tune_seeds)
    return RunComparison(path, plan, workload, command, *tuning, request.online, on)


def make_grid(
    request: Request, texts: list[str], name: str | None, **settings: Any
) -> Iterator[tuple[str, RunComparison]]:
    """One comparison per combination of the grid's values, validated but not started."""
    base = name or request.name()
    for words in itertools.product(*parse_grid(texts)):
        distinct(parse_overrides(words))
        cell = request.model_copy(update={"common": [*request.common, *words]})
        yield " ".join(words), make_comparison(cell, default_run_name([base[:80], *words]), **settings)

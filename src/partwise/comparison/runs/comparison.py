"""The comparison of training runs that a request describes."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from partwise.comparison.design.request import Request
from partwise.comparison.experiment import Comparison
from partwise.comparison.runs.plan import RunPlan, make_plan
from partwise.comparison.runs.workload import Estimate, RunWorkload
from partwise.comparison.tuning import check_seeds, parse_tune
from partwise.config import ConfigError
from partwise.config.overrides import parse_grid
from partwise.data import Dataset
from partwise.train.run_names import check_run_name, default_run_name


@dataclass(repr=False)
class RunComparison(Comparison):
    """A comparison of training runs."""

    plan: RunPlan
    workload: RunWorkload

    def prepare(self) -> Dataset:
        """The data of the training runs, checked against every arm. Raises ConfigError."""
        return self.workload.dataset(self.plan)

    def estimate(self) -> Estimate:
        """The time on this machine, measured over a few training steps."""
        return self.workload.estimate(self.plan, len(self.tune.values) * self.tune_seeds if self.tune else 0)

    def identity(self) -> dict[str, Any]:
        fixed = super().identity()
        if self.tune and self.workload.tune_steps:
            fixed["tune"]["steps"] = self.workload.tune_steps
        if self.tune and self.tune.only:
            fixed["tune"]["only"] = True
        return fixed


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
    plan = make_plan(request)
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
    )
    tuning = (request.match, tune, request.tune_seeds)
    return RunComparison(path, plan, workload, command, *tuning, request.online, on)


def make_grid(
    request: Request, texts: list[str], name: str | None, **settings: Any
) -> Iterator[tuple[str, RunComparison]]:
    """One comparison per combination of the grid's values, validated but not started."""
    base = name or request.name()
    for words in itertools.product(*parse_grid(texts)):
        cell = request.model_copy(update={"common": [*request.common, *words]})
        yield " ".join(words), make_comparison(cell, default_run_name([base[:80], *words]), **settings)

"""The workload of our own training runs: models of one task, trained by worker processes on this machine."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Self

from partwise.ablation.custom_parts import store_parts
from partwise.ablation.facts import describe_runs
from partwise.ablation.matching import match_arms
from partwise.ablation.part_checks import PartChecks
from partwise.ablation.run_plan import RunArm, RunPlan, dataset_of
from partwise.ablation.run_trial import RunTrial, check_data, prepare_run
from partwise.ablation.setup import Setup, check_shared, choose_setup, limiting_arms
from partwise.ablation.throughput import (
    STEPS_IN_TURN,
    measure_throughput,
    throughput_of_runs,
    tokens_per_step,
)
from partwise.comparison.design.plan import listed
from partwise.comparison.measures import Measure
from partwise.comparison.noise_store import positive_control_power
from partwise.comparison.results import Matching, Results
from partwise.comparison.trials.job import RUNS
from partwise.comparison.trials.local import LocalExecutor
from partwise.comparison.trials.trial import VALIDATION_LOSS, Trial
from partwise.comparison.trials.workload import Resources, Workload
from partwise.compute.backend_plan import BackendPlan as ComputePlan
from partwise.compute.backend_plan import slower_arms
from partwise.compute.runtime import Runtime, machine_info
from partwise.config import ConfigError, digest
from partwise.data import Dataset
from partwise.messages import attempt
from partwise.train.config import RunConfig, vocabulary_note
from partwise.train.evaluation import check_split_lengths
from partwise.train.shared_prefix import total_steps


@dataclass(frozen=True)
class ArmTime:
    """Minutes on this machine of all runs of an arm, and of those that have not finished."""

    minutes: float
    left: float


@dataclass(frozen=True)
class Estimate:
    """The time of each arm, number of runs and of those that have finished, and throughput in tokens per second."""

    arms: dict[str, ArmTime]
    minutes_per_value: float
    """Minutes of the runs of all arms at one value that tuning tries."""
    runs: int
    finished: int
    workers: int
    seeds_per_process: int
    processes_per_run: int
    throughput: dict[str, float | None]

    @property
    def minutes(self) -> float:
        return sum(arm.minutes for arm in self.arms.values())

    @property
    def minutes_left(self) -> float:
        return sum(arm.left for arm in self.arms.values())


@dataclass(frozen=True)
class FinishedRuns:
    """The numbers of finished runs of an arm: those of the test, and those that tune it."""

    test: int = 0
    tuning: int = 0
    values: int = 0
    """The number of values at which tuning has begun: more than planned if the range has grown."""


@dataclass
class RunWorkload(Workload):
    """Training runs. `imports` name the files with parts of the user's own; `command` is stored with every run."""

    tunes_on_held_out_data: ClassVar[bool] = True
    imports: tuple[str, ...] = ()
    workers: int | None = None
    seeds_per_process: int | None = None
    command: str = ""
    metric: str = VALIDATION_LOSS
    tune_steps: int | None = None
    """The steps of tuning runs; None for those of the others."""
    horizons: tuple[int, ...] = ()
    """The horizons of the plan."""
    tuned_only: bool = False
    """Whether arms are judged at their best values only."""
    processes_per_run: int = 1
    part_checks: PartChecks = field(default_factory=PartChecks)
    setup: dict[str, Any] = field(default_factory=dict)
    _data: dict[str, str] = field(default_factory=dict)
    """The hash of the data of each data configuration."""

    def prepare(self, plan: RunPlan) -> str:
        self._data.clear()
        dataset = self.dataset(plan)
        self.part_checks.check_arms(plan, dataset)
        return dataset.hash

    def check_trained(self, plan: RunPlan, trials: Sequence[Trial]) -> None:
        self.part_checks.check_trained(plan, trials, self.dataset(plan))

    def store_parts(self, plan: RunPlan, folder: Path) -> None:
        self.imports = store_parts(plan, folder, self.imports)

    def with_command(self, command: str) -> Self:
        return replace(self, command=command)

    def dataset(self, plan: RunPlan) -> Dataset:
        """The data of the baseline, checked against every arm."""
        dataset = plan.arms[0].config.prepare()
        for arm in plan.arms:
            check_split_lengths(dataset_of(plan, arm, dataset), arm.config)
        return dataset

    def choose_setup(self, plan: RunPlan, timed: bool) -> dict[str, Any]:
        # matching by seconds needs the throughput before the first run, and shared runs were made at different times;
        # otherwise the runs themselves provide it
        chosen = self._setup(plan)
        if timed and self.processes_per_run > 1:
            raise ConfigError(
                f"--match seconds times steps of one process: leave out --processes-per-run {self.processes_per_run}"
            )
        timing = (plan, self.dataset(plan), chosen.runtime, chosen.plans, STEPS_IN_TURN)
        throughput = measure_throughput(*timing)[0] if timed else {}
        self.setup = {
            "runtime": chosen.runtime.to_dict(),
            "computation": {arm: computation.to_dict() for arm, computation in chosen.plans.items()},
            "workers": chosen.workers,
            "seeds_per_process": chosen.seeds_per_process,
            "processes_per_run": self.processes_per_run,
            "throughput": throughput,
            "machine": machine_info(),
        }
        return self.setup

    def restore_setup(self, plan: RunPlan, setup: Mapping[str, Any]) -> None:
        # the workers may change, and the seeds per process and the processes per run: they affect rounding only
        seeds_per_process = self.seeds_per_process or setup.get("seeds_per_process", 1)
        if self.processes_per_run > 1:
            check_shared(plan, self.seeds_per_process, self.processes_per_run)
            seeds_per_process = 1
        changed = {"seeds_per_process": seeds_per_process, "processes_per_run": self.processes_per_run}
        if self.workers:
            changed["workers"] = self.workers
        self.setup = {**setup, **changed}

    def executor(self) -> LocalExecutor:
        return LocalExecutor(self.setup["workers"], self.setup["seeds_per_process"], executed_by=RUNS)

    def resources(self) -> Resources:
        runtime, n = Runtime(**self.setup["runtime"]), self.processes_per_run
        return Resources(runtime.threads * n, n * int(runtime.device == "cuda"))

    def trial(self, arm: RunArm, seed: int, folder: Path) -> RunTrial:
        return self._trial(arm, seed, folder, self.metric, self.horizons)

    def _trial(
        self,
        arm: RunArm,
        seed: int,
        folder: Path,
        metric: str,
        horizons: tuple[int, ...] = (),
        keeps_weights: bool = True,
    ) -> RunTrial:
        computation = self.setup["computation"]
        plan = computation[origin_of(arm.name, computation)]
        runtime = Runtime(**self.setup["runtime"])
        config = arm.config.with_seed(seed)
        trial = (folder, arm.name, seed, config, runtime, plan, self.imports, self.command, metric, horizons)
        prepared = prepare_run(*trial, self.processes_per_run, keeps_weights)
        if prepared.finished:  # perhaps by another comparison, before the data changed
            check_data(folder, config, self._data_hash(config))
        return prepared

    def _data_hash(self, config: RunConfig) -> str:
        key = digest([config.data.to_stored(), config.tokenizer.to_stored(), config.train.tuning_split])
        if key not in self._data:
            self._data[key] = config.prepare().hash
        return self._data[key]

    def key(self, arm: RunArm) -> str:
        computation = self.setup["computation"]
        plan = computation[origin_of(arm.name, computation)]
        runtime = dict(self.setup["runtime"])
        if runtime["device"] != "cpu":
            del runtime["threads"]  # depend on the number of workers there, and do not change results
        same = {"config": arm.config.to_stored(), "computation": plan, "runtime": runtime}
        same |= {"horizons": list(self.horizons), "tune_steps": self.tune_steps, "processes": self.processes_per_run}
        return digest(same)[:16]

    def tuning_trial(self, arm: RunArm, seed: int, folder: Path) -> RunTrial:
        """A run that trains on the first 90% of the training split and validates on its last 10%."""
        steps = self.tune_steps or arm.config.train.steps
        train = arm.config.train.model_copy(update={"tuning_split": True, "steps": steps})
        tuned = replace(arm, config=arm.config.model_copy(update={"train": train}))
        return self._trial(tuned, seed, folder, VALIDATION_LOSS, keeps_weights=False)

    def trial_length(self, plan: RunPlan) -> str:
        config = plan.arms[0].config
        if plan.horizons:
            steps = f"a run of {listed([f'{steps:,}' for steps in plan.horizons])} steps each"
        else:
            steps = f"{config.train.steps:,} steps each"
        return f", {steps} on {config.data.label}"

    def notes(self, plan: RunPlan) -> list[str]:
        configs = [arm.config for arm in plan.arms]
        distinct = {digest([c.model.vocab_size, c.data.to_dict(), c.tokenizer.to_dict()]): c for c in configs}
        excess = {note for config in distinct.values() if (note := vocabulary_note(config, config.prepare()))}
        return sorted(excess) + [
            f"note: no kernel supports {listed([f'{arm} ({why[0]})' for arm, why in arms.items()])}; all arms share their "
            f"backends, so removing {'this arm' if len(arms) == 1 else 'these arms'} would let the others use faster kernels"
            for arms in limiting_arms(plan, self.seeds_per_process, self.processes_per_run)
        ]

    def describe(self, plan: RunPlan, trials: Sequence[Trial], results: Results) -> dict[str, Any]:
        def leave_out(reason: str) -> dict[str, Any]:  # such as data that were deleted meanwhile; the values are known
            return {"left_out": {"How it was run": reason}}

        return attempt("how it was run", lambda: self._facts(plan, trials, results), leave_out)

    def _facts(self, plan: RunPlan, trials: Sequence[Trial], results: Results) -> dict[str, Any]:
        measured = self.setup["throughput"] or throughput_of_runs(trials)
        throughput = {arm.name: measured[origin_of(arm.name, measured)] for arm in plan.arms}
        stored = self.setup["computation"]
        plans = {arm.name: ComputePlan.from_dict(stored[origin_of(arm.name, stored)]) for arm in plan.arms}
        missing = slower_arms(plans, Runtime(**self.setup["runtime"]))
        findings = {arm.name: self.part_checks.findings(arm, trials) for arm in plan.arms}
        facts = describe_runs(plan, results.arms, trials, self.dataset(plan), throughput, plans, missing, findings)
        return facts | {"timed_on": timed_on(self.setup) if self.setup["throughput"] else None}

    def control_power(self, plan: RunPlan) -> float | None:
        return positive_control_power(plan, self.dataset(plan).hash)

    def match(self, plan: RunPlan, measure: Measure) -> tuple[RunPlan, Matching]:
        return match_arms(plan, measure, self.setup["throughput"])

    def estimate(
        self, plan: RunPlan, tuning_values: int, tuning_seeds: int, finished: Mapping[str, FinishedRuns]
    ) -> Estimate:
        """The time of a comparison on this machine, measured over a few training steps.

        `finished` has the runs of each arm that need no time. Values by which tuning may still extend its range are not
        included.
        """
        if tuning_values:
            tuning_values = max([tuning_values, *(each.values for each in finished.values())])
        chosen, dataset = self._setup(plan), self.dataset(plan)
        throughput, scoring = measure_throughput(plan, dataset, chosen.runtime, chosen.plans)
        seconds_of, runs, n_finished, seconds_per_value = dict[str, tuple[float, float]](), 0, 0, 0.0
        claimed = {end for claim in plan.claims if claim.role == "claim" for end in claim[:2]}
        for arm in plan.arms:
            per_step = tokens_per_step(arm, dataset) / (throughput[arm.name] or math.inf)
            config, test_runs, arm_tuning_runs = arm.config, plan.seeds_of(arm), 0
            steps = total_steps(config, plan.horizons) if plan.horizons else config.train.steps
            test = steps * per_step + scoring[arm.name]
            tuning = (self.tune_steps or config.train.steps) * per_step + scoring[arm.name]
            if tuning_values and arm.name in claimed:
                test_runs += 0 if self.tuned_only else plan.seeds  # the test of the best value
                arm_tuning_runs = tuning_values * tuning_seeds
                seconds_per_value += tuning_seeds * tuning
            done = finished.get(arm.name, FinishedRuns())
            done_test, done_tuning = min(done.test, test_runs), min(done.tuning, arm_tuning_runs)
            # from the runs that are left, so that it is exactly 0 without any
            left = (test_runs - done_test) * test + (arm_tuning_runs - done_tuning) * tuning
            seconds_of[arm.name] = test_runs * test + arm_tuning_runs * tuning, left
            runs += test_runs + arm_tuning_runs
            n_finished += done_test + done_tuning
        at_a_time, at_the_end = (60 * max(1, min(chosen.workers, n)) for n in (runs, runs - n_finished))
        times = {name: ArmTime(total / at_a_time, left / at_the_end) for name, (total, left) in seconds_of.items()}
        per_value = seconds_per_value / (60 * max(1, chosen.workers))
        more = chosen.workers, chosen.seeds_per_process, self.processes_per_run, throughput
        return Estimate(times, per_value, runs, n_finished, *more)

    def _setup(self, plan: RunPlan) -> Setup:
        return choose_setup(plan, self.workers, self.seeds_per_process, self.processes_per_run)


def timed_on(setup: Mapping[str, Any]) -> str:
    """The processor or accelerator on which the throughput in a setup was measured."""
    device: str = setup["runtime"]["device"]
    return setup["machine"]["cpu"] if device == "cpu" else setup["machine"].get("accelerator", device)


def origin_of(arm: str, names: Mapping[str, Any]) -> str:
    """The arm that a tuned arm was derived from, or the arm itself. Raises KeyError if `names` has neither."""
    origins = [name for name in names if f"{arm} ".startswith(f"{name} ")]
    if not origins:
        raise KeyError(arm)
    return max(origins, key=len)

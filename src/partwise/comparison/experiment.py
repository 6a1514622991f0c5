"""Run a comparison: train every arm on every seed, in parallel and resumably, then judge."""

import json
import math
import os
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from partwise.checkpoint import write_json
from partwise.comparison.design.matching import match_arms
from partwise.comparison.design.plan import Plan, dataset_of, make_plan
from partwise.comparison.design.request import Measure, Request
from partwise.comparison.noise_store import positive_control_power
from partwise.comparison.report import write_report
from partwise.comparison.results import final_values, gather
from partwise.comparison.stats.protocol import is_open
from partwise.comparison.trials.throughput import measure_throughput, throughput_of_runs, tokens_per_step
from partwise.comparison.trials.worker_pool import Job, WorkerPool, prepare_job
from partwise.comparison.tuning import Tune, check_seeds, origin_of, parse_tune, run_tuning
from partwise.compute.plan import Plan as ComputePlan
from partwise.compute.plan import check_requested, multi_seed_backends, shared_plans
from partwise.compute.runtime import Runtime, choose_runtime, machine_info, requested
from partwise.config import ConfigError, digest
from partwise.config.overrides import difference
from partwise.data import Dataset
from partwise.evaluate.references import dataset_references
from partwise.model import Transformer
from partwise.train.config import RunConfig
from partwise.train.evaluation import check_split_lengths
from partwise.train.run_names import FolderLock, check_run_name, default_run_name

SEEDS_PER_PROCESS = 8
"""Seeds of one arm that an accelerator trains per process."""

MAX_MULTI_SEED_PARAMETERS = 2**24
"""The default for larger models is one seed per process: it keeps the accelerator busy, and each seed needs memory."""


@dataclass
class Comparison:
    """A comparison stored in a folder. Running the same plan again resumes it and repeats no finished run.

    `requested_plan` is the plan before matching and tuning, which may change the arms of `plan`. `results` is the content
    of `results.json` once `run` returns.
    """

    path: Path
    plan: Plan
    command: str = ""
    imports: tuple[str, ...] = ()
    workers: int | None = None
    seeds_per_process: int | None = None
    match: Measure | None = None
    tune: Tune | None = None
    tune_seeds: int = 2
    results: dict[str, Any] = field(default_factory=dict)
    jobs: list[Job] = field(default_factory=list)
    started: float = 0.0

    def __post_init__(self) -> None:
        self.requested_plan = self.plan

    @property
    def verdicts(self) -> dict[str, str | None]:
        """The verdict on each arm, by its name."""
        return {row["arm"]: row["verdict"] for row in self.results["comparisons"]}

    @property
    def report(self) -> Path:
        return self.path / "report.html"

    def run(self, on_progress: Callable[["Comparison"], None] = lambda comparison: None) -> dict[str, Any]:
        """Train the missing runs, judge, and write the report. Raises ConfigError, or KeyboardInterrupt after saving."""
        self.plan = self.requested_plan
        dataset = self.prepare()
        self.path.mkdir(parents=True, exist_ok=True)
        lock = FolderLock(self.path)
        try:
            metadata = self._metadata(dataset)
            look = len([seeds for seeds in metadata["looks"] if seeds < self.plan.seeds]) + 1
            power = positive_control_power(self.plan, dataset)
            with WorkerPool(metadata["workers"], metadata["seeds_per_process"]) as pool:
                preparation = self._match_and_tune(metadata, pool, on_progress)
                self._train(metadata, pool, on_progress)
            throughput = metadata["throughput"] or throughput_of_runs(self.jobs)
            references = dataset_references(dataset)
            self.results = gather(
                self.plan, self.jobs, dataset, look=look, throughput=throughput, references=references
            )
            for control in self.results["controls"]:
                control["power"] = power if control["role"] == "positive" else None
            self.results |= preparation | {
                "name": self.path.name,
                "runtime": metadata["runtime"],
                "machine": metadata["machine"],
                "command": self.command,
                "protocol_hash": metadata.get("hash") if self.plan.rules.looks else None,
                "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            }
            metadata["looks"] = sorted({*metadata["looks"], self.plan.seeds})
            write_json(self.path / "compare.json", metadata)
            write_json(self.path / "results.json", self.results)
            write_report(self.results, self.path)
        finally:
            lock.release()
        return self.results

    def _match_and_tune(
        self, metadata: dict[str, Any], pool: WorkerPool, on_progress: Callable[["Comparison"], None]
    ) -> dict[str, Any]:
        """Match the arms, then tune them; both may change the plan's arms. Returns what to add to the results."""
        results: dict[str, Any] = {}
        if self.match:
            self.plan, matches = match_arms(self.plan, self.match, metadata["throughput"])
            results["match"] = {"measure": self.match, "arms": [asdict(match) for match in matches]}
        if self.tune:
            runtime = Runtime(**metadata["runtime"])

            def new_job(folder: Path, arm: str, seed: int, config: RunConfig) -> Job:
                plan = metadata["computation"][origin_of(arm, metadata["computation"])]
                return prepare_job(folder, arm, seed, config, runtime, plan, self.imports, self.command)

            def train(jobs: list[Job]) -> None:
                self.jobs, self.started = jobs, time.monotonic()
                pool.run(jobs, lambda: on_progress(self))
                on_progress(self)

            path = self.path / "tuning.json"
            self.plan, tuning = run_tuning(self.plan, self.tune, self.tune_seeds, self.path / "tuning", new_job, train)
            if path.exists():  # a resumed comparison reports the time of the original tuning
                tuning["seconds"] = max(tuning["seconds"], json.loads(path.read_text())["seconds"])
            write_json(path, tuning)
            results["tuning"] = tuning
            results["tuning_note"] = f"{self.tune.key} tuned for each arm over {', '.join(self.tune.values)}"
            throughput = metadata["throughput"]
            if throughput:
                for arm in self.plan.arms:  # a tuned arm is as fast as the arm it was derived from
                    throughput.setdefault(arm.name, throughput[origin_of(arm.name, throughput)])
        return results

    def _train(self, metadata: dict[str, Any], pool: WorkerPool, on_progress: Callable[["Comparison"], None]) -> None:
        """Train up to each look in turn, continuing only the arms that still have an open claim."""
        plan = self.plan
        runs = {arm.name: 0 for arm in plan.arms}
        open_claims = plan.claims
        for seeds in plan.looks:
            ends = {end for claim in open_claims for end in claim[:2]}
            names = {name for end in ends for name in plan.additive_predictions.get(end, (end,))}
            runs |= dict.fromkeys((*names, plan.arms[0].name), seeds)
            self.jobs = self._jobs(metadata, runs)
            self.started = time.monotonic()
            pool.run(self.jobs, lambda: on_progress(self))
            on_progress(self)
            effects = plan.rules.judge(plan.values(final_values(self.jobs, plan.rules.metric)), plan.claims)
            open_claims = tuple(claim for claim, effect in zip(plan.claims, effects, strict=True) if is_open(effect))
            if not open_claims:
                break

    def identity(self) -> dict[str, Any]:
        """Everything fixed before the first run."""
        fixed = self.requested_plan.identity()
        if self.match:
            fixed["match"] = self.match
        if self.tune:
            fixed["tune"] = {"key": self.tune.key, "values": list(self.tune.values), "seeds": self.tune_seeds}
        return fixed

    @property
    def hash(self) -> str:
        """SHA-256 of the protocol."""
        return digest(self.identity())

    def prepare(self) -> Dataset:
        first = self.plan.arms[0].config
        dataset = first.prepare()
        for arm in self.plan.arms:
            check_split_lengths(dataset_of(self.plan, arm, dataset), arm.config)
        return dataset

    def estimate(self) -> dict[str, Any]:
        """Minutes on this machine, number of runs and throughput, measured over a few training steps."""
        dataset = self.prepare()
        runtime, plans, workers, seeds_per_process = self._runtime()
        throughput, scoring = measure_throughput(self.plan, dataset, runtime, plans)
        seconds, runs = 0.0, 0
        claimed = {end for claim in self.plan.claims if claim.role == "claim" for end in claim[:2]}
        for arm in self.plan.arms:
            number = self.plan.seeds
            if self.tune and arm.name in claimed:
                # tuning, and the test of the best value
                number += self.plan.seeds + len(self.tune.values) * self.tune_seeds
            tokens = arm.config.train.steps * tokens_per_step(arm, dataset)
            seconds += number * (tokens / (throughput[arm.name] or math.inf) + scoring[arm.name])
            runs += number
        return {
            "minutes": seconds / min(workers, runs) / 60,
            "runs": runs,
            "workers": workers,
            "seeds_per_process": seeds_per_process,
            "throughput": throughput,
        }

    def _runtime(self) -> tuple[Runtime, dict[str, ComputePlan], int, int]:
        """The machine's runtime, each arm's plan of computation, the number of processes, and the seeds per process."""
        train = self.plan.arms[0].config.train
        runtime, backends = choose_runtime(train), requested(train)
        small = all(arm.config.model.parameters() <= MAX_MULTI_SEED_PARAMETERS for arm in self.plan.arms)
        seeds_per_process = self.seeds_per_process or (SEEDS_PER_PROCESS if runtime.device == "cuda" and small else 1)
        if seeds_per_process > 1:
            backends = multi_seed_backends(backends)
        with torch.device("meta"):
            models = {arm.name: Transformer(arm.config.model) for arm in self.plan.arms}
        plans = shared_plans(models, runtime, backends, {arm.name: arm.config.seq_len for arm in self.plan.arms})
        check_requested(plans.values(), backends)
        if runtime.device != "cpu":
            return runtime, plans, 1, seeds_per_process
        workers = self.workers or max(1, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1)
        threads = self.plan.arms[0].config.train.threads or 1
        return runtime.with_threads(threads), plans, workers, seeds_per_process

    def _metadata(self, dataset: Dataset) -> dict[str, Any]:
        """`compare.json`: everything fixed before the first run. Raises ConfigError if the plan has changed."""
        path = self.path / "compare.json"
        if path.exists():
            metadata = json.loads(path.read_text())
            rows = difference({"plan": _arms_by_name(metadata["plan"])}, {"plan": _arms_by_name(self.identity())})
            if rows:
                key, old, new = rows[0]
                raise ConfigError(
                    f"{self.path} holds another comparison ({key} was {old}, now {new}): choose another --name"
                )
            if metadata.get("hash", self.hash) != self.hash:
                raise ConfigError(
                    f"{path} was changed after the first run: its hash does not match; choose another --name"
                )
            if metadata["data"] != dataset.hash:
                raise ConfigError(f"the data of {self.path} has changed since its first run: choose another --name")
            if metadata["looks"] and self.plan.seeds < max(metadata["looks"]):
                raise ConfigError(
                    f"--seeds {self.plan.seeds}: {self.path} was already judged at {max(metadata['looks'])} seeds, "
                    "and a look cannot be undone; give at least as many"
                )
            # seeds_per_process may change: it affects rounding only
            return {
                **metadata,
                "seeds_per_process": self.seeds_per_process or metadata.get("seeds_per_process", 1),
            }
        runtime, plans, workers, seeds_per_process = self._runtime()
        # matching by seconds needs throughput before the first run; otherwise the runs themselves provide it
        throughput = measure_throughput(self.plan, dataset, runtime, plans)[0] if self.match == "seconds" else {}
        metadata = {
            "format": 1,
            "plan": self.identity(),
            "hash": self.hash,
            "looks": [],
            "runtime": runtime.to_dict(),
            "computation": {arm: plan.to_dict() for arm, plan in plans.items()},
            "workers": workers,
            "seeds_per_process": seeds_per_process,
            "throughput": throughput,
            "machine": machine_info(),
            "data": dataset.hash,
        }
        write_json(path, metadata)
        return metadata

    def _jobs(self, metadata: dict[str, Any], runs: dict[str, int]) -> list[Job]:
        """The first `runs[arm]` runs of each arm."""
        jobs, runtime = [], Runtime(**metadata["runtime"])
        for index in range(max(runs.values())):
            seed = self.plan.first_seed + index
            for number, arm in enumerate(self.plan.arms):
                if index < runs[arm.name]:
                    folder = self.path / "runs" / f"{number}-{default_run_name([arm.name])}" / f"seed-{seed}"
                    config = arm.with_seed(seed)
                    plan = metadata["computation"][origin_of(arm.name, metadata["computation"])]
                    jobs.append(prepare_job(folder, arm.name, seed, config, runtime, plan, self.imports, self.command))
        return jobs


ProgressDisplay = Callable[[Comparison], AbstractContextManager[Callable[[Comparison], None]]]
"""Makes the context manager that displays a running comparison."""


def compare(
    preset: str,
    *overrides: str,
    on_progress: Callable[[Comparison], None] = lambda comparison: None,
    **settings: Any,
) -> Comparison:
    """Train a preset and its variants over paired seeds and judge the effect of each change.

    `overrides` define the second arm. `settings` are the fields of a `Request` (each string in `arms`, such as
    `"ffn=geglu norm=rmsnorm"`, defines another arm; `common` applies to every arm; `data`, `seeds`, `margin`, `looks`, ...)
    and the arguments of `plan_comparison`. Results and report are written to `runs/NAME`. Raises ConfigError.
    """
    comparison = plan_comparison(preset, *overrides, **settings)
    comparison.run(on_progress)
    return comparison


def plan_comparison(
    preset: str,
    *overrides: str,
    name: str | None = None,
    imports: tuple[str, ...] = (),
    workers: int | None = None,
    seeds_per_process: int | None = None,
    **settings: Any,
) -> Comparison:
    """The comparison that `compare` would run, validated but not started. Raises ConfigError."""
    fields = {key: value for key, value in settings.items() if value is not None}
    request = Request.from_dict({"preset": preset, "change": list(overrides), **fields})
    return make_comparison(request, name, imports, workers, seeds_per_process)


def make_comparison(
    request: Request,
    name: str | None = None,
    imports: tuple[str, ...] = (),
    workers: int | None = None,
    seeds_per_process: int | None = None,
) -> Comparison:
    """The comparison for a request, validated but not started. Raises ConfigError."""
    path = Path("runs") / (check_run_name(name) if name else request.name())
    tune = parse_tune(request.tune) if request.tune else None
    plan = make_plan(request)
    if tune:
        if request.variance != "pair":
            raise ConfigError(
                "variance=residual --tune: an arm and its tuned copy share their noise: use variance=pair"
            )
        check_seeds(plan)
        for value in tune.values:
            tune.apply(plan.arms[0], value)  # raises for an invalid value before anything runs
    command = request.command(name, imports)
    return Comparison(path, plan, command, imports, workers, seeds_per_process, request.match, tune, request.tune_seeds)


def _arms_by_name(identity: dict[str, Any]) -> dict[str, Any]:
    return {**identity, "arms": {arm["name"]: arm["config"] for arm in identity["arms"]}}

"""Estimate how long a comparison takes on this machine."""

import math
from dataclasses import dataclass

from partwise.comparison.design.plan import Plan
from partwise.comparison.setup import Setup
from partwise.comparison.trials.throughput import measure_throughput, tokens_per_step
from partwise.data import Dataset


@dataclass(frozen=True)
class Estimate:
    """Minutes on this machine, number of runs and throughput in tokens per second."""

    minutes: float
    runs: int
    workers: int
    seeds_per_process: int
    throughput: dict[str, float | None]


def estimate_time(plan: Plan, dataset: Dataset, setup: Setup, tuning_runs: int = 0) -> Estimate:
    """The time of a comparison, measured over a few training steps; `tuning_runs` is the number of runs that tune one arm."""
    throughput, scoring = measure_throughput(plan, dataset, setup.runtime, setup.plans)
    seconds, runs = 0.0, 0
    claimed = {end for claim in plan.claims if claim.role == "claim" for end in claim[:2]}
    for arm in plan.arms:
        number = plan.seeds
        if tuning_runs and arm.name in claimed:
            number += plan.seeds + tuning_runs  # tuning, and the test of the best value
        tokens = arm.config.train.steps * tokens_per_step(arm, dataset)
        seconds += number * (tokens / (throughput[arm.name] or math.inf) + scoring[arm.name])
        runs += number
    minutes = seconds / min(setup.workers, runs) / 60
    return Estimate(minutes, runs, setup.workers, setup.seeds_per_process, throughput)

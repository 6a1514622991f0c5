"""How fast each arm trains on this machine: tried before anything is run for good, or as its runs were."""

import contextlib
import statistics
import time
from itertools import islice

import torch

from partwise.comparison.plan import Arm, Plan, dataset_of
from partwise.comparison.pool import Job
from partwise.data import Dataset, examples
from partwise.evaluate.loss import mean_loss
from partwise.train.choices import Choices
from partwise.train.loop import Diverged, Run
from partwise.train.metrics import read_metrics

TIMED_STEPS = 8


def rates_of_runs(jobs: list[Job]) -> dict[str, float | None]:
    """Training tokens per second by arm, side by side as the runs were: the median of all their updates."""
    found: dict[str, list[float]] = {job.arm: [] for job in jobs}
    for job in jobs:
        steps = (line for line in read_metrics(job.folder) if line["kind"] == "step")
        found[job.arm] += [line["tokens"] / line["seconds"] for line in steps]
    return {arm: statistics.median(each) if each else None for arm, each in found.items()}


def tokens_a_step(arm: Arm, dataset: Dataset) -> int:
    """Targets in a batch: on average, where rows differ in length."""
    train = examples(dataset, "train", arm.config.context, arm.config.model.max_len)
    return train.tokens_in(arm.config.train.batch_size)


def measure_rates(plan: Plan, dataset: Dataset, choices: Choices) -> tuple[dict[str, float | None], dict[str, float]]:
    """Training tokens per second, and seconds to score a run, by arm: each alone, all in turn, medians.

    An arm that diverges within the first steps has no rate.
    """
    threads = torch.get_num_threads()
    runs = {arm.name: Run(arm.config, dataset_of(plan, arm, dataset), choices) for arm in plan.arms}
    times: dict[str, list[float]] = {name: [] for name in runs}
    for round_ in range(TIMED_STEPS + 2):
        for name, run in runs.items():
            with contextlib.suppress(Diverged):
                step = run.update()
                if round_ >= 2:  # the first steps also pay for allocation
                    times[name].append(step.seconds)
    rates: dict[str, float | None] = {}
    scoring = {}
    for arm in plan.arms:
        tokens = tokens_a_step(arm, dataset)
        rates[arm.name] = tokens / statistics.median(times[arm.name]) if times[arm.name] else None
        batches = examples(runs[arm.name].dataset, "val", arm.config.context, arm.config.model.max_len).scored()
        sample = list(islice(batches, 2))
        began = time.perf_counter()
        mean_loss(runs[arm.name].model, sample, choices.precision)
        per_token = (time.perf_counter() - began) / sum(batch.count for batch in sample)
        evaluations = arm.config.train.steps // arm.config.eval_every + 1
        answered = len(dataset.split("test")) if "test" in dataset.names else 0
        scoring[arm.name] = (2 * evaluations * len(dataset.split("val")) + 2 * answered) * per_token
    torch.set_num_threads(threads)
    return rates, scoring

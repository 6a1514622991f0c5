"""Training throughput of each arm on this machine: measured before the runs, or read from their metrics."""

import contextlib
import statistics
import time
from collections.abc import Sequence
from itertools import islice

from partwise.ablation.run_plan import RunArm, RunPlan, dataset_of
from partwise.comparison.trials.trial import Trial
from partwise.compute.backend_plan import BackendPlan as ComputePlan
from partwise.compute.runtime import Runtime
from partwise.data import Dataset, build_examples
from partwise.evaluate.loss import mean_loss
from partwise.kernels.threads import is_deterministic, kernel_threads, set_threads
from partwise.messages import print_message
from partwise.train.loop import Diverged, Run
from partwise.train.metrics import read_metrics

TIMED_STEPS = 8
"""For the estimate of a comparison's time."""

STEPS_IN_TURN = 30
"""For budgets in seconds, and for the seconds saved."""

ANNOUNCED_SECONDS = 10
"""A timing that takes longer is announced."""


def throughput_of_runs(trials: Sequence[Trial]) -> dict[str, float | None]:
    """Training tokens per second by arm, with all runs in parallel: the median over their steps."""
    rates: dict[str, list[float]] = {trial.arm: [] for trial in trials}
    for trial in trials:
        steps = (line for line in read_metrics(trial.folder) if line["kind"] == "step")
        rates[trial.arm] += [line["tokens"] / line["seconds"] for line in steps]
    return {arm: statistics.median(each) if each else None for arm, each in rates.items()}


def tokens_per_step(arm: RunArm, dataset: Dataset) -> int:
    """Targets per batch, on average if rows differ in length."""
    train = build_examples(dataset, "train", arm.config.seq_len, arm.config.model.context_length)
    return train.targets_per_batch(arm.config.train.batch_size)


def measure_throughput(
    plan: RunPlan, dataset: Dataset, runtime: Runtime, plans: dict[str, ComputePlan], steps: int = TIMED_STEPS
) -> tuple[dict[str, float | None], dict[str, float]]:
    """Training tokens per second and seconds to evaluate a run, by arm.

    Medians over rounds in which the arms alternate, each alone on the machine. The throughput of an arm that
    diverges within the first steps is None.
    """
    threads, deterministic = kernel_threads(), is_deterministic()
    runs = {arm.name: Run(arm.config, dataset_of(plan, arm, dataset), runtime, plans[arm.name]) for arm in plan.arms}
    times: dict[str, list[float]] = {name: [] for name in runs}
    for round_ in range(steps + 2):
        started = time.perf_counter()
        for name, run in runs.items():
            with contextlib.suppress(Diverged):
                step = run.update()
                if round_ >= 2:  # the first steps also pay for allocation
                    times[name].append(step.seconds)
        if round_ == 1 and (seconds := steps * (time.perf_counter() - started)) > ANNOUNCED_SECONDS:
            print_message(f"timing {steps} steps of each arm, in turn: about {seconds:.0f} s")
    throughput: dict[str, float | None] = {}
    scoring = {}
    for arm in plan.arms:
        tokens = tokens_per_step(arm, dataset)
        throughput[arm.name] = tokens / statistics.median(times[arm.name]) if times[arm.name] else None
        batches = build_examples(
            runs[arm.name].dataset, "val", arm.config.seq_len, arm.config.model.context_length
        ).eval_batches()
        sample = list(islice(batches, 2))
        start = time.perf_counter()
        mean_loss(runs[arm.name].model, sample, runtime.precision)
        per_token = (time.perf_counter() - start) / sum(batch.n_targets for batch in sample)
        evaluations = arm.config.train.steps // arm.config.eval_every + 1
        test_tokens = len(dataset.split("test")) if "test" in dataset.split_names else 0
        scoring[arm.name] = (2 * evaluations * len(dataset.split("val")) + 2 * test_tokens) * per_token
    set_threads(threads, deterministic)
    return throughput, scoring

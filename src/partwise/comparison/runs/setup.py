"""How a comparison is computed on this machine: runtime, backends of each arm, and concurrency."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch

from partwise.comparison.runs.plan import RunPlan
from partwise.compute.plan import Plan as ComputePlan
from partwise.compute.plan import check_requested, multi_seed_backends, shared_plans, slower_arms
from partwise.compute.runtime import Runtime, choose_runtime, requested
from partwise.config import ConfigError
from partwise.model import Transformer
from partwise.train.distributed.processes import Processes

SEEDS_PER_PROCESS = 8
"""Seeds of one arm that an accelerator trains per process."""

MAX_MULTI_SEED_PARAMETERS = 2**24
"""The default for larger models is one seed per process: it keeps the accelerator busy, and each seed needs memory."""


@dataclass(frozen=True)
class Setup:
    """The runtime, each arm's plan of computation, the number of processes, and the seeds per process."""

    runtime: Runtime
    plans: dict[str, ComputePlan]
    workers: int
    seeds_per_process: int
    limiting: dict[str, list[str]]
    """The arms that keep the others from a faster backend, with the reasons."""


def choose_setup(
    plan: RunPlan, workers: int | None, seeds_per_process: int | None, processes_per_run: int = 1
) -> Setup:
    """The setup of this machine; None stands for a default. Raises ConfigError if a backend is not available."""
    train = plan.arms[0].config.train
    runtime, backends = choose_runtime(train), requested(train)
    if processes_per_run > 1:
        check_shared(plan, seeds_per_process, processes_per_run)
        seeds_per_process, runtime = 1, replace(runtime, compile=False)
    small = all(arm.config.model.parameters() <= MAX_MULTI_SEED_PARAMETERS for arm in plan.arms)
    seeds_per_process = seeds_per_process or (SEEDS_PER_PROCESS if runtime.device == "cuda" and small else 1)
    if seeds_per_process > 1:
        backends = multi_seed_backends(backends)
    with torch.device("meta"):
        models = {arm.name: Transformer(arm.config.model) for arm in plan.arms}
    lengths = {arm.name: arm.config.seq_len for arm in plan.arms}
    plans = shared_plans(models, runtime, backends, lengths)
    check_requested(plans.values(), backends)
    alone = {arm: shared_plans({arm: model}, runtime, backends, lengths)[arm] for arm, model in models.items()}
    limiting = limiting_arms(plans, alone, runtime)
    if runtime.device != "cpu":
        return Setup(runtime, plans, 1, seeds_per_process, limiting)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
    workers = workers or max(1, cores // processes_per_run)
    return Setup(runtime.with_threads(train.threads or 1), plans, workers, seeds_per_process, limiting)


def limiting_arms(
    shared: Mapping[str, ComputePlan], alone: Mapping[str, ComputePlan], runtime: Runtime
) -> dict[str, list[str]]:
    """The arms without a backend that others would have `alone` and lack in their `shared` plans, with the reasons."""
    if all(shared[arm].counts() == alone[arm].counts() for arm in shared):
        return {}
    return slower_arms(alone, runtime)


def check_shared(plan: RunPlan, seeds_per_process: int | None, processes_per_run: int) -> None:
    """Raise ConfigError if several processes cannot share each run."""
    if (seeds_per_process or 1) > 1:
        raise ConfigError(
            f"--processes-per-run {processes_per_run} and --seeds-per-process {seeds_per_process} exclude each other: "
            "leave one out"
        )
    if plan.horizons:
        raise ConfigError(f"--horizons does not support --processes-per-run {processes_per_run}: leave one out")
    for arm in plan.arms:
        train = arm.config.train
        if train.compile:
            raise ConfigError(
                f"train.compile=true does not support --processes-per-run {processes_per_run}: leave one out"
            )
        try:
            Processes(0, processes_per_run).check_rows(train.batch_size, train.grad_accumulation)
        except ConfigError as error:
            raise ConfigError(f"--processes-per-run, {arm.name}: {error}") from None

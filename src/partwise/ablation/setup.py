"""How a comparison is computed on this machine: runtime, backends of each arm, and concurrency."""

from collections.abc import Collection
from dataclasses import dataclass, replace

from partwise.ablation.run_plan import RunPlan
from partwise.compute.backend_plan import BackendPlan as ComputePlan
from partwise.compute.backend_plan import check_requested, multi_seed_backends, shared_plans, slower_arms
from partwise.compute.runtime import Runtime, choose_runtime, requested
from partwise.config import ConfigError
from partwise.machine import available_cores
from partwise.model import Transformer, meta_model
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


def choose_setup(
    plan: RunPlan, workers: int | None, seeds_per_process: int | None, processes_per_run: int = 1
) -> Setup:
    """The setup of this machine; None is the default. Raises ConfigError if a backend is not available."""
    train = plan.arms[0].config.train
    runtime, seeds_per_process, backends = choose_backends(plan, seeds_per_process, processes_per_run)
    plans = shared_plans(empty_models(plan), runtime, backends, lengths(plan))
    check_requested(plans.values(), backends)
    if runtime.device != "cpu":  # one run has the device to itself, unless several are asked for
        workers = workers or 1
        threads = train.threads or max(1, runtime.threads // workers)
        return Setup(runtime.with_threads(threads), plans, workers, seeds_per_process)
    workers = workers or max(1, available_cores() // processes_per_run)
    return Setup(runtime.with_threads(train.threads or 1), plans, workers, seeds_per_process)


def choose_backends(
    plan: RunPlan, seeds_per_process: int | None, processes_per_run: int
) -> tuple[Runtime, int, dict[str, str]]:
    """The runtime of all arms, the seeds per process, and the backend that each kind of operation is to have."""
    train = plan.arms[0].config.train
    runtime, backends = choose_runtime(train), requested(train)
    if processes_per_run > 1:
        check_shared(plan, seeds_per_process, processes_per_run)
        seeds_per_process, runtime = 1, replace(runtime, compile=False)
    small = all(arm.config.model.parameters() <= MAX_MULTI_SEED_PARAMETERS for arm in plan.arms)
    seeds_per_process = seeds_per_process or (SEEDS_PER_PROCESS if runtime.device == "cuda" and small else 1)
    return runtime, seeds_per_process, multi_seed_backends(backends) if seeds_per_process > 1 else backends


def empty_models(plan: RunPlan) -> dict[str, Transformer]:
    """The model of each arm on the meta device."""
    return {arm.name: meta_model(arm.config.model) for arm in plan.arms}


def lengths(plan: RunPlan) -> dict[str, int]:
    return {arm.name: arm.config.seq_len for arm in plan.arms}


def limiting_arms(
    plan: RunPlan, seeds_per_process: int | None, processes_per_run: int = 1
) -> list[dict[str, list[str]]]:
    """Arms without which the others would have faster backends, with the reasons: each alone, or else several together."""
    if len(plan.arms) < 3:
        return []  # nothing would remain to compare
    runtime, _, backends = choose_backends(plan, seeds_per_process, processes_per_run)
    models, baseline = empty_models(plan), plan.arms[0].name

    def plans_of(names: Collection[str]) -> dict[str, ComputePlan]:
        return shared_plans({name: models[name] for name in names}, runtime, backends, lengths(plan))

    def limits(names: Collection[str]) -> bool:
        rest = plans_of([name for name in models if name not in names])
        return len(rest) > 1 and any(rest[name].counts() != full[name].counts() for name in rest)

    full, alone = plans_of(models), {name: plans_of([name])[name] for name in models}
    reasons = {arm: why for arm, why in slower_arms(alone, runtime).items() if arm != baseline}
    if found := [{arm: why} for arm, why in reasons.items() if limits([arm])]:
        return found
    return [reasons] if len(reasons) > 1 and limits(reasons) else []


def check_shared(plan: RunPlan, seeds_per_process: int | None, processes_per_run: int) -> None:
    """Raise ConfigError if several processes cannot share each run."""
    if (seeds_per_process or 1) > 1:
        raise ConfigError(
            f"--processes-per-run {processes_per_run} and --seeds-per-process {seeds_per_process} cannot be "
            "combined: omit one of them"
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

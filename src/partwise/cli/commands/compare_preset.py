"""`compare` of presets."""

import os
from typing import Any

from partwise.ablation.request import Request
from partwise.ablation.run_comparison import RunComparison, make_comparison, make_grid
from partwise.ablation.run_workload import Estimate
from partwise.cli.commands.compare_output import (
    Output,
    add_prediction,
    announce,
    compare_over_grid,
    replicate_winner,
    run_comparison,
)
from partwise.cli.commands.power_table import parse_numbers, planned_looks, power_sentences
from partwise.cli.compare_options import ComparisonOptions, PresetOptions
from partwise.cli.terminal import console, format_duration
from partwise.comparison.noise_store import expected_noise, ignored_calibrations
from partwise.comparison.trials.places import check_place
from partwise.compute.runtime import choose_runtime
from partwise.config.overrides import distinct, parse_overrides
from partwise.inspection.memory import memory_warning
from partwise.machine import available_memory
from partwise.messages import quantity


def compare_variants(
    options: dict[str, Any], shared: ComparisonOptions, training: PresetOptions, imports: tuple[str, ...]
) -> None:
    """Run a comparison and print its summary, or with `dry_run` print an estimate of its time and power."""
    output = Output(shared.as_json, shared.require or [])
    request = make_request(options, shared.protocol)
    on = check_place(shared.on)
    if shared.grid:
        output.refuse_grid(shared.predict)
        run_over_grid(request, shared.grid, shared, training, imports)
        return
    comparison = make_comparison(
        request, shared.name, imports, shared.workers, training.seeds_per_process, on, training.processes_per_run
    )
    if shared.dry_run:
        show_estimate(comparison, shared.sd)
        return
    output.check(comparison)
    add_prediction(comparison, shared.predict)
    if on == "local":
        warn_of_memory(comparison)
    run_comparison(comparison)
    if shared.replicate:
        replicate_winner(comparison)
    output.end(comparison, comparison.results)


def run_over_grid(
    request: Request, grid: list[str], shared: ComparisonOptions, training: PresetOptions, imports: tuple[str, ...]
) -> None:
    """Run one comparison per grid setting, each with its own verdict."""
    cells = list(
        make_grid(
            request,
            grid,
            shared.name,
            imports=imports,
            workers=shared.workers,
            on=shared.on,
            seeds_per_process=training.seeds_per_process,
            processes_per_run=training.processes_per_run,
        )
    )
    if shared.dry_run:
        for _, comparison in cells:
            show_estimate(comparison, shared.sd)
        return
    compare_over_grid(cells, grid, shared.name or request.name())


def make_request(options: dict[str, Any], protocol: bool) -> Request:
    """The request that the command's options describe. Raises ConfigError."""
    values = {key: value for key, value in options.items() if value is not None}
    if looks := planned_looks(values, protocol):
        values["looks"] = list(looks)
    if "horizons" in values:
        expected = "numbers of steps, such as 500,2000,8000"
        values["horizons"] = list(parse_numbers("--horizons", values["horizons"], expected))
    distinct(parse_overrides(values.get("common", ())))
    return Request.from_dict(values)


def warn_of_memory(comparison: RunComparison) -> None:
    """Print one line if runs of an arm may need more memory than this machine has."""
    plan, workers = comparison.plan, comparison.workload.workers or os.cpu_count() or 1
    for arm in plan.arms:
        runtime = choose_runtime(arm.config.train)
        available = available_memory() if runtime.device == "cpu" else None
        runs = min(workers, plan.trials)
        if warning := memory_warning(arm.config, runtime.precision, available, runs):
            console.print(f"{arm.name}: {warning}", markup=False)
            return


def show_estimate(comparison: RunComparison, sd: float | None) -> Estimate:
    """Print the estimated time and power of a comparison."""
    plan = comparison.plan
    announce(comparison)
    estimate = comparison.estimate(comparison.finished_runs())
    at_most = "at most " if len(plan.looks) > 1 else ""
    duration = format_duration(estimate.minutes * 60)
    console.print(
        f"{at_most}about {duration} for {estimate.runs} runs, {estimate.workers} at a time, extrapolated from a "
        "short timing run"
        + (
            f", ignoring the speedup from {estimate.seeds_per_process} seeds per process"
            if estimate.seeds_per_process > 1
            else f", each in one process instead of {estimate.processes_per_run}"
            if estimate.processes_per_run > 1
            else ""
        )
    )
    if estimate.finished:
        left = format_duration(estimate.minutes_left * 60)
        console.print(f"{quantity(estimate.finished, 'run')} finished earlier; the rest takes {at_most}about {left}")
    if comparison.tune:
        duration = format_duration(estimate.minutes_per_value * 60)
        console.print(
            f"not included: values that tuning adds where the best one lies at an edge, about {duration} for each"
        )
    noise = expected_noise(plan, comparison.prepare().hash, sd)
    if plan.seeds < 2:
        console.print(
            "no effect is detectable: a single seed gives no interval; --seeds must be at least 2, preferably 5"
        )
        return estimate
    if ignored := ignored_calibrations():
        console.print(ignored, markup=False)
    for sentence in power_sentences(plan, noise):
        console.print(sentence, markup=False)
    return estimate

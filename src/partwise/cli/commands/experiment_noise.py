"""`calibrate` and `plan` of an experiment's YAML file."""

from typing import Any

from partwise.any_code.command_comparison import make_command_calibration, make_command_comparison
from partwise.cli.commands.calibration_table import show_calibration
from partwise.cli.commands.compare_experiment import experiment_of_file, this_command, unknown_noise
from partwise.cli.commands.compare_output import run_comparison
from partwise.cli.commands.power_table import TrialTime, compute_power, make_designs, parse_looks, show_power
from partwise.cli.terminal import console
from partwise.comparison.calibration import calibrate
from partwise.comparison.noise_store import NO_DATA, find_calibration, known_noise
from partwise.config import ConfigError


def calibrate_experiment(
    words: list[str],
    values: dict[str, Any],
    *,
    seeds: int,
    name: str | None,
    workers: int | None,
    failure: float | None,
) -> None:
    """Run the experiment's baseline on pairs of seeds, print the noise they show, and store it for later comparisons."""
    path, experiment = experiment_of_file(words, values)
    comparison = make_command_calibration(
        experiment,
        path.parent,
        name or f"calibrate-{path.stem}",
        this_command(),
        seeds=seeds,
        workers=workers,
        failure=failure,
    )
    run_comparison(comparison)
    show_calibration(calibrate(comparison, NO_DATA), comparison.plan.rules.unit)


def plan_experiment(
    words: list[str],
    values: dict[str, Any],
    options: dict[str, Any],
    *,
    protocol: bool,
    sd: float | None,
    effect: float | None,
    workers: int | None,
    machines: int,
    as_json: bool,
) -> None:
    """Print the power of several numbers of seeds, and the time if a calibration has measured it; runs nothing."""
    path, experiment = experiment_of_file(words, values)
    looks = options.pop("looks")
    settings = {key: value for key, value in options.items() if value is not None}
    comparison = make_command_comparison(experiment, path.parent, path.stem, seeds=5, **settings)
    plan = comparison.plan
    noise = known_noise(plan, sd=sd)
    if noise is None:
        raise ConfigError(f"{path}: {unknown_noise(plan.rules.metric, path)}")
    calibration = find_calibration(plan, NO_DATA) or {}
    time = None
    if calibration.get("seconds"):
        slots = comparison.workload.processes(workers)
        time = TrialTime(calibration["seconds"], len(plan.arms), slots, machines)
    rules = plan.rules
    designs = make_designs(
        parse_looks(looks) if looks else (), protocol, plan.n_claims, rules.margin, rules.alpha, rules.method
    )
    if not as_json:
        console.print(plan.question, style="bold", markup=False)
        if time:
            console.print(f"times follow from the trials of {calibration['name']}", markup=False)
    show_power(compute_power(designs, noise, effect, time), as_json)

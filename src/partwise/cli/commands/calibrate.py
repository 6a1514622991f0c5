"""`calibrate`: measure seed-to-seed noise with A/A pairs."""

from dataclasses import asdict
from typing import Any

from partwise.ablation.evaluation_noise import evaluation_standard_errors
from partwise.ablation.run_comparison import make_comparison
from partwise.cli.commands.calibration_table import show_calibration, show_variance_split
from partwise.cli.commands.compare_output import announce, run_comparison, run_with_progress
from partwise.cli.commands.compare_preset import make_request
from partwise.comparison.calibration import calibrate, check_pairs
from partwise.comparison.stats.variance_split import split_variance
from partwise.config import ConfigError
from partwise.json_files import write_json
from partwise.run_names import check_run_name, explain_write_errors


def calibrate_preset(
    preset: str,
    overrides: list[str],
    *,
    data: str | None,
    failure: float | None,
    family: str,
    positive_control: str | None,
    seeds: int,
    name: str | None,
    workers: int | None = None,
) -> None:
    """Train A/A pairs, print the noise they show, and store it for later comparisons."""
    check_pairs(seeds)
    options: dict[str, Any] = {
        "preset": preset,
        "change": [f"train.reinitialize={family}"],
        "common": overrides,
        "data": data,
        "failure": failure,
        "seeds": seeds,
        "positive_control": positive_control,
    }
    request = make_request(options, protocol=False)
    name = check_run_name(name) if name else f"calibrate-{request.name()}"[:120]
    comparison = make_comparison(request, name, workers=workers)
    run_comparison(comparison)
    dataset = comparison.prepare()
    errors = evaluation_standard_errors(comparison, dataset)
    show_calibration(calibrate(comparison, dataset.hash, family, errors), comparison.plan.rules.unit)


def calibrate_sources(
    preset: str,
    overrides: list[str],
    *,
    vary: str,
    data: str | None,
    failure: float | None,
    seeds: int,
    name: str | None,
    workers: int | None = None,
) -> None:
    """Train several initializations in several data orders, all combinations, and print the variance of each source."""
    if sorted(vary.split(",")) != ["init", "order"]:
        raise ConfigError(f"--vary {vary}: expected init,order")
    if seeds < 3:
        raise ConfigError(f"--seeds {seeds}: must be at least 3, for 3 initializations in 3 orders")
    options: dict[str, Any] = {
        "preset": preset,
        "arms": [f"train.init_seed={seed}" for seed in range(1, seeds)],
        "common": [*overrides, "train.init_seed=0"],
        "data": data,
        "failure": failure,
        "seeds": seeds,
    }
    request = make_request(options, protocol=False)
    name = check_run_name(name) if name else f"calibrate-{vary.replace(',', '-')}-{request.name()}"[:120]
    comparison = make_comparison(request, name, workers=workers)
    announce(comparison)
    results = run_with_progress(comparison)
    split = split_variance([[float("nan") if value is None else value for value in arm.values] for arm in results.arms])
    error, _ = evaluation_standard_errors(comparison, comparison.prepare())
    path = comparison.path / "variance_split.json"
    with explain_write_errors(path):
        write_json(path, {**asdict(split), "evaluation_se": error})
    show_variance_split(split, error, results.protocol.metric_with_unit)

"""`calibrate`: measure seed-to-seed noise with A/A pairs."""

from typing import Any

from partwise.cli.commands.calibration_table import show_calibration
from partwise.cli.commands.compare import make_request
from partwise.cli.commands.compare_output import run_comparison
from partwise.comparison.calibration import calibrate, check_pairs
from partwise.comparison.runs.comparison import make_comparison
from partwise.comparison.runs.evaluation_noise import evaluation_standard_errors
from partwise.train.run_names import check_run_name


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

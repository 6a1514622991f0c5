"""`calibrate`: measure seed-to-seed noise with A/A pairs."""

from typing import Any

from partwise.cli.commands.compare import make_request
from partwise.cli.commands.compare_output import run_comparison
from partwise.cli.terminal import console, table
from partwise.comparison.calibration import Calibration, calibrate
from partwise.comparison.report.cells import number
from partwise.comparison.runs.comparison import make_comparison
from partwise.comparison.stats.number_format import format_p
from partwise.config import ConfigError
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
) -> None:
    """Train A/A pairs, print the noise they show, and store it for later comparisons."""
    if seeds < 3:
        raise ConfigError(f"--seeds {seeds}: must be at least 3; 8 pairs estimate the seed SD to within about 25%")
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
    comparison = make_comparison(request, check_run_name(name) if name else f"calibrate-{request.name()}"[:120])
    run_comparison(comparison)
    show_calibration(calibrate(comparison, comparison.prepare()))


def show_calibration(calibration: Calibration) -> None:
    rows = [
        (
            "SD of a difference",
            f"{calibration.sd_difference:.4f}",
            f"{calibration.sd_low:.4f} to {calibration.sd_high:.4f}, {calibration.seeds} pairs",
        ),
        ("seed SD of one run", f"{calibration.sd:.4f}", ""),
        (
            "paired correlation",
            f"{calibration.correlation:.2f}",
            f"{calibration.correlation_low:.2f} to {calibration.correlation_high:.2f}",
        ),
        (
            "mean A/A difference",
            f"{calibration.mean:+.4f}",
            f"p = {format_p(calibration.p_mean, 0.05)} (t test of 0), {format_p(calibration.p_sign_flip, 0.05)} (sign flips)",
        ),
        ("standard error of one loss", number(calibration.evaluation_se), "over the choice of validation text"),
        ("standard error of a difference", number(calibration.paired_evaluation_se), "the same, on a shared text"),
        (
            "rejected by a t test at 5%",
            f"{100 * calibration.rejected_subsets:.0f}%",
            f"of {calibration.subsets} subsets of {calibration.subset_size} pairs; 5% on average without an effect",
        ),
    ]
    if calibration.control_effect is not None:
        rows.append(
            (
                f"positive control: {calibration.positive_control}",
                f"{calibration.control_effect:+.4f}",
                "mean difference",
            )
        )
    console.print(table("calibration, nats", ["", "value", ""], rows))
    if calibration.failure:
        console.print(f"the calibration failed: {calibration.failure}", markup=False)
    else:
        console.print("saved to runs/calibrations.json; `plan` and comparisons with this baseline and data use it")

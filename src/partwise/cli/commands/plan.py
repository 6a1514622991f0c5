"""`calibrate` and `plan`: measure seed-to-seed noise, and estimate time and power for several numbers of seeds."""

from typing import Any

from partwise.cli.commands.compare import make_request, run_comparison
from partwise.cli.terminal import console, format_duration, table
from partwise.comparison.calibration import Calibration, calibrate
from partwise.comparison.experiment import make_comparison
from partwise.comparison.noise_store import Noise, expected_noise
from partwise.comparison.report.cells import number
from partwise.comparison.stats.number_format import format_percent
from partwise.comparison.stats.power import (
    default_looks,
    equivalence_power_over_looks,
    minimum_detectable_effect_over_looks,
    power_over_looks,
    seeds_for_margin,
    seeds_needed,
)
from partwise.config import ConfigError
from partwise.train.run_names import check_run_name

SEED_COUNTS = (4, 8, 16, 32)


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
            "seed SD",
            f"{calibration.sd:.4f}",
            f"{calibration.sd_low:.4f} to {calibration.sd_high:.4f}, {calibration.df:.1f} degrees of freedom",
        ),
        (
            "paired correlation",
            f"{calibration.correlation:.2f}",
            f"{calibration.correlation_low:.2f} to {calibration.correlation_high:.2f}",
        ),
        ("mean A/A difference", f"{calibration.mean:+.4f}", f"{calibration.seeds} pairs; 0 in expectation"),
        ("standard error of one loss", number(calibration.evaluation_se), "over the choice of validation text"),
        ("standard error of a difference", number(calibration.paired_evaluation_se), "the same, on a shared text"),
        (
            "false positives",
            format_percent(calibration.false_positive_rate) if calibration.false_positive_rate else "0%",
            f"of {calibration.relabelings} relabelings, by a t test at 5%",
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
    console.print(
        "saved to runs/calibrations.json; `plan` and comparisons with this task, model size and number of steps use it"
    )


def plan_seeds(options: dict[str, Any], *, sd: float | None, effect: float | None, workers: int | None) -> None:
    """Print the time and power of 4, 8, 16 and 32 seeds; trains only a few steps, for timing."""
    comparison = make_comparison(make_request(options, protocol=False), None, (), workers)
    plan = comparison.plan
    dataset = comparison.prepare()
    noise = expected_noise(plan, dataset, sd)
    estimate = comparison.estimate()
    seconds_per_seed = estimate.minutes * 60 / plan.seeds * max(1, len(plan.arms) * plan.seeds / estimate.runs)
    console.print(plan.question, style="bold", markup=False)
    console.print(f"given {noise.source}; times extrapolated from a short timing run", markup=False)
    margin = plan.rules.margin
    rows = [table_row(seeds, noise, margin, effect, plan.rules.alpha, seconds_per_seed) for seeds in SEED_COUNTS]
    columns = ["seeds", "looks", "time, at most", "MDE at 80% power", f"power for equivalence within ±{margin:g}"]
    columns += [f"power for {effect:g}"] if effect else []
    console.print(table("with --protocol (MDE: minimum detectable effect)", columns, rows))
    target = effect or margin
    console.print(
        f"with a single look, detecting a difference of {target:g} with 80% power needs "
        f"{seeds_needed(target, noise.sd, noise.correlation)} seeds, and an interval of ±{margin:g} needs "
        f"{seeds_for_margin(margin, noise.sd, noise.correlation)}"
    )


def table_row(
    seeds: int, noise: Noise, margin: float, effect: float | None, alpha: float, seconds_per_seed: float
) -> list[str]:
    looks, design = default_looks(seeds), (noise.sd, default_looks(seeds), noise.correlation, alpha)
    detectable = minimum_detectable_effect_over_looks(*design)
    equivalence = equivalence_power_over_looks(margin, *design)
    cells = [
        str(seeds),
        ", ".join(map(str, looks)),
        format_duration(seeds * seconds_per_seed),
        f"{detectable:.4f}",
        f"{100 * equivalence:.0f}%",
    ]
    return cells + ([f"{100 * power_over_looks(effect, *design):.0f}%"] if effect else [])

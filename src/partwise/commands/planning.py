"""`calibrate` and `plan`: what the seeds' noise is, and what a number of seeds could show at which price."""

from typing import Any

from partwise.commands.comparing import request_of, run_comparison
from partwise.comparison.calibration import Calibration, calibrate
from partwise.comparison.digits import percent
from partwise.comparison.experiment import planned
from partwise.comparison.power import (
    equivalence_over_looks,
    looks_for,
    power_over_looks,
    seeds_for_margin,
    seeds_needed,
    smallest_over_looks,
)
from partwise.comparison.report.cells import number
from partwise.comparison.store import Noise, expected_noise
from partwise.config import ConfigError
from partwise.terminal import clock, console, table
from partwise.train.names import run_name

NUMBERS = (4, 8, 16, 32)


def calibrate_preset(
    preset: str, words: list[str], *, data: str | None, part: str, planted: str | None, seeds: int, name: str | None
) -> None:
    """Train null pairs, say how far seeds lie apart, and keep it for later comparisons."""
    if seeds < 3:
        raise ConfigError(f"--seeds {seeds}: a seed SD needs 3 pairs or more; 8 give it to about a quarter")
    given: dict[str, Any] = {
        "preset": preset,
        "change": [f"train.redraw={part}"],
        "common": words,
        "data": data,
        "seeds": seeds,
        "control_planted": planted,
    }
    request = request_of(given, protocol=False)
    comparison = planned(request, run_name(name) if name else f"calibrate-{request.name()}"[:120])
    run_comparison(comparison)
    show_calibration(calibrate(comparison, comparison.prepare()))


def show_calibration(found: Calibration) -> None:
    rows = [
        ("seed SD", f"{found.sd:.4f}", f"{found.sd_low:.4f} to {found.sd_high:.4f}, {found.df:.1f} degrees of freedom"),
        (
            "paired correlation",
            f"{found.correlation:.2f}",
            f"{found.correlation_low:.2f} to {found.correlation_high:.2f}",
        ),
        ("mean null difference", f"{found.mean:+.4f}", f"{found.seeds} pairs; 0 but for noise"),
        ("error of one loss", number(found.evaluation_error), "had the validation text been another"),
        ("error of a difference", number(found.paired_evaluation_error), "the same, read by both"),
        (
            "false positives",
            percent(found.false_positives) if found.false_positives else "0 %",
            f"of {found.relabellings} relabellings, by a t test at 5 %",
        ),
    ]
    if found.planted_effect is not None:
        rows.append((f"planted: {found.planted}", f"{found.planted_effect:+.4f}", "mean difference"))
    console.print(table("calibration, nats", ["", "value", ""], rows))
    console.print("kept in runs/calibrations.json; plan and later comparisons of this task, size and horizon use it")


def plan_seeds(given: dict[str, Any], *, sd: float | None, effect: float | None, workers: int | None) -> None:
    """What 4, 8, 16 and 32 seeds take here and could show; nothing is trained but a few steps."""
    comparison = planned(request_of(given, protocol=False), None, (), workers)
    plan = comparison.plan
    dataset = comparison.prepare()
    noise = expected_noise(plan, dataset, sd)
    estimate = comparison.estimate()
    a_seed = estimate["minutes"] * 60 / plan.seeds * max(1, len(plan.arms) * plan.seeds / estimate["runs"])
    console.print(plan.question, style="bold", markup=False)
    console.print(f"given {noise.source}; times as measured just now", markup=False)
    margin = plan.rules.margin
    rows = [row_of(seeds, noise, margin, effect, plan.rules.alpha, a_seed) for seeds in NUMBERS]
    columns = ["seeds", "looks", "at most", "shows 4 in 5 times", f"equal arms within ±{margin:g}"]
    columns += [f"shows {effect:g}"] if effect else []
    console.print(table("by protocol", columns, rows))
    wish = effect or margin
    console.print(
        f"a single look needs {seeds_needed(wish, noise.sd, noise.correlation)} seeds to show a difference of {wish:g} "
        f"4 times in 5, and {seeds_for_margin(margin, noise.sd, noise.correlation)} for an interval of ±{margin:g}"
    )


def row_of(seeds: int, noise: Noise, margin: float, effect: float | None, alpha: float, a_seed: float) -> list[str]:
    looks, given = looks_for(seeds), (noise.sd, looks_for(seeds), noise.correlation, alpha)
    least = smallest_over_looks(*given)
    equal = equivalence_over_looks(margin, *given)
    cells = [str(seeds), ", ".join(map(str, looks)), clock(seeds * a_seed), f"{least:.4f}", f"{100 * equal:.0f} %"]
    return cells + ([f"{100 * power_over_looks(effect, *given):.0f} %"] if effect else [])

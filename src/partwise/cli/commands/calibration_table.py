"""The table of `calibrate`. Imports no torch."""

from partwise.cli.terminal import console, table
from partwise.comparison.calibration import Calibration
from partwise.comparison.noise_store import calibration_limits
from partwise.comparison.report.cells import number
from partwise.comparison.stats.null_pairs import shift_power
from partwise.comparison.stats.number_format import format_p
from partwise.comparison.stats.simulated_power import POWER
from partwise.comparison.stats.variance_split import Component, VarianceSplit

NOTABLE_SHIFT = 2.0
"""The mean of A/A pairs, in SDs of a difference, for which the power of their test is told."""


def show_calibration(calibration: Calibration, unit: str) -> None:
    rows = [
        (
            "SD of a difference",
            f"{calibration.sd_difference:.4f}",
            f"{calibration.sd_low:.4f} to {calibration.sd_high:.4f}, {calibration.seeds} pairs",
        ),
        ("seed SD of one run", f"{calibration.sd:.4f}", ""),
        (
            "mean A/A difference",
            f"{calibration.mean:+.4f}",
            f"p = {format_p(calibration.p_mean, 0.05)} (t test of 0), {format_p(calibration.p_sign_flip, 0.05)} (sign flips)",
        ),
        (
            "rejected by a t test at 5%",
            f"{100 * calibration.rejected_subsets:.0f}%",
            f"of {calibration.subsets} subsets of {calibration.subset_size} pairs; 5% on average without an effect",
        ),
    ]
    if calibration.family:  # the arms of commands share no seed
        r, low, high = calibration.correlation, calibration.correlation_low, calibration.correlation_high
        rows.insert(2, ("paired correlation", f"{r:.2f}", f"{low:.2f} to {high:.2f}"))
    if calibration.evaluation_se is not None:
        rows[-1:-1] = [
            ("standard error of one loss", number(calibration.evaluation_se), "over the choice of validation text"),
            ("standard error of a difference", number(calibration.paired_evaluation_se), "the same, on a shared text"),
        ]
    if calibration.control_effect is not None:
        rows.append(
            (
                f"positive control: {calibration.positive_control}",
                f"{calibration.control_effect:+.4f}",
                "mean difference",
            )
        )
    console.print(
        table(f"calibration of the {calibration.metric}" + (f", {unit}" if unit else ""), ["", "value", ""], rows)
    )
    if calibration.failure:
        console.print(f"the calibration failed: {calibration.failure}", markup=False)
    else:
        console.print("saved to runs/calibrations.json; `plan` and comparisons with this baseline use it")
        limits = calibration_limits(calibration.family, calibration.correlation)
        console.print(f"these are A/A pairs, {limits}", markup=False)
    power = shift_power(calibration.seeds, NOTABLE_SHIFT)
    console.print(
        f"{calibration.seeds} pairs show a mean that is off by {NOTABLE_SHIFT:g} SDs of a difference with a probability of "
        f"{100 * power:.0f}%" + ("; more --seeds show it more often" if power < POWER else ""),
        markup=False,
    )


def show_variance_split(split: VarianceSplit, evaluation_se: float | None, metric: str) -> None:
    """The SD that each source of noise adds to the value of one run."""

    def row(source: str, part: Component) -> tuple[str, str, str, str]:
        share = f"{100 * part.sd**2 / split.total_sd**2:.0f}%" if split.total_sd else "-"
        return source, number(part.sd), f"{number(part.low)} to {number(part.high)}", share

    rows = [
        row("initialization", split.init),
        row("data order and dropout", split.order),
        row("interaction and residual", split.rest),
        ("one run", number(split.total_sd), "", "100%"),
    ]
    if evaluation_se is not None:
        rows.append(("choice of validation text", number(evaluation_se), "standard error, shared by all runs", "-"))
    title = f"noise of the {metric}: {split.n_init} initializations x {split.n_order} orders"
    console.print(table(title, ["source", "SD", "95% interval", "share of variance"], rows))

"""`plan` with a preset: time and power of a comparison, from a short timing run."""

from typing import Any

from partwise.ablation.run_comparison import make_comparison
from partwise.cli.commands.compare_preset import make_request
from partwise.cli.commands.power_table import TrialTime, compute_power, make_designs, show_power
from partwise.cli.terminal import console
from partwise.comparison.noise_store import expected_noise, ignored_calibrations


def plan_preset(
    options: dict[str, Any],
    *,
    protocol: bool,
    sd: float | None,
    effect: float | None,
    workers: int | None,
    machines: int = 1,
    as_json: bool = False,
) -> None:
    """Print the time and power of several numbers of seeds; trains only a few steps, for timing."""
    comparison = make_comparison(make_request(options, protocol=False), None, (), workers)
    plan = comparison.plan
    noise = expected_noise(plan, comparison.prepare().hash, sd)
    estimate = comparison.estimate()
    at_a_time = min(estimate.workers, estimate.runs)
    time = TrialTime(estimate.minutes * 60 * at_a_time / estimate.runs, len(plan.arms), estimate.workers, machines)
    console.print(plan.question, style="bold", markup=False)
    for sentence in plan.mixed_changes:
        console.print(f"note: {sentence}", markup=False)
    length = comparison.workload.trial_length(plan).removeprefix(", ")
    console.print(f"{length}; times are extrapolated from a short timing run", markup=False, soft_wrap=True)
    if ignored := ignored_calibrations():
        console.print(ignored, markup=False)
    rules = plan.rules
    designs = make_designs(rules.looks, protocol, plan.n_claims, rules.margin, rules.alpha, rules.method)
    show_power(compute_power(designs, noise, effect, time), as_json)

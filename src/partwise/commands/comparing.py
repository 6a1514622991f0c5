"""`compare` and `study`."""

import json
from typing import Any

from partwise.comparison.experiment import Comparison, expected_effect, planned
from partwise.comparison.power import looks_for
from partwise.comparison.report import summary
from partwise.comparison.request import Request
from partwise.comparison.study import find_study
from partwise.config import ConfigError
from partwise.terminal import Watch, clock, console

PROTOCOL_SEEDS = 16


def compare_variants(
    given: dict[str, Any],
    *,
    protocol: bool,
    grid: list[str],
    confirm: bool,
    name: str | None,
    dry_run: bool,
    sd: float | None,
    workers: int | None,
    imports: tuple[str, ...],
) -> None:
    """Run a comparison under a live table and print its summary; or say what it would take."""
    comparison = planned(request_of(given, protocol), name, imports, workers)
    if dry_run:
        show_estimate(comparison, sd)
        return
    run_comparison(comparison)


def request_of(given: dict[str, Any], protocol: bool) -> Request:
    """What the options of the command ask for. Raises ConfigError."""
    values = {key: value for key, value in given.items() if value is not None}
    if "looks" in values:
        if "seeds" in values:
            raise ConfigError(
                f"--seeds {values['seeds']} --looks {values['looks']}: give one; the last look is the seeds"
            )
        try:
            values["looks"] = [int(word) for word in values["looks"].split(",")]
        except ValueError:
            raise ConfigError(f"--looks {values['looks']}: give numbers of seeds, such as 4,8,16") from None
    elif protocol:
        values["looks"] = list(looks_for(values.get("seeds", PROTOCOL_SEEDS)))
    return Request.from_dict(values)


def run_comparison(comparison: Comparison) -> dict[str, Any]:
    """Train, judge and print."""
    announce(comparison)
    try:
        with Watch() as watch:
            results = comparison.run(watch)
    except KeyboardInterrupt:
        console.print(f"stopped; every run is saved. To continue:\n  {comparison.command}", markup=False)
        raise
    console.print(summary(results))
    console.print(f"report: {comparison.report}", markup=False)
    return results


def announce(comparison: Comparison) -> None:
    plan = comparison.plan
    steps = plan.arms[0].config.train.steps
    console.print(plan.question, style="bold", markup=False)
    seeds = f"{plan.seeds} paired seeds"
    if len(plan.looks) > 1:
        seeds = f"up to {seeds}, judged at {', '.join(map(str, plan.looks))}"
    console.print(f"{len(plan.arms)} arms x {seeds}, {steps:,} steps each, in {comparison.path}", markup=False)
    if plan.common:
        console.print(f"for every arm: {' '.join(plan.common)}", markup=False)


def show_estimate(comparison: Comparison, sd: float | None) -> None:
    plan = comparison.plan
    announce(comparison)
    estimate = comparison.estimate()
    most = "at most " if len(plan.looks) > 1 else ""
    console.print(
        f"{most}about {clock(estimate['minutes'] * 60)} for {estimate['runs']} runs, {estimate['workers']} at a time, as "
        "measured just now"
    )
    effect, source = expected_effect(plan, sd)
    if effect is None:
        console.print(f"it could show no effect: {source}; use --seeds 3 or more")
    else:
        console.print(
            f"the smallest effect that {plan.seeds} seeds show with 80 % power is {effect:.4f} nats, given {source}"
        )


def run_study(name: str, dry_run: bool) -> None:
    """Run every comparison of a study, or say how long that takes."""
    study = find_study(name)
    if dry_run:
        for _, comparison in study.plan():
            show_estimate(comparison, None)
        return

    def watching(comparison: Comparison) -> Watch:
        announce(comparison)
        return Watch()

    try:
        path = study.run(watching)
    except KeyboardInterrupt:
        console.print(f"stopped; every run is saved. To continue:\n  partwise study run {name}")
        raise
    for results in json.loads(path.read_text())["comparisons"].values():
        console.print(summary(results))
    console.print(f"results: {path}")

"""`compare` and `study`."""

import json
from typing import Any

from partwise.comparison.experiment import Comparison, expected_effect, plan_comparison
from partwise.comparison.report import summary
from partwise.comparison.study import find_study
from partwise.terminal import Watch, clock, console


def compare_variants(
    preset: str,
    words: list[str],
    *,
    dry_run: bool,
    sd: float | None,
    **settings: Any,
) -> None:
    """Run a comparison under a live table and print its summary; or say what it would take."""
    comparison = plan_comparison(preset, *words, **settings)
    if dry_run:
        show_estimate(comparison, sd)
        return
    announce(comparison)
    try:
        with Watch() as watch:
            results = comparison.run(watch)
    except KeyboardInterrupt:
        console.print(f"stopped; every run is saved. To continue:\n  {comparison.command}", markup=False)
        raise
    console.print(summary(results))
    console.print(f"report: {comparison.report}", markup=False)


def announce(comparison: Comparison) -> None:
    plan = comparison.plan
    steps = plan.arms[0].config.train.steps
    console.print(plan.question, style="bold", markup=False)
    console.print(
        f"{len(plan.arms)} arms x {plan.seeds} paired seeds, {steps:,} steps each, in {comparison.path}", markup=False
    )
    if plan.common:
        console.print(f"for every arm: {' '.join(plan.common)}", markup=False)


def show_estimate(comparison: Comparison, sd: float | None) -> None:
    plan = comparison.plan
    announce(comparison)
    estimate = comparison.estimate()
    console.print(
        f"about {clock(estimate['minutes'] * 60)} for {estimate['runs']} runs, {estimate['workers']} at a time, as "
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

"""What `compare` prints of a comparison of any kind: its question, its progress, its summary."""

from partwise.cli.terminal import ComparisonProgress, console
from partwise.comparison.experiment import Comparison
from partwise.comparison.report import summary
from partwise.comparison.results import Results


def run_comparison(comparison: Comparison) -> Results:
    """Run all trials, judge them and print the summary."""
    announce(comparison)
    results = run_with_progress(comparison)
    print_results(comparison, results)
    return results


def run_with_progress(comparison: Comparison) -> Results:
    """Run all trials with a live table; an interrupt says how to resume."""
    try:
        with ComparisonProgress() as progress:
            return comparison.run(progress)
    except KeyboardInterrupt:
        console.print(f"stopped; all runs are saved. To resume:\n  {comparison.command}", markup=False, soft_wrap=True)
        raise


def print_results(comparison: Comparison, results: Results) -> None:
    console.print(summary(results))
    console.print(f"report: {comparison.report}", markup=False)


def announce(comparison: Comparison) -> None:
    """Print the question, and how many trials answer it."""
    plan = comparison.plan
    console.print(plan.question, style="bold", markup=False)
    seeds = f"{plan.seeds} paired seeds"
    if len(plan.looks) > 1:
        seeds = f"up to {seeds} with looks at {', '.join(map(str, plan.looks))}"
    length = comparison.workload.trial_length(plan)
    console.print(f"{len(plan.arms)} arms x {seeds}{length}, in {comparison.path}", markup=False)
    if plan.common:
        console.print(f"for every arm: {' '.join(plan.common)}", markup=False)


def start_progress(comparison: Comparison) -> ComparisonProgress:
    announce(comparison)
    return ComparisonProgress()

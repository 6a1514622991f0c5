"""The output of `compare` for any kind of comparison: question, progress, summary."""

from collections.abc import Sequence
from pathlib import Path

import typer

from partwise import quoting
from partwise.cli.terminal import console, print_json, table
from partwise.comparison.experiment import Comparison
from partwise.comparison.followups import add_replication, make_replication, run_grid
from partwise.comparison.gate import MET, NOT_MET, UNDECIDED, Requirement, gate_status
from partwise.comparison.ledger.predictions import Prediction, outcome_sentence
from partwise.comparison.progress import ComparisonProgress
from partwise.comparison.report import summary
from partwise.comparison.results import Results
from partwise.comparison.trials.executor import UnsavedInterrupt
from partwise.config import ConfigError
from partwise.messages import quantity


def run_comparison(comparison: Comparison) -> Results:
    """Run all trials, judge them and print the summary."""
    announce(comparison)
    results = run_with_progress(comparison)
    print_results(comparison, results)
    return results


def add_prediction(comparison: Comparison, text: str | None) -> None:
    """Set what `--predict` predicts. Raises ConfigError."""
    comparison.prediction = Prediction.parse(text) if text is not None else None


def run_with_progress(comparison: Comparison) -> Results:
    """Run all trials with a live table; an interrupt says how to resume."""
    try:
        with ComparisonProgress() as progress:
            return comparison.run(progress)
    except KeyboardInterrupt as error:
        say_stopped(error, f"To resume:\n  {comparison.command}")
        raise


def say_stopped(error: KeyboardInterrupt, how_to_resume: str) -> None:
    """Print that a comparison was interrupted, and whether all runs are saved."""
    saved = "all runs are saved"
    if isinstance(error, UnsavedInterrupt):
        saved = "some runs could not save and will resume from their last checkpoints"
    console.print(f"stopped; {saved}. {how_to_resume}", markup=False, soft_wrap=True)


def print_results(comparison: Comparison, results: Results) -> None:
    console.print(summary(results))
    if comparison.predicted:
        console.print(outcome_sentence(comparison.predicted), markup=False)
    if comparison.report.exists():  # it may have failed
        console.print(f"report: {comparison.report}", markup=False)


class Output:
    """How a comparison ends: with `as_json`, results as JSON on standard output; with requirements, an exit status."""

    def __init__(self, as_json: bool, require: list[str]) -> None:
        self.as_json, self.require = as_json, require

    def check(self, comparison: Comparison) -> list[Requirement]:
        """The requirements. Raises ConfigError, so that a typing error is found before anything runs."""
        arms = [claim.arm for claim in comparison.plan.claims if claim.role == "claim"]
        return [Requirement.parse(text, arms) for text in self.require]

    def refuse_grid(self, predict: str | None) -> None:
        """Raise ConfigError if one comparison's outcome is asked for."""
        if self.as_json or self.require or predict is not None:
            raise ConfigError("--json, --require and --predict are about one comparison: leave out --grid")

    def end(self, comparison: Comparison, results: Results) -> None:
        """Print the JSON, and exit with the status of the requirements unless they are met."""
        if self.as_json:
            print_json(results.to_dict())
        requirements = self.check(comparison)
        status = gate_status(requirements, results.effects)
        if requirements:
            met = {MET: "met", NOT_MET: "not met", UNDECIDED: "undecided"}[status]
            console.print(f"required: {'; '.join(self.require)}: {met}", markup=False)
        if status:
            raise typer.Exit(status)


def announce(comparison: Comparison) -> None:
    """Print the question, and how many trials answer it."""
    plan = comparison.plan
    console.print(plan.question, style="bold", markup=False)
    rules = plan.rules
    seeds = quantity(plan.seeds, "paired seed" if rules.design == "paired" else "seed")
    if len(plan.looks) > 1:
        seeds = f"up to {seeds} with looks at {', '.join(map(str, plan.looks))}"
    if rules.baseline_runs > 1:
        seeds += f", and {rules.baseline_runs} times as many of the baseline"
    if rules.design != "paired":
        seeds += f" ({rules.design})"
    length = comparison.workload.trial_length(plan)
    console.print(f"{len(plan.arms)} arms x {seeds}{length}, in {comparison.path}", markup=False)
    if comparison.extended:
        console.print(
            f"{comparison.extended} has a verdict on fewer of these arms, which stands; its trials are reused",
            markup=False,
        )
    if comparison.on == "workers":
        words = [str(comparison.path), *(word for name in comparison.workload.imports for word in ("--import", name))]
        console.print(f"waiting for workers: partwise work {quoting.join(words)}", markup=False, soft_wrap=True)
    if plan.common:
        console.print(f"for every arm: {' '.join(plan.common)}", markup=False)
    for sentence in plan.mixed_changes:
        console.print(f"note: {sentence}", markup=False)
    if not comparison.is_started and "lesson" not in comparison.origin:  # whose reader chose no arms
        for note in comparison.workload.notes(plan):
            console.print(note, markup=False)


def start_progress(comparison: Comparison) -> ComparisonProgress:
    announce(comparison)
    return ComparisonProgress()


def replicate_winner(comparison: Comparison) -> None:
    """Rerun the winning arm and what it beat on fresh seeds."""
    made = make_replication(comparison)
    if made is None:
        console.print("nothing to replicate: no arm was better")
        return
    replication, reason = made
    console.print(f"\nreplicating on fresh seeds: {reason}", style="bold", markup=False)
    run_comparison(replication)
    effect = add_replication(comparison, replication)
    outcome = "replicated" if effect.verdict == "better" else f"not replicated ({effect.verdict or 'no verdict'})"
    console.print(f"{effect.arm}: {outcome} on fresh seeds; added to {comparison.report}", markup=False)


def compare_over_grid(cells: Sequence[tuple[str, Comparison]], grid: list[str], name: str) -> None:
    """Run one comparison per setting of the grid, and print a row for each verdict."""
    path = Path("runs") / name
    question = f"{cells[0][1].plan.question} ({', '.join(grid)})"
    try:
        rows = run_grid(cells, start_progress, path, question)
    except KeyboardInterrupt as error:
        say_stopped(error, "Run the same command again to resume.")
        raise
    columns = ["setting", "change", "seeds", "mean", "interval", "sign", "verdict"]
    console.print(table(question, columns, [row.cells() for row in rows]))
    console.print(f"the verdicts do not extend to other settings; figure: {path / 'grid.html'}", markup=False)

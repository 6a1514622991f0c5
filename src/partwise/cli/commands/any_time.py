"""`verdict --any-time`: verdicts that may be asked for after every new run, without importing torch."""

from collections.abc import Sequence
from pathlib import Path

import typer

from partwise.cli.terminal import console, print_json
from partwise.comparison.stats.any_time_text import document, headline, notes, table
from partwise.comparison.stats.any_time_verdicts import AnyTimeRow, Question, judge_pairs, judge_runs
from partwise.comparison.stats.value_files import parse_columns
from partwise.comparison.stats.value_verdicts import align
from partwise.comparison.stats.verdicts import load_values
from partwise.comparison.targets.run_files import read_runs
from partwise.comparison.targets.target import DEFAULT_ALPHA
from partwise.plots.text_table import TextTable

MARKS = {
    **dict.fromkeys(("better", "reached"), ("✓", "green")),
    **dict.fromkeys(("worse", "missed"), ("✕", "red")),
    "equivalent": ("=", "blue"),
    "undecided": ("?", "yellow"),
}
PAIRS_ALPHA = 0.05


def judge_any_time(
    file: Path,
    *,
    target: float | None,
    margin: float | None,
    baseline: str | None,
    failure: float | None,
    alpha: float | None,
    higher_is_better: bool,
    columns: str | None,
    run_names: str | None,
    take: str | None,
    as_json: bool,
) -> None:
    """Print the any-time verdicts of a file, as text or as JSON. Raises ConfigError."""
    named = parse_columns(columns) if columns else {}
    lower = not higher_is_better
    if target is not None:
        side = DEFAULT_ALPHA if alpha is None else alpha
        question = Question(side_alpha=side, lower_is_better=lower, target=target)
        runs = read_runs(file, named)
        rows, read = judge_runs(runs.values, question), runs.read
    else:
        side = (PAIRS_ALPHA if alpha is None else alpha) / 2
        question = Question(side_alpha=side, lower_is_better=lower, margin=margin, failure=failure)
        loaded = load_values(file, named, run_names, take)
        rows, read = judge_pairs(loaded.values, question, baseline), loaded.read or ""
    if as_json:
        print_json(document(rows, question, read))
    else:
        show(rows, question, read)


def show(rows: Sequence[AnyTimeRow], question: Question, read: str) -> None:
    """Print outcomes, table and details, on a terminal wrapped between words."""
    if not console.is_terminal:
        heads = "\n".join(headline(row, question) for row in rows)
        details = "\n".join(["Details", *notes(rows, question)])
        typer.echo("\n\n".join([read, heads, align(table(rows, question)), details]))
        return
    console.print(f"{read}\n", markup=False)
    for row in rows:
        mark, color = MARKS[row.outcome]
        console.print(f"{mark} {headline(row, question)}", style=f"bold {color}", markup=False)
    first, *lines = table(rows, question)
    console.print()
    console.print(TextTable(first, lines))
    console.print("\nDetails", style="bold", markup=False)
    for line in notes(rows, question):
        console.print(line, markup=False)

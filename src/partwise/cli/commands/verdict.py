"""`verdict`: judge existing results, without importing torch."""

from pathlib import Path
from typing import Any

import typer

from partwise.cli.terminal import console, print_json
from partwise.comparison.report.rendering import MARKS, TERMINAL_COLORS
from partwise.comparison.stats.value_files import parse_columns
from partwise.comparison.stats.value_verdicts import notes, tables
from partwise.comparison.stats.verdict_text import details, headline
from partwise.comparison.stats.verdicts import Verdicts, verdict
from partwise.config import ConfigError
from partwise.plots.text_table import TextTable


def judge_file(file: Path, margin: float | None, columns: str | None, as_json: bool, **settings: Any) -> None:
    """Print the differences, intervals and verdicts of a file or folder, as text or as JSON. Raises ConfigError."""
    if margin is None:
        raise ConfigError(
            "--margin is missing: give the largest difference that does not matter, in the values' unit, as in "
            "--margin 0.01; it decides what counts as equivalent"
        )
    verdicts = verdict(file, margin=margin, columns=parse_columns(columns) if columns else None, **settings)
    if as_json:
        print_json(verdicts.to_dict())
    elif console.is_terminal:
        print_wrapped(verdicts)
    else:
        typer.echo(str(verdicts))


def print_wrapped(verdicts: Verdicts) -> None:
    """Print the verdicts, wrapped to the terminal: no word and no interval is broken."""
    if verdicts.read:
        console.print(f"{verdicts.read}\n", markup=False)
    for effect in verdicts.effects:
        name = effect.verdict or "none"
        first, *rest = headline(effect)
        console.print(f"{MARKS[name]} {first}", style=f"bold {TERMINAL_COLORS[name]}", markup=False)
        for line in rest:
            console.print(f"  {line}", markup=False)
    for head, *rows in tables(verdicts.effects, verdicts.values):
        console.print()
        console.print(TextTable(head, rows))
    console.print("\nDetails", style="bold", markup=False)
    sentences = [*details(verdicts.effects), *(effect.sentence for effect in verdicts.exploratory)]
    for note in (*sentences, *notes(verdicts.effects, verdicts.values), *(f"Note: {note}" for note in verdicts.notes)):
        console.print(note, markup=False)

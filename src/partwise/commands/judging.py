"""`verdict`: anybody's own numbers, judged without importing torch."""

from pathlib import Path

import typer

from partwise.comparison.table import read_values, render, verdict_table


def judge_file(file: Path, *, margin: float, higher: bool, baseline: str | None, look: int, metric: str) -> None:
    """Print the table, the intervals and the verdicts of a CSV file. Raises ConfigError."""
    values = read_values(file)
    effects = verdict_table(values, margin=margin, higher=higher, baseline=baseline, look=look, metric=metric)
    typer.echo(render(effects, values))

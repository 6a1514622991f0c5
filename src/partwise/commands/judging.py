"""`verdict`: anybody's own numbers, judged without importing torch."""

from pathlib import Path
from typing import Any

import typer

from partwise.comparison.table import read_values, render, verdict_table


def judge_file(file: Path, **settings: Any) -> None:
    """Print the table, the intervals and the verdicts of a CSV file. Raises ConfigError."""
    values = read_values(file)
    typer.echo(render(verdict_table(values, **settings), values))

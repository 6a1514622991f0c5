"""`verdict`: judge results from a CSV file, without importing torch."""

from pathlib import Path
from typing import Any

import typer

from partwise.comparison.stats.csv_verdicts import judge_arms, read_values, render_verdicts


def judge_file(file: Path, **settings: Any) -> None:
    """Print the differences, intervals and verdicts of a CSV file. Raises ConfigError."""
    values = read_values(file)
    typer.echo(render_verdicts(judge_arms(values, **settings), values))

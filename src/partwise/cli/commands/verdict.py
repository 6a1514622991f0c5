"""`verdict`: judge results from a CSV file, without importing torch."""

from pathlib import Path
from typing import Any

import typer

from partwise.comparison.stats.csv_verdicts import judge_arms, read_values, render_verdicts
from partwise.comparison.stats.protocol import Rules


def judge_file(file: Path, baseline: str | None, judged: int | None, **settings: Any) -> None:
    """Print the differences, intervals and verdicts of a CSV file. Raises ConfigError."""
    values = read_values(file)
    effects, exploratory = judge_arms(values, Rules(looks=(), **settings), baseline, judged)
    typer.echo(render_verdicts(effects, values, exploratory))

"""`verdict`: judge results from a file, without importing torch."""

import json
from pathlib import Path
from typing import Any

import typer

from partwise.comparison.stats.protocol import Rules
from partwise.comparison.stats.value_files import parse_columns, read_values
from partwise.comparison.stats.value_verdicts import judge_arms, render_verdicts


def judge_file(
    file: Path, baseline: str | None, judged: int | None, columns: str | None, as_json: bool, **settings: Any
) -> None:
    """Print the differences, intervals and verdicts of a file, as text or as JSON. Raises ConfigError."""
    values = read_values(file, parse_columns(columns) if columns else None)
    effects, exploratory = judge_arms(values, Rules(looks=(), **settings), baseline, judged)
    if as_json:
        document = {
            "effects": [each.to_dict() for each in effects],
            "exploratory": [each.to_dict() for each in exploratory],
        }
        typer.echo(json.dumps(document, indent=1, allow_nan=False))
        return
    typer.echo(render_verdicts(effects, values, exploratory))

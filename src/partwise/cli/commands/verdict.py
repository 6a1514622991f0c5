"""`verdict`: judge existing results, without importing torch."""

from pathlib import Path
from typing import Any

import typer

from partwise.cli.terminal import print_json
from partwise.comparison.stats.value_files import parse_columns
from partwise.comparison.stats.verdicts import verdict


def judge_file(file: Path, columns: str | None, as_json: bool, **settings: Any) -> None:
    """Print the differences, intervals and verdicts of a file or folder, as text or as JSON. Raises ConfigError."""
    verdicts = verdict(file, columns=parse_columns(columns) if columns else None, **settings)
    if as_json:
        print_json(verdicts.to_dict())
    else:
        typer.echo(str(verdicts))

"""`runs`: list runs, comparisons and searches, without importing torch."""

import math
import time
from pathlib import Path
from typing import Any

from partwise.ablation.run_list import ListedFolder, list_runs
from partwise.cli.terminal import console, print_json, table
from partwise.comparison.report.rendering import printable
from partwise.config import ConfigError, did_you_mean

SORT_KEYS: dict[str, Any] = {
    "age": lambda entry: -entry.modified,
    "name": lambda entry: entry.name,
    "state": lambda entry: entry.state,
    "size": lambda entry: entry.parameters or math.inf,
    "loss": lambda entry: math.inf if entry.loss is None else entry.loss,
    "verdict": lambda entry: (not entry.verdict, entry.verdict),
}
"""Unknown values come last."""


def show_runs(folder: Path, sort: str, text: str | None, as_json: bool) -> None:
    """Print the runs, comparisons and searches below a folder that contain `text`. Raises ConfigError."""
    if sort not in SORT_KEYS:
        raise ConfigError(f"--sort {sort}: unknown key{did_you_mean(sort, SORT_KEYS)}")
    entries = sorted(list_runs(folder), key=SORT_KEYS[sort])
    if text is not None:
        entries = [
            entry for entry in entries if any(text.lower() in str(each).lower() for each in entry.to_dict().values())
        ]
    if as_json:
        print_json([entry.to_dict() for entry in entries])
        return
    if not entries:
        console.print(f"no runs in {folder}" + ("" if text is None else f" contain {text!r}"), markup=False)
        return
    rows = [cells(entry) for entry in entries]
    columns = [column for column in rows[0] if console.width >= WIDE or column not in ("what", "n-gram scale")]
    console.print(table("", columns, [printable([row[column] for column in columns]) for row in rows]))


WIDE = 110
"""A narrower terminal shows neither the question nor the n-gram scale, so that an entry has few lines."""


def cells(entry: ListedFolder) -> dict[str, str]:
    return {
        "name": entry.name,
        "what": entry.what,
        "parameters": "" if entry.parameters is None else f"{entry.parameters:,}",
        "state": entry.state,
        "loss": "" if entry.loss is None else f"{entry.loss:.4f}",
        "n-gram scale": entry.scale,
        "verdict": entry.verdict,
        "age": format_age(time.time() - entry.modified),
    }


def format_age(seconds: float) -> str:
    """The age in its largest whole unit: 7300 -> '2 h'."""
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds // size:.0f} {unit}"
    return f"{max(0, seconds):.0f} s"

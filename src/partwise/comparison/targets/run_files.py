"""Read files of runs that are judged against a target: one arm is enough, and the runs need no seeds."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from partwise.comparison.stats.value_files import (
    check_arm_name,
    columns_read,
    parse_seed,
    parse_value,
    read_rows,
)
from partwise.config import ConfigError

NEVER = ("", "-", "never", "none")
"""What a column of times has for a run that never arrived, beside inf and nan."""


@dataclass(frozen=True)
class Runs:
    """The values of each entry in the order of its seeds, or of the file without them; and how the file was read."""

    values: Mapping[str, tuple[float, ...]]
    read: str


def read_runs(path: str | Path, columns: Mapping[str, str] | None = None, times: str | None = None) -> Runs:
    """The runs of a file with the column value; the columns arm and seed are read if it has them.

    Without an arm, all runs are one entry, named as the file. With `times`, that column holds the time of each run: empty,
    inf or nan for one that never arrived. Raises ConfigError naming file, line, value and remedy.
    """
    if times and columns and "value" in columns:
        raise ConfigError(f"--time {times} with --columns value={columns['value']}: give the column of times once")
    given = {**(columns or {}), **({"value": times} if times else {})}
    optional = {"seed", "arm"} - given.keys()
    rows, unit, layout = read_rows(path, given, optional)
    found: dict[str, list[tuple[int | None, float]]] = {}
    lines: dict[tuple[str, int], int] = {}
    has_arms = has_seeds = None
    for line, (seed_text, arm, text) in rows:
        where = f"{path} {unit} {line}"
        has_arms = bool(arm) if has_arms is None else has_arms
        has_seeds = bool(seed_text) if has_seeds is None else has_seeds
        if has_arms:
            check_arm_name(arm, where)
        if has_seeds != bool(seed_text) or has_arms != bool(arm):
            name = "seed" if has_seeds != bool(seed_text) else "arm"
            raise ConfigError(f"{where}: some rows have a {name} and others none: fill or remove the column")
        entry, seed = arm or Path(path).stem, parse_seed(seed_text, where) if has_seeds else None
        if seed is not None and (earlier := lines.setdefault((entry, seed), line)) != line:
            raise ConfigError(
                f"{where}: {entry!r} already has seed {seed} on {unit} {earlier}: keep one row per run, or leave out the "
                "column of seeds if the runs only share a number"
            )
        value = math.inf if times and text.lower() in NEVER else parse_value(text, where)
        found.setdefault(entry, []).append((seed, value))
    if not found:
        raise ConfigError(f"{path}: no rows below the header: add a row per run")
    in_order = {
        entry: tuple(value for _, value in (sorted(runs, key=lambda run: run[0] or 0) if has_seeds else runs))
        for entry, runs in found.items()
    }
    names = [*(["seed"] if has_seeds else []), *(["arm"] if has_arms else []), "value"]
    count = sum(map(len, in_order.values()))
    read = f"Read {path}: {count} run{'' if count == 1 else 's'}{layout}; {columns_read(names, given)}."
    return Runs(in_order, read)

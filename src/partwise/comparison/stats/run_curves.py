"""Values of runs that logged a metric over training: TensorBoard folders, and CSV exports of charts by Weights & Biases."""

import csv
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from partwise.comparison.stats.csv_rows import filled_rows, find_separator, parse_number
from partwise.comparison.stats.event_files import read_event_folders
from partwise.comparison.stats.run_naming import RunName, name_runs
from partwise.config import ConfigError, decode_text, did_you_mean, read_file

Curve = Mapping[Any, float]
"""Step -> value; steps are integers, or numbers such as epochs."""


class Runs(NamedTuple):
    """The curves of a source by run, their metric, and the folders that have it under unexpected names."""

    curves: Mapping[RunName, Curve]
    metric: str
    left_out: list[str]

    def describe(self, take: str) -> str:
        """How the runs were read, in one line."""
        example = next(iter(self.curves))
        taken = f"{self.metric} at step {take}" if take.isdigit() else f"{take} {self.metric}"
        text = f"{len(self.curves)} runs, {taken}; {example.name} is seed {example.seed} of arm {example.arm}"
        if not self.left_out:
            return text
        return f"{text}; left out {len(self.left_out)} folders that do not fit, such as {self.left_out[0]}"


def read_tensorboard(folder: Path, tag: str | None, pattern: str | None) -> Runs:
    """The curves of a scalar tag. With a `pattern` of names, event files in folders that do not fit are left out.

    Raises ConfigError for a damaged file, and for a tag that is missing or, without `tag`, not the only one.
    """
    found = read_event_folders(folder)
    if not found:
        raise ConfigError(f"{folder}: no TensorBoard event files here or below: give the folder that contains the runs")
    runs: dict[RunName, dict[str, dict[str, dict[int, float]]]] = {}
    named = name_runs(found, pattern, str(folder), nested=True)
    for path, run in named.items():
        runs.setdefault(run, {})[path] = found[path]
    tag = _choose(tag, {each for path in named for each in found[path]}, str(folder), "tag")
    curves: dict[RunName, Curve] = {}
    for run, folders in runs.items():
        having = [path for path, scalars in folders.items() if tag in scalars]
        if not having:
            known = did_you_mean(tag, {each for scalars in folders.values() for each in scalars})
            raise ConfigError(f"{folder}: run {run.name}: no tag {tag!r}{known}")
        if len(having) > 1:
            where = f"{folder}: run {run.name}: tag {tag!r} is in {' and '.join(having[:2])}"
            raise ConfigError(f"{where}: {_choice(run, having, runs, pattern)}")
        curves[run] = folders[having[0]][tag]
    left_out = [path for path, scalars in found.items() if path not in named and tag in scalars]
    return Runs(curves, tag, left_out)


def _choice(run: RunName, having: Sequence[str], runs: Mapping[RunName, Collection[str]], pattern: str | None) -> str:
    """The remedy for a tag in several folders of a run: choose one that all runs have, or join them."""
    join = "move the event files of one run into one folder"
    inner = [path.removeprefix(run.name) for path in having if path != run.name]
    shared = [each for each in inner if all(other.name + each in folders for other, folders in runs.items())]
    if not shared:
        return f"{join} if they continue each other, or keep one"
    names = pattern or "{arm}" + run.name.removeprefix(run.arm).rstrip("0123456789") + "{seed}"
    return f"choose one, as in --run-names '{names}{shared[-1]}'; if they continue each other, {join}"


def is_wandb_export(path: Path) -> bool:
    """Whether a CSV file is the export of a chart: a column of steps, and columns such as `swiglu-3 - val_loss`."""
    try:
        _, header = next(_read_csv(path), (0, []))
    except (OSError, UnicodeError, csv.Error):
        return False  # the reader of CSV names what is wrong
    return len(header) > 1 and all(" - " in name for name in header[1:])


def _read_csv(path: Path) -> Iterator[tuple[int, list[str]]]:
    text = decode_text(read_file(path))
    return filled_rows(text, find_separator(text, ()))


def read_wandb(path: Path, metric: str | None, pattern: str | None) -> Runs:
    """The curves of a metric, from the columns `RUN - METRIC`; `__MIN` and `__MAX`, of smoothed points, are ignored.

    Raises ConfigError.
    """
    rows = _read_csv(path)
    _, (axis, *header) = next(rows)
    if "time" in axis.lower():
        raise ConfigError(f"{path}: its x axis is {axis!r}: export the chart over steps")
    columns: dict[str, dict[str, int]] = {}
    for index, name in enumerate(header, start=1):
        run, _, column = name.rpartition(" - ")
        if column.endswith(("__MIN", "__MAX")) or column == "_step":
            continue
        if run.startswith("Group: "):
            raise ConfigError(f"{path}: column {name!r} is a mean over runs: export the chart without grouping")
        if run in columns.setdefault(column, {}):
            raise ConfigError(f"{path}: column {name!r} occurs twice: give each run a name of its own")
        columns[column][run] = index
    metric = _choose(metric, columns, str(path), "metric")
    points: dict[str, dict[float, float]] = {run: {} for run in columns[metric]}
    try:
        for line, row in rows:
            where = f"{path} line {line}"
            for run, index in columns[metric].items():
                if index < len(row) and row[index].strip():
                    points[run][_number(row[0], f"{where}: {axis}")] = _number(row[index], f"{where}: {run}")
    except csv.Error as error:
        raise ConfigError(f"{path} {error}: export the chart again") from None
    named = name_runs(points, pattern, str(path))
    if other := next((name for name in points if name not in named), None):
        raise ConfigError(f"{path}: run {other!r} does not fit --run-names {pattern!r}: leave out its columns")
    return Runs({run: points[name] for name, run in named.items()}, metric, [])


def _choose(wanted: str | None, known: Mapping[str, object] | set[str], where: str, kind: str) -> str:
    """The wanted tag or metric, or the only one. Raises ConfigError."""
    if wanted is None and len(known) == 1:
        return next(iter(known))
    if wanted is None:
        raise ConfigError(f"{where}: which {kind}? Give --columns value=NAME{did_you_mean('', known)}")
    if wanted not in known:
        raise ConfigError(f"{where}: no {kind} {wanted!r}{did_you_mean(wanted, known)}")
    return wanted


def _number(text: str, where: str) -> float:
    return parse_number(text, f"{where} is {text!r}: expected a number, or NaN")


def values_of_curves(
    curves: Mapping[RunName, Curve], take: str, source: str
) -> tuple[dict[str, dict[int, float]], list[str]]:
    """arm -> seed -> the last, smallest or largest value of its run, or that at a step; and notes on the runs.

    nan if a run that `min` or `max` is taken of has one. Raises ConfigError if a run has no value, or if runs whose last
    value is taken end at different steps; a run that ends with nan or inf may end early.
    """
    values: dict[str, dict[int, float]] = {}
    for run, curve in curves.items():
        if not curve:
            raise ConfigError(f"{source}: run {run.name!r} has no value: finish it, or leave it out")
        if run.seed in values.setdefault(run.arm, {}):
            raise ConfigError(f"{source}: arm {run.arm!r} has seed {run.seed} twice: keep one run per arm and seed")
        values[run.arm][run.seed] = _take(curve, take, f"{source}: run {run.name!r}")
    return values, [] if take.isdigit() else _check_ends(curves, take, source)


def _take(curve: Curve, take: str, where: str) -> float:
    if take in ("min", "max"):
        numbers = list(curve.values())
        return math.nan if any(map(math.isnan, numbers)) else min(numbers) if take == "min" else max(numbers)
    if take == "last":
        return curve[max(curve)]
    if not take.isdigit():
        raise ConfigError(f"--take {take}: expected last, min, max or a step")
    if int(take) not in curve:
        nearest = min(curve, key=lambda step: abs(step - int(take)))
        raise ConfigError(f"{where} has no value at step {take}; its nearest step is {nearest:g}")
    return curve[int(take)]


def _check_ends(curves: Mapping[RunName, Curve], take: str, source: str) -> list[str]:
    """A note if runs end at different steps. Raises ConfigError if their last values are taken."""
    ends = {run: max(curve) for run, curve in curves.items() if math.isfinite(curve[max(curve)])}
    if len(set(ends.values())) < 2:
        return []
    first, last = min(ends, key=lambda run: ends[run]), max(ends, key=lambda run: ends[run])
    text = (
        f"{source}: runs end at different steps: {first.name} at {ends[first]:.12g}, {last.name} at {ends[last]:.12g}"
    )
    if take != "last":
        return [text]
    shared = set.intersection(*(set(curves[run]) for run in ends))
    at = f", or give --take {max(shared):.12g}, the last step of all" if shared else ""
    raise ConfigError(f"{text}: finish them{at}")

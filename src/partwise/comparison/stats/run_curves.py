"""Values of runs that logged a metric over training: TensorBoard folders, and CSV exports of charts by Weights & Biases."""

import csv
import io
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from partwise.comparison.stats.event_files import read_event_folders
from partwise.config import ConfigError, did_you_mean, read_file

Curve = Mapping[Any, float]
"""Step -> value; steps are integers, or numbers such as epochs."""

_DEFAULT = re.compile(r"(?P<arm>.+?)[-_/](?:seed[-_=]?|s)?(?P<seed>\d+)")
"""Without a pattern: names such as swiglu-3, swiglu_seed3 and swiglu/seed-3."""


def compile_run_names(pattern: str | None) -> re.Pattern[str]:
    """The regular expression of a pattern such as `{arm}-seed{seed}`. Raises ConfigError."""
    if pattern is None:
        return _DEFAULT
    if sorted(re.findall(r"\{\w*\}", pattern)) != ["{arm}", "{seed}"]:
        raise ConfigError(
            f"--run-names {pattern!r}: expected {{arm}} and {{seed}} once each, as in {{arm}}-seed{{seed}}"
        )
    parts = re.split(r"(\{arm\}|\{seed\})", pattern)
    groups = {"{arm}": "(?P<arm>.+)", "{seed}": r"(?P<seed>\d+)"}
    return re.compile("".join(groups.get(part, re.escape(part)) for part in parts))


def read_tensorboard(folder: Path, tag: str | None, names: re.Pattern[str]) -> dict[str, Curve]:
    """Run -> curve of a scalar tag. The run of an event file is its nearest folder to `folder` whose path fits `names`.

    Raises ConfigError for a damaged file, and for a tag that is missing or, without `tag`, not the only one.
    """
    runs: dict[str, dict[str, dict[str, dict[int, float]]]] = {}
    for path, scalars in read_event_folders(folder).items():
        parts = path.split("/")
        paths = ("/".join(parts[:n]) for n in range(1, len(parts) + 1))
        run = next((each for each in paths if names.fullmatch(each)), path)
        runs.setdefault(run, {})[path] = scalars
    if not runs:
        raise ConfigError(f"{folder}: no TensorBoard event files here or below: give the folder that contains the runs")
    tags = {each for folders in runs.values() for scalars in folders.values() for each in scalars}
    tag = _choose(tag, tags, str(folder), "tag")
    curves: dict[str, Curve] = {}
    for run, folders in runs.items():
        having = [path for path, scalars in folders.items() if tag in scalars]
        if not having:
            known = did_you_mean(tag, {each for scalars in folders.values() for each in scalars})
            raise ConfigError(f"{folder}: run {run}: no tag {tag!r}{known}")
        if len(having) > 1:
            found = " and ".join(having[:2])
            raise ConfigError(f"{folder}: run {run}: tag {tag!r} is in {found}: keep one, or give --run-names")
        curves[run] = folders[having[0]][tag]
    return curves


def is_wandb_export(path: Path) -> bool:
    """Whether a CSV file is the export of a chart: a column of steps, and columns such as `swiglu-3 - val_loss`."""
    try:
        header: list[str] = next(_read_csv(path), [])
    except (OSError, UnicodeDecodeError, csv.Error):
        return False  # the reader of CSV names what is wrong
    return len(header) > 1 and all(" - " in name for name in header[1:])


def _read_csv(path: Path) -> Any:
    return csv.reader(io.StringIO(read_file(path).decode("utf-8-sig"), newline=""))


def read_wandb(path: Path, metric: str | None) -> dict[str, Curve]:
    """Run -> curve of a metric, from the columns `RUN - METRIC`; `__MIN` and `__MAX`, of smoothed points, are ignored.

    Raises ConfigError.
    """
    rows = _read_csv(path)
    axis, *header = next(rows)
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
        for row in rows:
            where = f"{path} line {rows.line_num}"
            for run, index in columns[metric].items():
                if index < len(row) and row[index].strip():
                    points[run][_number(row[0], f"{where}: {axis}")] = _number(row[index], f"{where}: {run}")
    except csv.Error as error:
        raise ConfigError(f"{path} line {rows.line_num}: not valid CSV ({error}): export the chart again") from None
    return dict(points)


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
    try:
        if "_" in text:
            raise ValueError
        return float(text)
    except ValueError:
        raise ConfigError(f"{where} is {text!r}: expected a number, or NaN") from None


def values_of_curves(
    curves: Mapping[str, Curve], take: str, names: re.Pattern[str], source: str
) -> tuple[dict[str, dict[int, float]], list[str]]:
    """arm -> seed -> the last, smallest or largest value of its run, or that at a step; and notes on the runs.

    nan if a run that `min` or `max` is taken of has one. Raises ConfigError if a run has another name or no value, or if runs
    whose last value is taken end at different steps; a run that ends with nan or inf may end early.
    """
    values: dict[str, dict[int, float]] = {}
    for run, curve in curves.items():
        match = names.fullmatch(run)
        if match is None:
            hint = "give the names' pattern, as in --run-names '{arm}-seed{seed}'"
            raise ConfigError(f"{source}: run {run!r}: its name does not end in a seed: {hint}")
        if not curve:
            raise ConfigError(f"{source}: run {run!r} has no value: finish it, or leave it out")
        arm, seed = match["arm"], int(match["seed"])
        if seed in values.setdefault(arm, {}):
            raise ConfigError(f"{source}: arm {arm!r} has seed {seed} twice: keep one run per arm and seed")
        values[arm][seed] = _take(curve, take, f"{source}: run {run!r}")
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


def _check_ends(curves: Mapping[str, Curve], take: str, source: str) -> list[str]:
    """A note if runs end at different steps. Raises ConfigError if their last values are taken."""
    ends = {run: max(curve) for run, curve in curves.items() if math.isfinite(curve[max(curve)])}
    if len(set(ends.values())) < 2:
        return []
    first, last = min(ends, key=lambda run: ends[run]), max(ends, key=lambda run: ends[run])
    text = f"{source}: runs end at different steps: {first} at {ends[first]:.12g}, {last} at {ends[last]:.12g}"
    if take != "last":
        return [text]
    shared = set.intersection(*(set(curves[run]) for run in ends))
    at = f", or give --take {max(shared):.12g}, the last step of all" if shared else ""
    raise ConfigError(f"{text}: finish them{at}")

"""Find the metric and the curve of a finished command, in its output or in a file that it wrote."""

import csv
import errno
import io
import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from partwise.any_code.experiment_file import TENSORBOARD, Curve, Metric, NumberSource, compile_pattern
from partwise.any_code.template import fill
from partwise.comparison.stats.event_files import read_event_folders
from partwise.config import ConfigError, decode_text, did_you_mean, read_file
from partwise.config.yaml import show

MAX_POINTS = 2000
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")


def read_metric(metric: Metric, outputs: Path, cwd: Path, values: Mapping[str, str]) -> float:
    """The value of the metric, from `outputs`/stdout.txt or a file. Raises ConfigError: missing, no number, not finite."""
    if metric.source == TENSORBOARD:
        where, found = "", [value for _, value in read_scalar(metric, values)]
    elif metric.pattern is not None:
        text, name = read_source(metric, outputs, cwd, values)
        found = [match[match.re.groups] for match in compile_pattern(metric.pattern).finditer(text)]
        where = f"no match for {show(metric.pattern)} in {name}"
    else:
        text, name = read_source(metric, outputs, cwd, values)
        found = [
            each for row in read_rows(text, name) for each in [look_up(row, metric.value or "")] if each is not None
        ]
        where = f"no value {metric.value!r} in {name}{known_keys(text, name)}"
    if not found:
        raise ConfigError(where)
    numbers = [to_number(each, metric.name) for each in found]
    if metric.take in ("min", "max") and any(math.isnan(number) for number in numbers):
        raise ConfigError(f"{metric.name} is nan at least once, so it has no {metric.take}")
    chosen = {"last": numbers[-1], "first": numbers[0], "min": min(numbers), "max": max(numbers)}[metric.take]
    if not math.isfinite(chosen):
        raise ConfigError(f"{metric.name} is {chosen}")
    return chosen


def read_curve(curve: Curve, outputs: Path, cwd: Path, values: Mapping[str, str]) -> list[tuple[int, float]]:
    """[step, value] by step, the last value of each, thinned to `MAX_POINTS`; values that are not finite are left out."""
    pairs: list[tuple[Any, Any]]
    if curve.source == TENSORBOARD:
        pairs = read_scalar(curve, values)
    elif curve.pattern is not None:
        text, _ = read_source(curve, outputs, cwd, values)
        pairs = [(match[1], match[2]) for match in compile_pattern(curve.pattern).finditer(text)]
    else:
        text, name = read_source(curve, outputs, cwd, values)
        rows = read_rows(text, name)
        pairs = [(look_up(row, curve.step or ""), look_up(row, curve.value or "")) for row in rows]
    points: dict[int, float] = {}
    for step, value in pairs:
        if step is not None and value is not None and math.isfinite(number := to_number(value, "the curve")):
            points[round(to_number(step, "the curve's step"))] = number
    stride = math.ceil(len(points) / MAX_POINTS) or 1
    ordered = sorted(points.items())
    return [point for index, point in enumerate(reversed(ordered)) if index % stride == 0][::-1]


def read_scalar(source: NumberSource, values: Mapping[str, str]) -> list[tuple[Any, Any]]:
    """[step, value] of a tag in the event files of TensorBoard at or below the trial's folder. Raises ConfigError."""
    folders = {place: scalars for place, scalars in read_event_folders(Path(values["folder"])).items() if scalars}
    having = [place for place, scalars in folders.items() if source.value in scalars]
    if not having:
        known = {tag for scalars in folders.values() for tag in scalars}
        hint = did_you_mean(source.value or "", known) if known else ": make the command log to {folder}"
        raise ConfigError(f"no tag {source.value!r} in event files of TensorBoard{hint}")
    if len(having) > 1:
        raise ConfigError(f"tag {source.value!r} is in {having[0]} and in {having[1]}: make the command log it once")
    return sorted(folders[having[0]][source.value or ""].items())


def source_files(source: NumberSource, outputs: Path, cwd: Path, values: Mapping[str, str]) -> list[Path]:
    """The files that a number is read from."""
    if source.source == TENSORBOARD:
        return sorted(path for path in Path(values["folder"]).rglob("*tfevents*") if path.is_file())
    return [source_path(source, outputs, cwd, values)]


def source_path(source: NumberSource, outputs: Path, cwd: Path, values: Mapping[str, str]) -> Path:
    if source.is_stream:
        return outputs / f"{source.source}.txt"
    return cwd / fill(source.source, values)


def read_source(source: NumberSource, outputs: Path, cwd: Path, values: Mapping[str, str]) -> tuple[str, str]:
    """The text, and the name to call it by."""
    path = source_path(source, outputs, cwd, values)
    name = source.source if source.is_stream else path.name
    if not path.is_file():
        raise ConfigError(f"it did not write {fill(source.source, values)}")
    try:
        text = decode_text(read_result_file(path, name), errors="replace")
    except UnicodeError as error:
        raise ConfigError(f"cannot read {path}: {error}") from None
    if path.suffix in (".json", ".jsonl", ".csv"):
        return text, name
    return _ESCAPES.sub("", text).replace("\r\n", "\n").replace("\r", "\n"), name  # progress bars return the carriage


def read_result_file(path: Path, name: str) -> bytes:
    """The content of a file that a command wrote. Raises ConfigError."""
    try:
        return read_file(path)
    except OSError as error:
        if error.errno == errno.EFBIG:
            raise ConfigError(f"{name}: {error.strerror}: make the command write less") from None
        raise ConfigError(f"cannot read {path}: {error.strerror or error}") from None


def read_rows(text: str, name: str) -> Sequence[Mapping[str, Any]]:
    """The rows of CSV or JSON lines, or the one object of a JSON file."""
    if name.endswith(".csv"):
        return list(csv.DictReader(io.StringIO(text, newline="")))
    lines = [text] if name.endswith(".json") else text.splitlines()
    rows = []
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                if number == len(lines) > 1:
                    continue  # a last line that was cut off
                raise ConfigError(f"{name} line {number} is not JSON ({show(str(error))})") from None
            if isinstance(row, dict):
                rows.append(row)
    return rows


def look_up(row: Mapping[str, Any], key: str) -> Any:
    """A value by its key, or by the keys of nested objects joined by dots; None if there is none or it is empty."""
    value: Any = row.get(key)
    if value is None and "." in key:
        value = row
        for part in key.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
    return None if value == "" else value


def known_keys(text: str, name: str) -> str:
    keys = {key for row in read_rows(text, name)[:100] for key in row if isinstance(key, str)}
    return did_you_mean("", keys) if keys else ""


def to_number(value: Any, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ConfigError(f"{name} is {show(value)}, which is not a number")
    try:
        if isinstance(value, str) and "_" in value:  # Python would read 1_5 as 15
            raise ValueError
        return float(value.strip().rstrip(",;") if isinstance(value, str) else value)
    except (ValueError, OverflowError):
        raise ConfigError(f"{name} is {show(value)}, which is not a number") from None

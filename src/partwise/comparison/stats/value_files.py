"""Read existing results with a row per run and the columns seed, arm and value: CSV, JSON lines, Parquet or a data frame."""

import csv
import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from partwise.comparison.stats.csv_rows import (
    SEPARATORS,
    filled_rows,
    find_separator,
    has_decimal_commas,
    parse_number,
    with_point,
)
from partwise.config import ConfigError, decode_text, did_you_mean, open_to_read, read_file

COLUMNS = ("seed", "arm", "value")


class ValueTable(NamedTuple):
    """The values of a file: arm -> seed -> value, and how the file was read, in one line."""

    values: dict[str, dict[int, float]]
    read: str


def read_table(path: str | Path, columns: Mapping[str, str] | None = None) -> ValueTable:
    """The values of a file with a row per run; arms keep the file's order, other columns are ignored.

    The format follows from the suffix: .json and .jsonl (an object per line, or an array of objects), .parquet (which needs
    polars, or pandas with pyarrow), else CSV with a header, separated by commas, semicolons or tabs. `columns` gives the
    file's own names, such as {"arm": "group"}. Use nan or inf for a run that diverged. Raises ConfigError naming file, line,
    value and remedy.
    """
    rows, unit, layout = read_rows(path, columns or {})
    values = _collect(rows, str(path), unit)
    return ValueTable(values, f"{sum(map(len, values.values()))} rows{layout}; {columns_read(COLUMNS, columns or {})}")


def columns_read(names: Sequence[str], columns: Mapping[str, str]) -> str:
    """The columns that a file was read by, such as `columns seed, arm=group`."""
    shown = [name if columns.get(name, name) == name else f"{name}={columns[name]}" for name in names]
    return f"column{'s' if len(shown) > 1 else ''} {', '.join(shown)}"


class Rows(NamedTuple):
    """The rows of a file, what their numbers count (row or line), and how its cells are separated."""

    rows: Iterable["Row"]
    unit: str
    layout: str


def read_rows(path: str | Path, columns: Mapping[str, str], optional: Collection[str] = ()) -> Rows:
    """The rows of a file; the cell of an `optional` column that it lacks is "". Raises ConfigError."""
    path = Path(path)
    names = [columns.get(name, name) for name in COLUMNS]
    may_lack = {columns.get(name, name) for name in optional}
    readers = {".json": _json_rows, ".jsonl": _json_rows, ".parquet": _parquet_rows}
    rows, layout = readers.get(path.suffix.lower(), _csv_rows)(path, names, may_lack)
    return Rows(rows, "row" if path.suffix.lower() == ".parquet" else "line", layout)


def read_frame(frame: Any, columns: Mapping[str, str] | None = None) -> dict[str, dict[int, float]]:
    """arm -> seed -> value from a data frame of pandas, polars or another library that narwhals knows, one row per run.

    `columns` gives the frame's own names; a missing value is a run that diverged. Raises ConfigError naming row, value and
    remedy.
    """
    if not find_spec("narwhals"):
        raise ConfigError("a data frame needs narwhals: `pip install 'partwise[frames]'`, or give a CSV file")
    import narwhals

    try:
        rows = narwhals.from_native(frame, eager_only=True).rows(named=True)
    except TypeError:
        kind = type(frame).__name__
        raise ConfigError(f"{kind}: expected a path, a data frame, or values as arm -> seed -> value") from None
    names = [(columns or {}).get(name, name) for name in COLUMNS]
    return _collect(_frame_rows(rows, names, "the data frame"), "the data frame", "row")


def _collect(rows: Iterable["Row"], source: str, unit: str) -> dict[str, dict[int, float]]:
    values: dict[str, dict[int, float]] = {}
    first_line: dict[tuple[str, int], int] = {}
    for line, (seed_text, arm, value_text) in rows:
        where = f"{source} {unit} {line}"
        seed, value = parse_seed(seed_text, where), parse_value(value_text, where)
        check_arm_name(arm, where)
        if (earlier := first_line.setdefault((arm, seed), line)) != line:
            raise ConfigError(
                f"{where}: arm {arm!r} already has seed {seed} on {unit} {earlier}: keep one row per arm and seed"
            )
        values.setdefault(arm, {})[seed] = value
    check_values(values, source)
    return values


def check_arm_name(arm: str, where: str) -> None:
    if not arm or not arm.isprintable():
        raise ConfigError(f"{where}: arm={arm!r}: give the arm a printable name")


def check_values(values: Mapping[str, Mapping[int, float]], source: str) -> None:
    """Raise ConfigError unless there are two arms or more with two seeds or more each."""
    if len(values) < 2:
        content = f"only arm {next(iter(values))!r}" if values else "no rows below the header"
        raise ConfigError(f"{source}: {content}: must have at least 2 arms with at least 2 seeds each")
    for arm, runs in values.items():
        if len(runs) < 2:
            raise ConfigError(
                f"{source}: arm {arm!r} has only one seed, which gives no interval: run at least 2 seeds, preferably 5"
            )


def parse_columns(text: str) -> dict[str, str]:
    """`arm=group,value=val_loss` as a mapping. Raises ConfigError."""
    found = {}
    for each in text.split(","):
        name, equals, column = (part.strip() for part in each.partition("="))
        if name not in COLUMNS or not equals or not column:
            raise ConfigError(
                f"--columns {text!r}: expected the file's names for {', '.join(COLUMNS)}, as in arm=group,value=val_loss"
            )
        found[name] = column
    return found


Row = tuple[int, tuple[str, str, str]]
"""The line number, and seed, arm and value."""


def _read_text(path: Path, kind: str) -> str:
    try:
        data = read_file(path)
        return decode_text(data)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{path} line {line}: not UTF-8 text; save the file as {kind} in UTF-8") from None
    except UnicodeError:
        raise ConfigError(f"{path} line 1: not UTF-8 text; save the file as {kind} in UTF-8 (it is UTF-16)") from None


def _json_rows(path: Path, names: Sequence[str], may_lack: Collection[str]) -> tuple[Iterator[Row], str]:
    """The rows of a file with one JSON object per line, or an array of them; a key with dots may name nested objects."""
    text = _read_text(path, "JSON")
    rows: Iterable[tuple[int, Any]]
    if text.lstrip().startswith("["):
        rows = enumerate(_parse_json(text, str(path), "an array of objects"), start=1)
        unit = "row"
    else:
        lines = [(number, line) for number, line in enumerate(text.splitlines(), start=1) if line.strip()]
        rows = ((number, _parse_json(line, f"{path} line {number}", "one object per line")) for number, line in lines)
        unit = "line"
    return _object_rows(rows, names, f"{path} {unit}", may_lack), ""


def _object_rows(
    rows: Iterable[tuple[int, Any]], names: Sequence[str], where: str, may_lack: Collection[str]
) -> Iterator[Row]:
    for number, row in rows:
        if not isinstance(row, dict):
            example = json.dumps({"seed": 0, "arm": "base", "value": 1.47})
            raise ConfigError(f"{where} {number}: {json.dumps(row)[:80]}: expected an object, such as {example}")
        cells = [_look_up(row, name) for name in names]
        yield number, _cells(cells, names, list(row), f"{where} {number}", may_lack)


def _parse_json(text: str, where: str, expected: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=_distinct)
    except _DuplicateKey as error:
        raise ConfigError(f"{where}: the key {str(error)!r} occurs twice in an object: keep one") from None
    except (ValueError, RecursionError):
        raise ConfigError(f"{where}: not JSON; expected {expected}") from None


class _DuplicateKey(Exception):
    """A key that an object has twice; `json` would silently keep the last."""


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        raise _DuplicateKey(next(key for key in keys if keys.count(key) > 1))
    return found


def _look_up(row: Mapping[str, Any], name: str) -> Any:
    value: Any = row
    if name in row:
        return row[name]
    for part in name.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def _parquet_rows(path: Path, names: Sequence[str], may_lack: Collection[str]) -> tuple[Iterator[Row], str]:
    backend = next((name for name in ("polars", "pandas") if find_spec(name)), None)
    if backend is None or not find_spec("narwhals") or (backend == "pandas" and not find_spec("pyarrow")):
        raise ConfigError(
            f"{path}: Parquet needs narwhals with polars, or with pandas and pyarrow: install them, or use CSV"
        )
    import narwhals

    try:
        open_to_read(path).close()  # the backend would wait for a pipe
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror or error}") from None
    try:
        rows = narwhals.read_parquet(str(path), backend=backend).rows(named=True)  # type: ignore[arg-type]
    except Exception as error:  # each backend has its own
        raise ConfigError(f"cannot read {path}: {' '.join(str(error).split())[:200]}") from None
    return _frame_rows(rows, names, str(path), may_lack), ""


def _frame_rows(
    rows: Iterable[Mapping[str, Any]], names: Sequence[str], source: str, may_lack: Collection[str] = ()
) -> Iterator[Row]:
    for number, row in enumerate(rows, start=1):
        cells = [row.get(name) for name in names]
        yield number, _cells(cells, names, list(row), f"{source} row {number}", may_lack)


def _cells(
    values: Sequence[Any], names: Sequence[str], known: Sequence[str], where: str, may_lack: Collection[str]
) -> tuple[str, str, str]:
    """Seed, arm and value as text. Raises ConfigError for one that is missing and may not be."""
    values = [
        "" if column in may_lack and column not in known and each is None else each
        for column, each in zip(names, values, strict=True)
    ]
    values = [None if not isinstance(each, str) and str(each) in ("nan", "<NA>") else each for each in values]
    for name, column, value in zip(COLUMNS, names, values, strict=True):
        if value is None and (name != "value" or column not in known):
            raise ConfigError(f"{where}: no {column!r}{did_you_mean(column, known)}{_mapping_hint(name, column)}")
    seed, arm, value = (
        "nan" if each is None else float.__repr__(each) if isinstance(each, float) else str(each) for each in values
    )
    return seed, arm, value


def _mapping_hint(name: str, column: str) -> str:
    return f"; if it has another name, give --columns {name}=NAME" if name == column else ""


def _csv_rows(path: Path, names: Sequence[str], may_lack: Collection[str]) -> tuple[Iterator[Row], str]:
    """The rows of a CSV file that are not blank; numbers with a decimal comma are given a point."""
    text = _read_text(path, "CSV")
    wanted, optional = [name.lower() for name in names], {name.lower() for name in may_lack}
    separator = find_separator(text, wanted)
    rows: list[Row] = []
    header: list[str] = []
    try:
        for line, cells in filled_rows(text, separator):
            if not header:
                header = [cell.lower() for cell in cells]
                columns = _find_columns(wanted, header, path, line, optional)
            elif len(cells) < len(header) or any(cells[len(header) :]):
                raise ConfigError(
                    f"{path} line {line}: {len(cells)} fields but {len(header)} columns in the header: "
                    f'use a decimal point and quote text that contains a comma, as in "a,b"'
                )
            else:
                seed, arm, value = ("" if column is None else cells[column] for column in columns)
                rows.append((line, (seed, arm, value)))
    except csv.Error as error:
        raise ConfigError(f"{path} {error}; check the quotes on this line") from None
    if not header:
        needed = [name for name, own in zip(COLUMNS, names, strict=True) if own not in may_lack]
        raise ConfigError(f"{path} is empty: expected the header {','.join(needed)} and one row per run")
    layout = f" separated by {SEPARATORS[separator]}"
    if has_decimal_commas([(line, value) for line, (_, _, value) in rows], str(path)):
        rows = [(line, (with_point(seed), arm, with_point(value))) for line, (seed, arm, value) in rows]
        layout += ", decimal commas"
    return iter(rows), layout


def _find_columns(
    names: Sequence[str], header: Sequence[str], path: Path, line: int, may_lack: Collection[str]
) -> list[int | None]:
    for wanted, name in zip(COLUMNS, names, strict=True):
        if header.count(name) == 1 or (name in may_lack and name not in header):
            continue
        where = f"{path} line {line}"
        if name in header:
            raise ConfigError(f"{where}: column {name!r} occurs {header.count(name)} times: keep one")
        hint = _mapping_hint(wanted, name)
        raise ConfigError(f"{where}: no column {name!r} in the header{did_you_mean(name, header)}{hint}")
    return [header.index(name) if name in header else None for name in names]


def parse_seed(text: str, where: str) -> int:
    try:
        if "_" in text:  # Python would read 1_5 as 15
            raise ValueError
        return int(text.removesuffix(".0"))  # pandas writes integers in a column with missing values as 1.0, 2.0
    except ValueError:
        raise ConfigError(f"{where}: seed={text!r}: expected an integer, such as 3") from None


def parse_value(text: str, where: str) -> float:
    return parse_number(text, f"{where}: value={text!r}: expected a number such as 1.47, or nan if the run diverged")

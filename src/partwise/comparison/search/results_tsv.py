"""`results.tsv`, in which programs that search write a line per candidate: commit, value, memory, status, description.

Such files have tabs between the cells and no quotes. A crash has a value such as 0.000000, which is no result. A further
column says of how many runs a value is the mean, if of several.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from partwise.comparison.stats.csv_rows import parse_number
from partwise.config import ConfigError, decode_text, did_you_mean, read_file

Status = Literal["keep", "discard", "crash", "undecided"]
"""The first three are those that such programs write; "undecided" is neither kept nor shown to be worse."""

STATUS_WORDS: Mapping[str, Status] = {
    **{status: status for status in get_args(Status)},
    "kept": "keep",
    "baseline": "keep",
    "discarded": "discard",
    "crashed": "crash",
}
NOTHING = ("", "-", "n/a", "na", "none", "null")
"""Cells without a value, and without a commit: rows that share one of these are no repeats."""

RUNS_COLUMN = "mean_of_runs"
MAX_BYTES = 1 << 24
FORMULA = ("=", "+", "-", "@")
"""How a cell starts that a spreadsheet would compute."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of the file."""

    commit: str
    value: float | None
    """None for a crash, and where no finite number was written."""
    status: Status
    description: str
    memory: float | None = None
    runs: int = 1
    """The value is the mean of as many."""
    line: int = 0
    """Its line in the file, from 1; 0 if it is not from a file."""


@dataclass(frozen=True)
class ResultsFile:
    """The rows of a file in their order, the names of its columns of values and memory, and remarks on how it was read."""

    rows: tuple[Row, ...]
    value_name: str = "value"
    memory_name: str = "memory_gb"
    notes: tuple[str, ...] = ()


def read_results(path: str | Path, value_column: str | None = None) -> ResultsFile:
    """The rows of a file, with the values of `value_column`: by default of `value`, else of the column after `commit`.

    A row with more cells than the header has a description with tabs, which become spaces. Raises ConfigError naming file,
    line, value and remedy.
    """
    lines = [line.removesuffix("\r") for line in _read(Path(path)).split("\n")]
    header = [cell.strip().lower() for cell in lines[0].split("\t")]
    value_name = _value_column(header, value_column, path)
    memory_name = next((name for name in header if name.startswith(("memory", "peak_memory", "mem"))), "memory_gb")
    rows, with_tabs, zeros = [], [], []
    for number, text in enumerate(lines[1:], start=2):
        if not text.strip():
            continue
        cells = [cell.strip() for cell in text.split("\t")]
        if len(cells) > len(header):
            with_tabs.append(number)
            at, extra = header.index("description"), len(cells) - len(header)
            cells[at : at + extra + 1] = [" ".join(cells[at : at + extra + 1])]
        if len(cells) < len(header) - 1:
            raise ConfigError(
                f"{path} line {number}: {len(cells)} cells but {len(header)} columns in the header, separated by tabs: "
                "complete the row or remove it"
            )
        named = dict(zip(header, [*cells, ""], strict=False))
        rows.append(_row(named, value_name, memory_name, f"{path} line {number}", number))
    if not rows:
        raise ConfigError(f"{path}: no rows below the header: a search writes one per candidate")
    least = min((row.value for row in rows if row.value), default=0.0)
    for index, row in enumerate(rows):
        if row.value == 0 and least > 0:
            rows[index] = Row(
                commit=row.commit, value=None, status=row.status, description=row.description, line=row.line
            )
            zeros.append(row.line)
    notes = []
    if with_tabs:
        notes.append(f"{_lines(with_tabs)}: more cells than columns; tabs in the description were read as spaces.")
    if zeros:
        notes.append(f"{_lines(zeros)}: a value of 0 without the status crash was read as a crash.")
    unfinished = [row.line for row in rows if row.value is None and row.status != "crash" and row.line not in zeros]
    if unfinished:
        notes.append(f"{_lines(unfinished)}: no finite value, read as a crash.")
    return ResultsFile(tuple(rows), value_name, memory_name, tuple(notes))


def render_results(file: ResultsFile) -> str:
    """The text of a file, which `read_results` and the programs that write such files read.

    Control characters become spaces, and a cell that a spreadsheet would compute starts with an apostrophe.
    """
    header = ["commit", file.value_name, file.memory_name, "status", "description"]
    of_several = any(row.runs > 1 for row in file.rows)
    lines = ["\t".join([*header, RUNS_COLUMN] if of_several else header)]
    for row in file.rows:
        value = "0.000000" if row.value is None else f"{row.value:.10g}"
        memory = f"{row.memory or 0.0:.1f}"
        cells = [harmless(row.commit), value, memory, row.status, harmless(row.description)]
        lines.append("\t".join([*cells, str(row.runs)] if of_several else cells))
    return "\n".join(lines) + "\n"


def harmless(text: str) -> str:
    """A cell on one line, without characters that are not printed, that no spreadsheet computes."""
    shown = " ".join("".join(char if char.isprintable() else " " for char in text).split())
    return f"'{shown}" if shown.startswith(FORMULA) else shown


def _read(path: Path) -> str:
    try:
        text = decode_text(read_file(path, MAX_BYTES))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror or error}") from None
    except UnicodeError:
        raise ConfigError(f"{path}: not UTF-8 text; save the file in UTF-8") from None
    if not text.strip():
        raise ConfigError(f"{path} is empty: expected a header with commit, a value, status and description")
    return text.lstrip("\r\n")


def _value_column(header: Sequence[str], given: str | None, path: str | Path) -> str:
    """The name of the column of values. Raises ConfigError if a column is missing or occurs twice."""
    if len(header) == 1 and "," in header[0]:
        raise ConfigError(
            f"{path} line 1: no tabs in the header: separate the columns by tabs, as commas are in descriptions"
        )
    for name in ("commit", "status", "description"):
        if name not in header:
            raise ConfigError(f"{path} line 1: no column {name!r} in the header{did_you_mean(name, header)}")
    twice = next((name for name in header if header.count(name) > 1), None)
    if twice is not None:
        raise ConfigError(f"{path} line 1: column {twice!r} occurs {header.count(twice)} times: keep one")
    if given is not None:
        if given.lower() not in header:
            raise ConfigError(f"{path} line 1: no column {given!r} in the header{did_you_mean(given, header)}")
        return given.lower()
    after = header[header.index("commit") + 1 :]
    if "value" in header or not after or after[0] in ("status", "description"):
        if "value" not in header:
            raise ConfigError(
                f"{path} line 1: no column of values after 'commit': name it, as in --columns value=val_loss"
            )
        return "value"
    return after[0]


def _row(named: Mapping[str, str], value_name: str, memory_name: str, where: str, line: int) -> Row:
    word = named["status"].lower()
    status = STATUS_WORDS.get(word)
    if status is None:
        raise ConfigError(f"{where}: status={named['status']!r}: expected {', '.join(get_args(Status)[:3])}")
    value = _number(named[value_name], f"{where}: {value_name}={named[value_name]!r}: expected a number such as 0.9979")
    memory = named.get(memory_name, "")
    commit = _as_written(named["commit"])
    return Row(
        commit="" if commit.lower() in NOTHING else commit,
        value=None if status == "crash" else value,
        status=status,
        description=_as_written(named["description"]),
        memory=_number(memory, f"{where}: {memory_name}={memory!r}: expected a number of GB such as 44.0"),
        runs=_runs(named.get(RUNS_COLUMN, ""), where),
        line=line,
    )


def _runs(text: str, where: str) -> int:
    if not text:
        return 1
    if not (text.isascii() and text.isdigit() and 0 < len(text) < 10 and int(text)):
        raise ConfigError(f"{where}: {RUNS_COLUMN}={text!r}: expected the number of runs, such as 1")
    return int(text)


def _as_written(cell: str) -> str:
    """A cell without the apostrophe that `harmless` adds, and without characters that are not printed."""
    cell = cell[1:] if cell.startswith("'") and cell[1:].startswith(FORMULA) else cell
    return "".join(char if char.isprintable() else " " for char in cell)


def _number(text: str, refusal: str) -> float | None:
    if text.lower() in (*NOTHING, "crash"):
        return None
    number = parse_number(text, refusal)
    return number if math.isfinite(number) else None


def _lines(numbers: Sequence[int]) -> str:
    shown = ", ".join(map(str, numbers[:5])) + (", ..." if len(numbers) > 5 else "")
    return f"Line{'s' if len(numbers) > 1 else ''} {shown}"

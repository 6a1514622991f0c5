"""Rows of a CSV file: the separator that its header has, and decimal commas."""

import csv
import io
import re
from collections.abc import Iterator, Sequence

from partwise.config import ConfigError

SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs"}

_DECIMAL_COMMA = re.compile(r"[-+]?\d*,\d+([eE][-+]?\d+)?")
_THOUSANDS = re.compile(r"[-+]?[1-9]\d{0,2},\d{3}")
"""1,470 is 1.470 with a decimal comma, and 1470 with a separator of thousands."""


def filled_rows(text: str, separator: str) -> Iterator[tuple[int, list[str]]]:
    """Line number and stripped cells of each row that is not blank. Raises csv.Error with the line in its text."""
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
    try:
        for row in reader:
            cells = [cell.strip() for cell in row]
            if any(cells):
                yield reader.line_num, cells
    except csv.Error as error:
        raise csv.Error(f"line {reader.line_num}: not valid CSV ({error})") from None


def find_separator(text: str, names: Sequence[str]) -> str:
    """The separator by which the header has all `names` (in lower case), else that with most columns."""
    columns = {}
    for separator in SEPARATORS:
        try:
            columns[separator] = [cell.lower() for cell in next(filled_rows(text, separator), (0, [""]))[1]]
        except csv.Error:
            columns[separator] = []
    return max(columns, key=lambda each: (set(names) <= set(columns[each]), len(columns[each])))


def with_point(text: str) -> str:
    """A number with a decimal point in place of its comma; other text as it is."""
    return text.replace(",", ".") if _DECIMAL_COMMA.fullmatch(text) else text


def has_decimal_commas(numbers: Sequence[tuple[int, str]], path: str) -> bool:
    """Whether a column of numbers, each with its line, has decimal commas.

    Raises ConfigError if they could also separate thousands, and if another number has a decimal point.
    """
    commas = [(line, text) for line, text in numbers if _DECIMAL_COMMA.fullmatch(text)]
    if not commas:
        return False
    line, text = commas[0]
    if point := next(((line, text) for line, text in numbers if "." in text), None):
        raise ConfigError(
            f"{path}: value={text!r} on line {line} has a comma and value={point[1]!r} on line {point[0]} a point: "
            "write all with a decimal point"
        )
    if all(_THOUSANDS.fullmatch(text) for _, text in commas):
        both = text.replace(",", "."), text.replace(",", "")
        raise ConfigError(
            f"{path} line {line}: value={text!r} is {both[0]} or {both[1]}: write the values as one of them"
        )
    return True


def parse_number(text: str, refusal: str) -> float:
    """The number in a cell. Raises ConfigError with this message for anything else."""
    try:
        if "_" in text:  # Python would read 1_5 as 15
            raise ValueError
        return float(text)
    except ValueError:
        raise ConfigError(refusal) from None

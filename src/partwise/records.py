"""Records: JSON objects in files, read within bounds, with typed values and one error that names the file and the place.

The files of a run or a comparison may be damaged, edited, or made by others. Imports no torch.
"""

import json
import math
from pathlib import Path
from typing import Any, NoReturn

from partwise.config import ConfigError
from partwise.config.reading import MAX_BYTES, read_file

MAX_DIGITS = 308
"""The most digits of a whole number."""


class DamagedFileError(ConfigError):
    """A file of a run, checkpoint or comparison is missing, unreadable, or not what was written."""


class Record(dict[str, Any]):
    """A JSON object of the file `source`. A missing key, or a value of another type, raises DamagedFileError."""

    def __init__(self, values: dict[str, Any], source: str) -> None:
        super().__init__(values)
        self.source = source

    def __missing__(self, key: str) -> NoReturn:
        raise DamagedFileError(f"{self.source} is damaged: it lacks {key!r}")

    def text(self, key: str) -> str:
        value = self[key]
        return value if isinstance(value, str) else self._refuse(key, "text")

    def whole(self, key: str, minimum: int = 0) -> int:
        """A whole number of at least `minimum`."""
        value = self[key]
        if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
            self._refuse(key, f"a whole number of at least {minimum}")
        return value

    def number(self, key: str) -> float:
        """A finite number."""
        value = self[key]
        return float(value) if is_number(value) else self._refuse(key, "a number")

    def record(self, key: str) -> "Record":
        value = self[key]
        return value if isinstance(value, Record) else self._refuse(key, "an object")

    def records(self, key: str) -> list["Record"]:
        value = self[key]
        if not isinstance(value, list) or not all(isinstance(each, Record) for each in value):
            self._refuse(key, "a list of objects")
        return value

    def texts(self, key: str) -> list[str]:
        value = self[key]
        if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
            self._refuse(key, "a list of texts")
        return value

    def _refuse(self, key: str, expected: str) -> NoReturn:
        shown = json.dumps(self[key])
        shown = shown if len(shown) <= 40 else f"{shown[:37]}..."
        raise DamagedFileError(f"{self.source} is damaged: {key!r} is {shown}, not {expected}")


def is_number(value: Any) -> bool:
    """Whether it is a finite number, in the range of a float."""
    try:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:
        return False


def read_record(path: Path, max_bytes: int = MAX_BYTES) -> Record:
    """The JSON object in a file. Raises DamagedFileError if it is missing, no regular file, too long, or no JSON object."""
    values = parse(read_bytes(path, max_bytes), str(path))
    if not isinstance(values, Record):
        raise DamagedFileError(f"{path} is damaged: it does not contain a JSON object")
    return values


def parse(content: bytes | str, source: str) -> Any:
    """A JSON value whose objects are records of `source`. Raises DamagedFileError."""
    try:
        return json.loads(content, object_hook=lambda values: Record(values, source), parse_int=_whole)
    except (ValueError, RecursionError) as error:
        raise DamagedFileError(f"{source} is damaged: {error}") from None


def _whole(text: str) -> int:
    """Raises ValueError for one that a float cannot hold, with which later computations would fail."""
    if len(text) > MAX_DIGITS:
        raise ValueError(f"a whole number has {len(text)} digits, more than {MAX_DIGITS}")
    return int(text)


def read_bytes(path: Path, max_bytes: int = MAX_BYTES) -> bytes:
    """The content of a regular file: a pipe or a device under its name would never end. Raises DamagedFileError."""
    try:
        return read_file(path, max_bytes)
    except OSError as error:
        raise DamagedFileError(f"{path} cannot be read: {error.strerror or error}") from None

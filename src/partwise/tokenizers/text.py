"""Text: a string, its ASCII codes, or a file too large for memory that is read on demand."""

import codecs
import hashlib
from array import array
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from io import BufferedReader
from pathlib import Path
from typing import final

import numpy as np

from partwise.config import ConfigError, open_to_read, skip_mark

BLOCK_BYTES = 1 << 16
"""Approximate bytes of a file per read."""


@final
class LazyText:
    """A text whose blocks are read on demand: `text[start:end]` is a string, however long the text is.

    `starts` (N + 1,) holds the index of each block's first character and the end of the last block; `read_block(i)`
    returns the text of block i. Reading raises ConfigError if a block has changed.
    """

    def __init__(
        self, starts: Sequence[int], read_block: Callable[[int], str], bounds: tuple[int, int] | None = None
    ) -> None:
        self._starts, self._read_block = starts, read_block
        self._start, self._end = bounds or (0, starts[-1])
        self._read_cached = lru_cache(maxsize=2)(read_block)  # consecutive chunks often share a block

    def __len__(self) -> int:
        return self._end - self._start

    def __getitem__(self, span: slice) -> str:
        start, end, step = span.indices(len(self))
        if step != 1:
            raise ValueError(f"slices of a LazyText need a step of 1, not {step}")
        start, end = start + self._start, end + self._start
        pieces, block = [], bisect_right(self._starts, start) - 1
        while start < end and self._starts[block] < end:
            block_start, text = self._starts[block], self._read_cached(block)
            if len(text) != self._starts[block + 1] - block_start:
                raise text_changed()
            pieces.append(text[max(0, start - block_start) : end - block_start])
            block += 1
        return "".join(pieces)

    def subtext(self, start: int, end: int) -> "LazyText":
        """The characters from `start` to `end` as another lazy text."""
        return LazyText(self._starts, self._read_block, (self._start + start, self._start + end))


InMemoryText = str | np.ndarray
"""A string, or ASCII codes as uint8 (N,), so that bulk data need no conversion to strings."""

Text = InMemoryText | LazyText


@final
class Alphabet:
    """Collects the distinct characters of texts."""

    def __init__(self) -> None:
        self._characters: set[str] = set()
        self._ascii = b""

    def add(self, content: bytes) -> None:
        """Add text in UTF-8."""
        if rest := content.translate(None, delete=self._ascii):  # ASCII bytes are never part of a longer character
            self._characters.update(rest.decode())
            self._ascii = "".join(character for character in self._characters if character.isascii()).encode()

    def __str__(self) -> str:
        return "".join(sorted(self._characters))


@dataclass(frozen=True)
class ScannedText:
    """A text file after one pass over it: its text, its distinct characters, sorted, and the SHA-256 of its bytes."""

    text: LazyText
    alphabet: str
    sha256: str


def open_text(path: Path) -> ScannedText:
    """Scan a UTF-8 file in constant memory; newlines are kept, and a byte order mark is not.

    Raises ConfigError for a file that is not text.
    """
    return _scan(path, hash_file(path))


def hash_file(path: Path) -> str:
    """The SHA-256 of a file. Raises ConfigError if it cannot be read."""
    with _open(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def hash_text(path: Path) -> str:
    """The SHA-256 of a text file without its byte order mark. Raises ConfigError."""
    with _open(path) as file:
        _skip_mark(path, file)
        return hashlib.file_digest(file, "sha256").hexdigest()


def _skip_mark(path: Path, file: BufferedReader) -> int:
    try:
        return skip_mark(file)
    except UnicodeError as error:
        raise ConfigError(f"cannot read {path}: {error}") from None


@lru_cache(maxsize=2)
def _scan(path: Path, sha256: str) -> ScannedText:
    """The blocks and characters of a file, cached by its SHA-256."""
    alphabet = Alphabet()
    starts, offsets, rest = array("q", [0]), array("q"), b""  # a list would take 1.2 MB for each GB of text
    with _open(path) as file:
        offsets.append(_skip_mark(path, file))
        hasher = hashlib.sha256(codecs.BOM_UTF8[: offsets[0]])
        while chunk := file.read(BLOCK_BYTES):
            hasher.update(chunk)
            content = rest + chunk
            if b"\0" in chunk:
                raise _binary_error(path, file.tell() - len(chunk) + chunk.index(0))
            try:
                block, used = codecs.utf_8_decode(content, "strict", False)  # keeps an incomplete character for later
            except UnicodeDecodeError as error:
                raise _decoding_error(path, file, offsets[-1] + error.start) from None
            rest = content[used:]
            alphabet.add(content[:used])
            starts.append(starts[-1] + len(block))
            offsets.append(offsets[-1] + used)
        if rest:
            raise _decoding_error(path, file, offsets[-1])
    if not starts[-1]:
        raise ConfigError(f"{path} is empty: must contain at least one character")
    if hasher.hexdigest() != sha256:
        raise text_changed()
    text = LazyText(starts, lambda block: _read(path, offsets[block], offsets[block + 1]))
    return ScannedText(text, str(alphabet), sha256)


def _read(path: Path, start: int, end: int) -> str:
    with _open(path) as file:
        file.seek(start)
        try:
            return file.read(end - start).decode("utf-8")
        except UnicodeDecodeError:
            raise text_changed() from None


def text_changed() -> ConfigError:
    """The error for a text that differs from what was scanned."""
    return ConfigError("the text changed while it was being read: try again")


def _open(path: Path) -> BufferedReader:
    try:
        if path.exists() and not path.is_file() and not path.is_dir():  # a pipe can be read only once
            raise ConfigError(f"{path} is not a regular file: give the path of a text file")
        return open_to_read(path)
    except IsADirectoryError:
        raise ConfigError(f"{path} is a folder: give the path of a text file") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"cannot read {str(path)!r}: {reason}; give the path of a text file") from None


def _decoding_error(path: Path, file: BufferedReader, offset: int) -> ConfigError:
    """A file with a zero byte anywhere is binary; otherwise it has another encoding."""
    position = file.tell()
    while chunk := file.read(BLOCK_BYTES):
        if b"\0" in chunk:
            return _binary_error(path, position + chunk.index(0))
        position += len(chunk)
    return ConfigError(f"{path} is not UTF-8 (at byte offset {offset}): convert it to UTF-8")


def _binary_error(path: Path, offset: int) -> ConfigError:
    return ConfigError(f"{path} is binary (a zero byte at offset {offset}): give a text file in UTF-8")

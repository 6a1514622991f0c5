"""What a text may be: a string, its ASCII codes, or one too long to hold, which is read where it is asked for."""

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

from partwise.config import ConfigError

BLOCK = 1 << 16
"""Bytes of a file, more or less, that are read in one go."""


@final
class LongText:
    """A text in blocks that are read when they are needed: `text[first:end]` is a string, however long the text is.

    `starts` (N + 1,) says at which character each block begins, and the last one ends; `read` gives a block its text.
    Reading raises ConfigError where a block is no longer what it was.
    """

    def __init__(self, starts: Sequence[int], read: Callable[[int], str], span: tuple[int, int] | None = None) -> None:
        self._starts, self._source = starts, read
        self._first, self._end = span or (0, starts[-1])
        self._read = lru_cache(maxsize=2)(read)  # a piece often begins in the block where another ended

    def __len__(self) -> int:
        return self._end - self._first

    def __getitem__(self, span: slice) -> str:
        first, end, step = span.indices(len(self))
        if step != 1:
            raise ValueError(f"a long text is read forwards and without gaps, not in steps of {step}")
        first, end = first + self._first, end + self._first
        pieces, block = [], bisect_right(self._starts, first) - 1
        while first < end and self._starts[block] < end:
            start, text = self._starts[block], self._read(block)
            if len(text) != self._starts[block + 1] - start:
                raise changed()
            pieces.append(text[max(0, first - start) : end - start])
            block += 1
        return "".join(pieces)

    def part(self, first: int, end: int) -> "LongText":
        """The characters from `first` to `end` as a text of their own, not read yet."""
        return LongText(self._starts, self._source, (self._first + first, self._first + end))


Piece = str | np.ndarray
"""Text that is held, or its ASCII codes as uint8 (N,), which spares bulk data the detour through strings."""

Text = Piece | LongText


@final
class Alphabet:
    """The distinct characters of all that was added."""

    def __init__(self) -> None:
        self._found: set[str] = set()
        self._ascii = b""

    def add(self, content: bytes) -> None:
        """Add text in UTF-8."""
        if rest := content.translate(None, delete=self._ascii):  # what it deletes is a character, never a part of one
            self._found.update(rest.decode())
            self._ascii = "".join(character for character in self._found if character.isascii()).encode()

    def __str__(self) -> str:
        return "".join(sorted(self._found))


@dataclass(frozen=True)
class TextOnDisk:
    """A file of text that was looked through once: its text, its characters, sorted, and the SHA-256 of its bytes."""

    text: LongText
    alphabet: str
    sha256: str


def open_text(path: Path) -> TextOnDisk:
    """Look a file in UTF-8 through, newlines as they are, in little memory. Raises ConfigError for what is no text."""
    return _look_through(path, hash_file(path))


def hash_file(path: Path) -> str:
    """The SHA-256 of a file. Raises ConfigError for a file that cannot be read."""
    with _open(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@lru_cache(maxsize=2)
def _look_through(path: Path, sha256: str) -> TextOnDisk:
    """Its blocks and characters, remembered for the content with this SHA-256."""
    alphabet, found = Alphabet(), hashlib.sha256()
    starts, offsets, rest = array("q", [0]), array("q", [0]), b""  # a list would take 1.2 MB for each GB of text
    with _open(path) as file:
        while chunk := file.read(BLOCK):
            found.update(chunk)
            content = rest + chunk
            if b"\0" in chunk:
                raise _binary(path, file.tell() - len(chunk) + chunk.index(0))
            try:
                block, used = codecs.utf_8_decode(content, "strict", False)  # leaves a character that is cut off
            except UnicodeDecodeError as error:
                raise _no_text(path, file, offsets[-1] + error.start) from None
            rest = content[used:]
            alphabet.add(content[:used])
            starts.append(starts[-1] + len(block))
            offsets.append(offsets[-1] + used)
        if rest:
            raise _no_text(path, file, offsets[-1])
    if not starts[-1]:
        raise ConfigError(f"{path} is empty: give a file with text in it")
    if found.hexdigest() != sha256:
        raise changed()
    text = LongText(starts, lambda block: _read(path, offsets[block], offsets[block + 1]))
    return TextOnDisk(text, str(alphabet), sha256)


def _read(path: Path, first: int, end: int) -> str:
    with _open(path) as file:
        file.seek(first)
        try:
            return file.read(end - first).decode("utf-8")
        except UnicodeDecodeError:
            raise changed() from None


def changed() -> ConfigError:
    """What to raise where a text is not what it was when it was looked through."""
    return ConfigError("the text changed while it was read: try again")


def _open(path: Path) -> BufferedReader:
    try:
        if path.exists() and not path.is_file() and not path.is_dir():  # a pipe can be read only once
            raise ConfigError(f"{path} is no file: give the path of one text file")
        return path.open("rb")
    except IsADirectoryError:
        raise ConfigError(f"{path} is a folder: give the path of one text file") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"cannot read {str(path)!r}: {reason}; give the path of a text file") from None


def _no_text(path: Path, file: BufferedReader, offset: int) -> ConfigError:
    """A file with a zero byte anywhere is binary, another one is in another encoding."""
    at = file.tell()
    while chunk := file.read(BLOCK):
        if b"\0" in chunk:
            return _binary(path, at + chunk.index(0))
        at += len(chunk)
    return ConfigError(f"{path} is not UTF-8 (at byte offset {offset}): convert it to UTF-8 first")


def _binary(path: Path, offset: int) -> ConfigError:
    return ConfigError(f"{path} is binary (a zero byte at offset {offset}): give a text file in UTF-8")

"""Many documents as one corpus: JSON lines, or a folder of files."""

import hashlib
import json
import os
from abc import abstractmethod
from array import array
from codecs import BOM_UTF8
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from partwise.config import ConfigError, decode_text, digest, open_to_read, part
from partwise.data.corpora import MAX_BYTES, TextCorpus, count_train_documents
from partwise.data.excerpts import Excerpt
from partwise.tokenizers.text import (
    BLOCK_BYTES,
    Alphabet,
    LazyText,
    Text,
    hash_file,
    hash_text,
    open_text,
    text_changed,
)

DocumentLocation = int | Path
"""Where a document is stored: at an offset in a file, or in its own file."""


class Documents(TextCorpus):
    """Many documents joined by `separator`, split between two of them; empty ones are skipped.

    The first documents, 90% of the characters, are for training; the others are for validation, except those that also
    occur in training. Documents are read one at a time, and again when needed.
    """

    path: str
    """The file or folder with the documents."""
    separator: str = "\n"
    """What is written between two documents."""

    def documents(self) -> Iterator[tuple[DocumentLocation, str]]:
        """The documents that are not empty, in order, each with its location. Raises ConfigError."""
        return self.parse()

    @abstractmethod
    def parse(self) -> Iterator[tuple[DocumentLocation, str]]:
        """As `documents`, without checking first that the files are text."""

    @abstractmethod
    def size(self) -> int:
        """The bytes of all files."""

    @abstractmethod
    def read(self, locations: list[DocumentLocation]) -> Iterator[str]:
        """The documents at these locations, in that order. Raises ConfigError."""

    def alphabet(self) -> str:
        return self._index().alphabet

    def splits(self) -> dict[str, Text]:
        index = self._index()
        n_train = count_train_documents(index.lengths, self.separator)
        unseen = n_train + np.flatnonzero(~np.isin(index.digests[n_train:], index.digests[:n_train]))
        train, val = self._join(index, np.arange(n_train)), self._join(index, unseen)
        val = val.subtext(0, max(0, len(val) - len(self.separator)))  # no separator after the last document
        if min(len(train), len(val)) < 2:
            raise ConfigError(
                f"{self.path} has {len(index.lengths)} non-empty texts, all in the training split or duplicates of it, so "
                "none is left for validation: add more distinct texts"
            )
        return {"train": train, "val": val}

    def _join(self, index: "DocumentIndex", chosen: np.ndarray) -> LazyText:
        """The chosen documents, each followed by the separator."""
        ends = np.concatenate([[0], np.cumsum(index.lengths[chosen] + len(self.separator))])
        bounds = np.unique(
            np.searchsorted(ends, np.arange(0, ends[-1] + BLOCK_BYTES, BLOCK_BYTES)).clip(max=len(chosen))
        )
        blocks = [[index.locations[number] for number in chosen[start:end]] for start, end in pairwise(bounds)]
        return LazyText(
            ends[bounds].tolist(), lambda block: "".join(text + self.separator for text in self.read(blocks[block]))
        )

    def excerpts(self, key: str) -> list[Excerpt]:
        """Both splits if they are short; else the first document."""
        if self.size() <= MAX_BYTES:
            return [Excerpt(name, text) for name, text in self.splits().items()]
        first = next(self.parse(), None)
        return [Excerpt("train", first[1], ends=False)] if first else []

    def _index(self) -> "DocumentIndex":
        return _build_index(self, digest(self.identity()))


@dataclass(frozen=True)
class DocumentIndex:
    """Locations, lengths in characters (N,) and 64 bits of the digests (N,) of N documents, and their characters."""

    locations: list[DocumentLocation]
    lengths: np.ndarray
    digests: np.ndarray
    alphabet: str


@lru_cache(maxsize=1)
def _build_index(corpus: Documents, identity: str) -> DocumentIndex:
    """The index of a corpus, from one pass over it; cached by its identity."""
    locations: list[DocumentLocation] = []
    lengths, digests, alphabet = array("q"), array("Q"), Alphabet()
    for location, text in corpus.documents():
        content = text.encode()
        locations.append(location)
        lengths.append(len(text))
        digests.append(int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little"))
        alphabet.add(content)
    if len(locations) > 1:
        alphabet.add(corpus.separator.encode())
    return DocumentIndex(locations, np.array(lengths, dtype=np.int64), np.array(digests), str(alphabet))


@part("jsonl")
class JsonLines(Documents):
    """A JSON object per line of the file `path`, its text under the key `field`; no document is in both splits.

    The texts are joined by `separator`; the first ones, 90% of the characters, are for training.
    """

    field: str = "text"
    """The key of the text in each JSON object."""

    def documents(self) -> Iterator[tuple[DocumentLocation, str]]:
        open_text(Path(self.path))  # raises if the file is not text
        yield from self.parse()

    def parse(self) -> Iterator[tuple[DocumentLocation, str]]:
        offset = 0
        with open_to_read(Path(self.path)) as file:
            # binary: a JSON string may contain characters that text mode treats as line ends
            for number, content in enumerate(file, start=1):
                line = _decode_line(content, offset)
                if line.strip() and (text := self._text(number, line)):
                    yield offset, text
                offset += len(content)

    def read(self, locations: list[DocumentLocation]) -> Iterator[str]:
        with open_to_read(Path(self.path)) as file:
            for offset in locations:
                assert isinstance(offset, int)
                file.seek(offset)
                try:
                    yield str(json.loads(_decode_line(file.readline(), offset))[self.field])
                except (ValueError, KeyError, IndexError, TypeError):
                    raise text_changed() from None

    def identity(self) -> dict[str, Any]:
        options = {
            key: value for key, value in self.to_stored().items() if key != "mask_rate"
        }  # the text stays the same
        return {**options, "path": "", "sha256": hash_file(Path(self.path))}

    def size(self) -> int:
        return Path(self.path).stat().st_size

    def _text(self, number: int, line: str) -> str:
        try:
            text = json.loads(line)[self.field]
            text.encode()
        except UnicodeEncodeError:
            reason = "has a lone surrogate in its text: remove it"
        except (ValueError, RecursionError) as error:
            reason = f"is not JSON ({error}): give one JSON object per line"
        except (KeyError, IndexError, TypeError, AttributeError):
            reason = f"has no text under the key {self.field!r}: name the key of the text, as in data.field=KEY"
        else:
            return str(text)
        raise ConfigError(f"{self.path} line {number} {reason}")


def _decode_line(content: bytes, offset: int) -> str:
    """A line of a file, without its newline and without a byte order mark at the start of the file."""
    line = content.decode("utf-8").removesuffix("\n")
    return line if offset else line.removeprefix("\ufeff")


@part("folder")
class Folder(Documents):
    """The text files in the folder `path` and its subfolders whose names match `files`; no document is in both splits.

    Hidden files and folders are skipped; the others are sorted by path and joined by `separator`. The first ones, 90%
    of the characters, are for training.
    """

    files: str = "*"
    """The pattern that the names of the files match, such as `*.py`."""

    def size(self) -> int:
        return sum(path.stat().st_size for path in self._paths())

    def parse(self) -> Iterator[tuple[DocumentLocation, str]]:
        paths = self._paths()
        with _suggest_file_pattern():
            for path in paths:
                yield path, open_text(path).text[:]

    def read(self, locations: list[DocumentLocation]) -> Iterator[str]:
        for path in locations:
            assert isinstance(path, Path)
            try:
                with open_to_read(path) as file:
                    content = file.read()
                yield decode_text(content)
            except (OSError, UnicodeError):
                raise text_changed() from None

    def identity(self) -> dict[str, Any]:
        paths = self._paths()
        with _suggest_file_pattern():
            content = digest([hash_text(path) for path in paths])
        return {"part": self.name, "separator": self.separator, "sha256": content}

    def _paths(self) -> list[Path]:
        """The matching files, in order. Raises ConfigError."""
        root = Path(self.path)
        if "\0" in self.path or not root.is_dir():
            raise ConfigError(f"{self.path!r} is not a folder: give the path of a folder with text files")
        paths: list[Path] = []
        for folder, subfolders, names in os.walk(root):
            subfolders[:] = [name for name in subfolders if not name.startswith(".")]
            matching = [name for name in names if not name.startswith(".") and fnmatchcase(name, self.files)]
            paths += [path for name in matching if (path := Path(folder, name)).is_file() and _has_text(path)]
        return sorted(paths, key=lambda path: path.relative_to(root).as_posix())


def _has_text(path: Path) -> bool:
    """Whether a file has more than a byte order mark."""
    size = path.stat().st_size
    return size > len(BOM_UTF8) or bool(size and hash_file(path) != hashlib.sha256(BOM_UTF8).hexdigest())


@contextmanager
def _suggest_file_pattern() -> Iterator[None]:
    """Add to a ConfigError how to skip files that are not text."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{error}; or select the folder's text files, as in data.files=*.txt") from None

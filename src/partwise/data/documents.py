"""Many texts as one corpus: JSON lines, or a folder of files."""

import hashlib
import json
import os
from abc import abstractmethod
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from partwise.config import ConfigError, digest, part
from partwise.data.corpora import Corpus, border_between
from partwise.tokenizers.texts import BLOCK, Alphabet, LongText, Text, changed, hash_file, open_text

Place = int | Path
"""Where a text stands: at an offset in a file, or in a file of its own."""


class Documents(Corpus):
    """Many texts, joined by `separator`, cut between two of them; empty ones are left out.

    The first ones, 90 % of the characters, are for training; the others validate, but for those that training holds too.
    Texts are read one at a time, and again where they are needed.
    """

    path: str
    separator: str = "\n"

    @abstractmethod
    def documents(self) -> Iterator[tuple[Place, str]]:
        """The texts in their order, none of them empty, each with the place where it stands. Raises ConfigError."""

    @abstractmethod
    def at(self, places: list[Place]) -> Iterator[str]:
        """The texts at some places, in that order. Raises ConfigError."""

    def alphabet(self) -> str:
        return self._survey().alphabet

    def splits(self) -> dict[str, Text]:
        survey = self._survey()
        border = border_between(survey.lengths, self.separator)
        fresh = border + np.flatnonzero(~np.isin(survey.digests[border:], survey.digests[:border]))
        train, val = self._joined(survey, np.arange(border)), self._joined(survey, fresh)
        val = val.part(0, max(0, len(val) - len(self.separator)))  # no text follows the last one
        if min(len(train), len(val)) < 2:
            raise ConfigError(
                f"{self.path} holds {len(survey.lengths)} texts that are not empty, and none is left to validate on: "
                "give more, and different ones"
            )
        return {"train": train, "val": val}

    def _joined(self, survey: "Survey", chosen: np.ndarray) -> LongText:
        """The chosen documents, with the separator after each of them."""
        ends = np.concatenate([[0], np.cumsum(survey.lengths[chosen] + len(self.separator))])
        borders = np.unique(np.searchsorted(ends, np.arange(0, ends[-1] + BLOCK, BLOCK)).clip(max=len(chosen)))
        blocks = [[survey.places[number] for number in chosen[first:end]] for first, end in pairwise(borders)]
        return LongText(
            ends[borders].tolist(), lambda block: "".join(text + self.separator for text in self.at(blocks[block]))
        )

    def _survey(self) -> "Survey":
        return _look_through(self, digest(self.identity()))


@dataclass(frozen=True)
class Survey:
    """What is remembered of N documents: their places, lengths in characters (N,), and 64 bits of their digests (N,)."""

    places: list[Place]
    lengths: np.ndarray
    digests: np.ndarray
    alphabet: str


@lru_cache(maxsize=1)
def _look_through(corpus: Documents, identity: str) -> Survey:
    """The documents of a corpus, read once for the content that has this identity."""
    places: list[Place] = []
    lengths, digests, alphabet = array("q"), array("Q"), Alphabet()
    for place, text in corpus.documents():
        content = text.encode()
        places.append(place)
        lengths.append(len(text))
        digests.append(int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little"))
        alphabet.add(content)
    if len(places) > 1:
        alphabet.add(corpus.separator.encode())
    return Survey(places, np.array(lengths), np.array(digests), str(alphabet))


@part("jsonl")
class JsonLines(Documents):
    """A JSON object per line of the file `path`, its text under the key `field`; training and validation share none.

    The texts are joined by `separator`; the first ones, 90 % of the characters, are for training.
    """

    field: str = "text"

    def documents(self) -> Iterator[tuple[Place, str]]:
        open_text(Path(self.path))  # complains of what is no text at all
        place = 0
        with open(self.path, "rb") as file:
            # a file of bytes: a JSON string may hold characters that end a line elsewhere
            for number, content in enumerate(file, start=1):
                line = _line(content, place)
                if line.strip() and (text := self._text(number, line)):
                    yield place, text
                place += len(content)

    def at(self, places: list[Place]) -> Iterator[str]:
        with open(self.path, "rb") as file:
            for place in places:
                assert isinstance(place, int)
                file.seek(place)
                try:
                    yield str(json.loads(_line(file.readline(), place))[self.field])
                except (ValueError, KeyError, IndexError, TypeError):
                    raise changed() from None

    def identity(self) -> dict[str, Any]:
        return {**self.to_dict(), "path": "", "sha256": hash_file(Path(self.path))}

    def _text(self, number: int, line: str) -> str:
        try:
            text = json.loads(line)[self.field]
            text.encode()
        except UnicodeEncodeError:
            reason = "half of a surrogate pair in its text: remove it"
        except (ValueError, RecursionError) as error:
            reason = f"no JSON ({error}): give one JSON object per line"
        except (KeyError, IndexError, TypeError, AttributeError):
            reason = f"no text under the key {self.field!r}: name the key that has it, as in data.field=KEY"
        else:
            return str(text)
        raise ConfigError(f"{self.path} line {number} has {reason}")


def _line(content: bytes, place: int) -> str:
    """A line of a file, without its end and without the mark that may begin the file."""
    line = content.decode("utf-8").removesuffix("\n")
    return line if place else line.removeprefix("\ufeff")


@part("folder")
class Folder(Documents):
    """The text files in the folder `path` and below whose names match `files`; training and validation share none.

    Hidden files and folders are left out; the others come in the order of their paths, joined by `separator`. The
    first ones, 90 % of the characters, are for training.
    """

    files: str = "*"

    def documents(self) -> Iterator[tuple[Place, str]]:
        paths = self._paths()
        with _naming_the_remedy():
            for path in paths:
                yield path, open_text(path).text[:]

    def at(self, places: list[Place]) -> Iterator[str]:
        for place in places:
            assert isinstance(place, Path)
            try:
                yield place.read_bytes().decode("utf-8")
            except (OSError, UnicodeDecodeError):
                raise changed() from None

    def identity(self) -> dict[str, Any]:
        paths = self._paths()
        with _naming_the_remedy():
            content = digest([hash_file(path) for path in paths])
        return {"part": self.name, "separator": self.separator, "sha256": content}

    def _paths(self) -> list[Path]:
        """The files that are wanted, in order. Raises ConfigError."""
        root = Path(self.path)
        if "\0" in self.path or not root.is_dir():
            raise ConfigError(f"{self.path!r} is no folder: give the path of a folder with text files in it")
        paths: list[Path] = []
        for folder, inner, names in os.walk(root):
            inner[:] = [name for name in inner if not name.startswith(".")]
            wanted = [name for name in names if not name.startswith(".") and fnmatchcase(name, self.files)]
            paths += [path for name in wanted if (path := Path(folder, name)).is_file() and path.stat().st_size]
        return sorted(paths, key=lambda path: path.relative_to(root).as_posix())


@contextmanager
def _naming_the_remedy() -> Iterator[None]:
    """Tell whoever has other files beside the text how to leave them out."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{error}; or choose the folder's text files, as in data.files=*.txt") from None

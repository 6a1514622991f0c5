"""Whether prepared ids are those of their source: a few excerpts of it are encoded again and compared.

The hashes beside the ids show that the files are unchanged, not who wrote them. Whole sources are not read again.
"""

import hashlib
import mmap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from partwise.config import ConfigError, digest
from partwise.files import open_to_read
from partwise.tokenizers import Text, Tokenizer, WithSpecialTokens
from partwise.tokenizers.split_points import as_string

CHUNK, WINDOW = 512, 4096
"""Characters that are compared at a time, and those around them in which safe points to split are sought."""

N_INSIDE = 4
"""Chunks that are compared between the first and the last."""

MAX_DECODED = 1 << 22
"""More ids are not decoded to hash their text."""


class Pairs(Protocol):
    """Pairs of a source and a target; a slice can be encoded alone."""

    def __len__(self) -> int: ...

    def subset(self, start: int, end: int) -> "Pairs": ...

    def encode_chunks(self, tokenizer: WithSpecialTokens) -> Iterator[tuple[np.ndarray, int, int]]: ...


@dataclass(frozen=True)
class Excerpt:
    """A text of the split `name`; it begins the split if `starts`, and is its end if `ends`."""

    name: str
    text: Text | Pairs
    starts: bool = True
    ends: bool = True


def equals_hash(splits: Iterable[np.ndarray], tokenizer: Tokenizer, sha256: str) -> bool:
    """Whether the text of all splits has a hash; False if there are too many ids to find out soon."""
    splits = list(splits)
    if sum(map(len, splits)) > MAX_DECODED:
        return False
    found = hashlib.sha256()
    for ids in splits:
        found.update(tokenizer.decode(ids).encode())
    return found.hexdigest() == sha256


def equals_source(ids: np.ndarray, path: Path, excerpt: Excerpt, tokenizer: Tokenizer, key: str) -> bool:
    """Whether the ids of a split, which are those in the file `path`, contain those of an excerpt where it lies.

    `key` determines the positions that are compared. What no tokenizer can split safely counts as equal.
    """
    text = excerpt.text
    try:
        if isinstance(text, Text):
            return _equals_text(ids, path, text, excerpt, tokenizer, key)
        assert isinstance(tokenizer, WithSpecialTokens)
        return _equals_pairs(ids, text, excerpt, tokenizer)
    except ConfigError:  # a character that the stored tokenizer does not know
        return False


def _equals_text(ids: np.ndarray, path: Path, text: Text, excerpt: Excerpt, tokenizer: Tokenizer, key: str) -> bool:
    if len(text) <= WINDOW and excerpt.starts and excerpt.ends:
        return np.array_equal(ids, tokenizer.encode(as_string(text[:])))
    first = _encoded_chunk(text, 0, tokenizer, 0) if excerpt.starts else None
    last = _encoded_chunk(text, max(0, len(text) - WINDOW), tokenizer, -1) if excerpt.ends else None
    if first is not None and not np.array_equal(ids[: len(first)], first):
        return False
    if last is not None and not np.array_equal(ids[len(ids) - len(last) :], last):
        return False
    if excerpt.starts != excerpt.ends:
        return True
    n_positions = max(1, len(text) - WINDOW)
    for number in range(N_INSIDE if excerpt.starts else 1):
        chunk = _encoded_chunk(text, int(digest([key, number])[:15], 16) % n_positions, tokenizer, 1)
        if chunk is not None and not _contains(path, chunk.astype(ids.dtype)):
            return False
    return True


def _encoded_chunk(text: Text, start: int, tokenizer: Tokenizer, number: int) -> np.ndarray | None:
    """The ids of one chunk near `start`, between two points where ids do not depend on each other; None without such."""
    chunks = list(tokenizer.chunks(text[start : start + WINDOW], CHUNK))
    return tokenizer.encode(as_string(chunks[number])) if len(chunks) > 2 else None


def _contains(path: Path, ids: np.ndarray) -> bool:
    """Whether a file of ids contains these ids anywhere."""
    content, size = ids.tobytes(), ids.dtype.itemsize
    with open_to_read(path) as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as found:
        at = found.find(content)
        while at % size and at >= 0:
            at = found.find(content, at + 1)
    return at >= 0


def _equals_pairs(ids: np.ndarray, pairs: Pairs, excerpt: Excerpt, tokenizer: WithSpecialTokens) -> bool:
    n = min(8, len(pairs))
    first, last = (
        np.concatenate([chunk for chunk, *_ in part.encode_chunks(tokenizer)])
        for part in (pairs.subset(0, n), pairs.subset(len(pairs) - n, len(pairs)))
    )
    return bool(
        (not excerpt.starts or np.array_equal(ids[: len(first)], first))
        and (not excerpt.ends or np.array_equal(ids[len(ids) - len(last) :], last))
    )

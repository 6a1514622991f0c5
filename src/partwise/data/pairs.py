"""Pairs of sequences, a source and its target: arithmetic, or a file of one's own."""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from partwise.config import ConfigError, part
from partwise.data.corpora import Corpus, MadeUp
from partwise.data.questions import split_problems
from partwise.tokenizers import Text, WithSpecials
from partwise.tokenizers.texts import open_text

PIECE = 1 << 16
"""Pairs that are encoded in one go."""


@dataclass(frozen=True)
class PairText:
    """The sources and targets of a split: texts, or for bulk data ASCII codes uint8 (N, width), one row each."""

    sources: list[str] | np.ndarray
    targets: list[str] | np.ndarray

    def __len__(self) -> int:
        return len(self.sources)

    def encoded(self, tokenizer: WithSpecials) -> Iterator[tuple[np.ndarray, int, int]]:
        """Ids laid out as source, start, target, end; the bytes of UTF-8 of the targets; and how many pairs these are."""
        for first in range(0, len(self), PIECE):
            sources, targets = self.sources[first : first + PIECE], self.targets[first : first + PIECE]
            if isinstance(sources, np.ndarray) and isinstance(targets, np.ndarray):
                N = len(sources)
                starts, ends = (np.full((N, 1), index) for index in (tokenizer.start, tokenizer.end))
                sides = [tokenizer.encode_ascii(side.reshape(-1)).reshape(N, -1) for side in (sources, targets)]
                yield np.hstack([sides[0], starts, sides[1], ends]).reshape(-1), targets.size, N
                continue
            start, end = np.array([tokenizer.start]), np.array([tokenizer.end])
            pieces: list[np.ndarray] = []
            for source, target in zip(sources, targets, strict=True):
                pieces += [tokenizer.encode(source), start, tokenizer.encode(target), end]
            yield np.concatenate(pieces), sum(len(target.encode()) for target in targets), len(sources)


@part("arithmetic_pairs")
class ArithmeticPairs(MadeUp):
    """0000753.78+0000000910 -> 87.3661000: the problems of `arithmetic` as sources, their answers as targets."""

    paired: ClassVar[bool] = True
    unit: ClassVar[str] = "pairs"

    def alphabet(self) -> str:
        return "".join(sorted(set(self.problems().alphabet) - set("$()=")))

    def splits(self) -> dict[str, Any]:
        return {name: self._cut(text) for name, text in self.made().items()}

    def _cut(self, text: np.ndarray) -> PairText:
        if not self.padding:  # lines of any length
            lines = split_problems(text.tobytes().decode("ascii"))
            halves = [line[2:-1].split(")=") for line in lines]
            return PairText([source for source, _ in halves], [target for _, target in halves])
        columns = text.reshape(-1, 3 * self.padding + 6)
        border = 2 * self.padding + 3  # `$(`, two operands and an operation between them, `)=`
        return PairText(columns[:, 2:border], columns[:, border + 2 : -1])

    def training_text(self) -> Text:
        return joined(self.splits()["train"])


@part("pairs")
class PairFile(Corpus):
    """Pairs from a file at `path`: two columns parted by a tab (.tsv), or JSON lines with keys `source` and `target`.

    The first 90 % of the pairs are for training, the rest for validation.
    """

    paired: ClassVar[bool] = True
    unit: ClassVar[str] = "pairs"

    path: str

    def alphabet(self) -> str:
        return "".join(sorted(set().union(*map(set, (text for pair in self._pairs() for text in pair)))))

    def splits(self) -> dict[str, Any]:
        pairs = self._pairs()
        border = min(len(pairs) - 1, int(0.9 * len(pairs)))
        return {
            name: PairText([source for source, _ in half], [target for _, target in half])
            for name, half in (("train", pairs[:border]), ("val", pairs[border:]))
        }

    def training_text(self) -> Text:
        return joined(self.splits()["train"])

    def identity(self) -> dict[str, Any]:
        return {"part": self.name, "sha256": hashlib.sha256(repr(self._pairs()).encode()).hexdigest()}

    def _pairs(self) -> tuple[tuple[str, str], ...]:
        return read_pairs(self.path, Path(self.path).stat().st_mtime_ns if Path(self.path).exists() else 0)


@lru_cache(maxsize=2)
def read_pairs(name: str, changed: int) -> tuple[tuple[str, str], ...]:
    """The pairs of a file. Raises ConfigError naming the first line that is none."""
    path = Path(name)
    text = open_text(path).text[:]
    pairs = []
    for number, line in enumerate(text.splitlines() if path.suffix == ".jsonl" else text.split("\n"), start=1):
        if not line.strip():
            continue
        pair = _json_pair(line) if path.suffix == ".jsonl" else line.rstrip("\r").split("\t")
        if pair is None or len(pair) != 2 or not all(pair):
            wanted = '{"source": "...", "target": "..."}' if path.suffix == ".jsonl" else "SOURCE<tab>TARGET"
            raise ConfigError(f"{path}, line {number}: {line[:60]!a} is no pair: write {wanted}, neither of them empty")
        pairs.append((pair[0], pair[1]))
    if len(pairs) < 2:
        raise ConfigError(f"{path} holds {len(pairs)} pairs, too few to split: give at least 2")
    return tuple(pairs)


def _json_pair(line: str) -> list[str] | None:
    try:
        value = json.loads(line)
        pair = [value["source"], value["target"]]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return pair if all(isinstance(text, str) for text in pair) else None


def joined(pairs: PairText) -> Text:
    """All texts of some pairs, line by line: for tokenizers that learn."""
    if isinstance(pairs.sources, np.ndarray) and isinstance(pairs.targets, np.ndarray):
        ends = np.full((len(pairs), 1), ord("\n"), dtype=np.uint8)
        return np.hstack([pairs.sources, ends, pairs.targets, ends]).reshape(-1)
    return "\n".join(text for pair in zip(pairs.sources, pairs.targets, strict=True) for text in pair)

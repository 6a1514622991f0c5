"""Pairs of sequences, a source and its target: arithmetic problems, or a file."""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from partwise.config import ConfigError, part
from partwise.data.corpora import Corpus, SyntheticProblems
from partwise.data.excerpts import Excerpt
from partwise.data.problems import split_problems
from partwise.tokenizers import Text, WithSpecialTokens
from partwise.tokenizers.text import open_text

PAIRS_PER_CHUNK = 1 << 16
"""Pairs that are encoded at a time."""


@dataclass(frozen=True)
class TextPairs:
    """The sources and targets of a split: strings, or for bulk data ASCII codes uint8 (N, width), one row each."""

    sources: list[str] | np.ndarray
    targets: list[str] | np.ndarray

    def __len__(self) -> int:
        return len(self.sources)

    def subset(self, start: int, end: int) -> "TextPairs":
        return TextPairs(self.sources[start:end], self.targets[start:end])

    def encode_chunks(self, tokenizer: WithSpecialTokens) -> Iterator[tuple[np.ndarray, int, int]]:
        """Ids (source, BOS, target, EOS for each pair), the UTF-8 bytes of the targets, and the number of pairs."""
        for first in range(0, len(self), PAIRS_PER_CHUNK):
            part = self.subset(first, first + PAIRS_PER_CHUNK)
            sources, targets = part.sources, part.targets
            if isinstance(sources, np.ndarray) and isinstance(targets, np.ndarray):
                N = len(sources)
                sides = [tokenizer.encode_ascii(side.reshape(-1)) for side in (sources, targets)]
                if all(len(ids) == side.size for ids, side in zip(sides, (sources, targets), strict=True)):
                    bos, eos = (np.full((N, 1), index) for index in (tokenizer.bos_id, tokenizer.eos_id))
                    rows = [sides[0].reshape(N, -1), bos, sides[1].reshape(N, -1), eos]
                    yield np.hstack(rows).reshape(-1), targets.size, N
                    continue
                sources, targets = ([row.tobytes().decode("ascii") for row in side] for side in (sources, targets))
            bos, eos = np.array([tokenizer.bos_id]), np.array([tokenizer.eos_id])
            parts: list[np.ndarray] = []
            for source, target in zip(sources, targets, strict=True):
                parts += [tokenizer.encode(source), bos, tokenizer.encode(target), eos]
            yield np.concatenate(parts), sum(len(target.encode()) for target in targets), len(sources)


@part("arithmetic_pairs")
class ArithmeticPairs(SyntheticProblems):
    """0000753.78+0000000910 -> 87.3661000: the problems of `arithmetic` as sources, their answers as targets."""

    paired: ClassVar[bool] = True
    unit: ClassVar[str] = "pairs"

    def alphabet(self) -> str:
        return "".join(sorted(set(self.problem_spec().alphabet) - set("$()=")))

    def splits(self) -> dict[str, Any]:
        return {name: self._to_pairs(text) for name, text in self.generate_splits().items()}

    def excerpts(self, key: str) -> list[Excerpt]:
        found = [(each, each.text) for each in super().excerpts(key)]
        return [replace(each, text=self._to_pairs(text)) for each, text in found if isinstance(text, np.ndarray)]

    def _to_pairs(self, text: np.ndarray) -> TextPairs:
        if not self.padding:  # lines of varying length
            lines = split_problems(text.tobytes().decode("ascii"))
            sides = [line[2:-1].split(")=") for line in lines]
            return TextPairs([source for source, _ in sides], [target for _, target in sides])
        columns = text.reshape(-1, 3 * self.padding + 6)
        end = 2 * self.padding + 3  # `$(`, two operands, and the operator between them
        return TextPairs(columns[:, 2:end], columns[:, end + 2 : -1])

    def training_text(self) -> Text:
        return join_pairs(self.splits()["train"])


@part("pairs")
class PairFile(Corpus):
    """Pairs from a file at `path`: two columns separated by a tab (.tsv), or JSON lines with keys `source` and `target`.

    The first 90% of the pairs are for training, the rest for validation.
    """

    paired: ClassVar[bool] = True
    unit: ClassVar[str] = "pairs"

    path: str
    """The file with the pairs, `.tsv` or `.jsonl`."""

    def alphabet(self) -> str:
        return "".join(sorted(set().union(*map(set, (text for pair in self._pairs() for text in pair)))))

    def splits(self) -> dict[str, Any]:
        pairs = self._pairs()
        n_train = min(len(pairs) - 1, int(0.9 * len(pairs)))
        return {
            name: TextPairs([source for source, _ in split], [target for _, target in split])
            for name, split in (("train", pairs[:n_train]), ("val", pairs[n_train:]))
        }

    def training_text(self) -> Text:
        return join_pairs(self.splits()["train"])

    def identity(self) -> dict[str, Any]:
        return {"part": self.name, "sha256": hashlib.sha256(repr(self._pairs()).encode()).hexdigest()}

    def excerpts(self, key: str) -> list[Excerpt]:
        return [Excerpt(name, pairs) for name, pairs in self.splits().items()]

    def _pairs(self) -> tuple[tuple[str, str], ...]:
        return read_pairs(self.path, Path(self.path).stat().st_mtime_ns if Path(self.path).exists() else 0)


@lru_cache(maxsize=2)
def read_pairs(name: str, modified_ns: int) -> tuple[tuple[str, str], ...]:
    """The pairs of a file, cached by its time of modification. Raises ConfigError naming the first invalid line."""
    path = Path(name)
    text = open_text(path).text[:]
    pairs = []
    for number, line in enumerate(text.splitlines() if path.suffix == ".jsonl" else text.split("\n"), start=1):
        if not line.strip():
            continue
        line = line.rstrip("\r")
        pair = _json_pair(line) if path.suffix == ".jsonl" else line.split("\t")
        if pair is None or len(pair) != 2 or not all(pair):
            expected = '{"source": "...", "target": "..."}' if path.suffix == ".jsonl" else "SOURCE<tab>TARGET"
            raise ConfigError(
                f"{path}, line {number}: {line[:60]!a} is not a pair: write {expected}, neither of them empty"
            )
        pairs.append((pair[0], pair[1]))
    if len(pairs) < 2:
        raise ConfigError(f"{path} has {len(pairs)} pairs: must have at least 2 to be split")
    return tuple(pairs)


def _json_pair(line: str) -> list[str] | None:
    try:
        value = json.loads(line)
        pair = [value["source"], value["target"]]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return pair if all(isinstance(text, str) for text in pair) else None


def join_pairs(pairs: TextPairs) -> Text:
    """All sources and targets, one per line, for training tokenizers."""
    if isinstance(pairs.sources, np.ndarray) and isinstance(pairs.targets, np.ndarray):
        newlines = np.full((len(pairs), 1), ord("\n"), dtype=np.uint8)
        return np.hstack([pairs.sources, newlines, pairs.targets, newlines]).reshape(-1)
    return "\n".join(text for pair in zip(pairs.sources, pairs.targets, strict=True) for text in pair)

"""What a split offers to learn from and to be scored on: windows of one long text, or pairs of sequences."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol, Self

import numpy as np

from partwise.config import ConfigError
from partwise.data.batches import batch, random_starts, windows
from partwise.data.corpora import Arithmetic, MadeUp
from partwise.data.questions import split_problems
from partwise.data.shards import Dataset
from partwise.tokenizers import ByteTokenizer, CharacterTokenizer, Tokenizer, WithSpecials

IGNORED = -100
"""A target that is padding: no loss is taken there."""

SCORED_TOKENS = 2048
"""Tokens per batch of an evaluation; larger batches leave the cache, and are slower on a CPU."""


@dataclass(frozen=True)
class Batch:
    """What a model sees at once, int64: `inputs` (B, T), `targets` (B, T) the tokens to predict, `source` (B, M)."""

    inputs: np.ndarray
    targets: np.ndarray
    source: np.ndarray | None = None

    @property
    def count(self) -> int:
        """How many targets are scored."""
        return int((self.targets != IGNORED).sum())

    def chunks(self, number: int) -> list["Batch"]:
        """As many micro-batches of equal size."""
        sources = [None] * number if self.source is None else np.split(self.source, number)
        pieces = zip(np.split(self.inputs, number), np.split(self.targets, number), sources, strict=True)
        return [Batch(*piece) for piece in pieces]


class Examples(Protocol):
    """A split, as a model learns from it."""

    def batch(self, key: str, seed: int, step: int, size: int) -> Batch:
        """The batch of one update: a pure function of `key` (the data's name), `seed` and `step`."""
        ...

    def scored(self) -> Iterator[Batch]:
        """Fixed batches in which every token of the split that can be predicted is a target exactly once."""
        ...

    def tokens_in(self, size: int) -> int:
        """How many targets a batch of that size has, on average."""
        ...

    def epochs(self, tokens: int) -> float:
        """How often so many targets go through the split."""
        ...

    def as_much_as(self, other: Self) -> Self:
        """A beginning of this split, of the size of another."""
        ...


class Windows:
    """Windows of `context` tokens of ids (N,); the first token of the text is never a target."""

    def __init__(self, ids: np.ndarray, context: int) -> None:
        self.ids, self.context = ids, context

    def batch(self, key: str, seed: int, step: int, size: int) -> Batch:
        rows = batch(self.ids, key=key, seed=seed, step=step, size=size, context=self.context)
        return Batch(rows[:, :-1], rows[:, 1:])

    def scored(self) -> Iterator[Batch]:
        spans = list(windows(len(self.ids), self.context))
        rows = max(1, SCORED_TOKENS // self.context)
        whole = [span for span in spans if span[1] == self.context]
        groups = [whole[first : first + rows] for first in range(0, len(whole), rows)]
        for group in [*groups, *([span] for span in spans[len(whole) :])]:
            ids = np.stack([self.ids[start : start + length + 1] for start, length in group]).astype(np.int64)
            yield Batch(ids[:, :-1], ids[:, 1:])

    def tokens_in(self, size: int) -> int:
        return size * self.context

    def epochs(self, tokens: int) -> float:
        return tokens / len(self.ids)

    def as_much_as(self, other: "Windows") -> "Windows":
        return Windows(self.ids[: len(other.ids)], self.context)


class ProblemWindows:
    """Windows of a text of problems such as `$(1+1)=2$`, one id per character, as training may want them.

    `aligned`: each begins at the first `$` of a random problem and holds as many whole problems as fit `context` + 1
    ids; shorter rows are filled up behind. `answers_only`: only what stands behind an `=`, up to the `$` that closes
    its problem, is a target, and is scored.
    """

    def __init__(
        self, ids: np.ndarray, context: int, dollar: int, equals: int, longest: int, aligned: bool, answers_only: bool
    ) -> None:
        self.ids, self.context, self.dollar, self.equals, self.longest = ids, context, dollar, equals, longest
        self.aligned, self.answers_only = aligned, answers_only
        self.plain = Windows(ids, context)

    @cached_property
    def borders(self) -> tuple[np.ndarray, np.ndarray]:
        """Where each whole problem begins, and where it ends: the places of its two `$`."""
        marks = np.flatnonzero(np.asarray(self.ids) == self.dollar)
        whole = len(marks) // 2 * 2  # the last problem may be cut
        return marks[:whole:2], marks[1:whole:2]

    def batch(self, key: str, seed: int, step: int, size: int) -> Batch:
        return self.rows(*self.draw(key, seed, step, size))

    def rows(self, starts: np.ndarray, lengths: np.ndarray) -> Batch:
        """Stretches of the text, filled up behind."""
        # a row's first ids may belong to an answer whose `=` stands before it: it is read from further on the left
        before = 0 if self.aligned or not self.answers_only else self.longest
        places = (starts - before)[:, None] + np.arange(before + int(lengths.max()))
        inside = (places >= 0) & (places < (starts + lengths)[:, None])
        rows = np.where(inside, self.ids[np.where(inside, places, 0)].astype(np.int64), self.dollar)
        scored = inside & in_answers(rows, self.dollar, self.equals) if self.answers_only else inside
        return Batch(rows[:, before:-1], np.where(scored, rows, IGNORED)[:, before + 1 :])

    def draw(self, key: str, seed: int, step: int, size: int) -> tuple[np.ndarray, np.ndarray]:
        """Where each row of a batch begins, and of how many ids it is."""
        if not self.aligned:
            starts = random_starts(len(self.ids) - self.context, key, seed, step, size)
            return starts, np.full(size, self.context + 1)
        begins, ends = self.borders
        starts = begins[random_starts(len(begins), key, seed, step, size)]
        last = np.searchsorted(ends, starts + self.context, side="right") - 1
        return starts, ends[last] + 1 - starts

    def scored(self) -> Iterator[Batch]:
        """Of any text, every token; of answers alone each of them once, behind its own question."""
        if not self.answers_only:
            yield from self.plain.scored()
            return
        starts, lengths = self.whole_problems()
        size = max(1, SCORED_TOKENS // self.context)
        for first in range(0, len(starts), size):
            yield self.rows(starts[first : first + size], lengths[first : first + size])

    def whole_problems(self) -> tuple[np.ndarray, np.ndarray]:
        """Where each row of an evaluation begins, and of how many ids it is: as many whole problems as fit `context` + 1.

        Of a problem that is longer than that, its end.
        """
        begins, ends = self.borders
        firsts, lasts = [], []
        problem = 0
        while problem < len(begins):
            last = int(np.searchsorted(ends, begins[problem] + self.context, side="right")) - 1
            lasts.append(max(last, problem))
            firsts.append(problem)
            problem = lasts[-1] + 1
        end = ends[np.array(lasts, dtype=np.int64)] + 1
        starts = np.maximum(begins[np.array(firsts, dtype=np.int64)], end - self.context - 1)
        return starts, end - starts

    def answers_alone(self, limit: int | None = None) -> np.ndarray:
        """The ids behind each `=`, up to the `$` that closes its problem, of the first `limit` ids of the text."""
        ids = np.asarray(self.ids[:limit])
        return ids[in_answers(ids[None], self.dollar, self.equals)[0]]

    @cached_property
    def per_row(self) -> tuple[float, float]:
        """How many targets, and how many ids, a row has on average, of a thousand rows."""
        sample = ("a sample", 0, 0, 1000)
        return self.batch(*sample).count / 1000, float(self.draw(*sample)[1].mean())

    def tokens_in(self, size: int) -> int:
        return round(size * self.per_row[0])

    def epochs(self, tokens: int) -> float:
        targets, ids = self.per_row
        return tokens / targets * ids / len(self.ids)

    def as_much_as(self, other: "ProblemWindows") -> "ProblemWindows":
        ids = self.ids[: len(other.ids)]
        return ProblemWindows(
            ids, self.context, self.dollar, self.equals, self.longest, self.aligned, self.answers_only
        )


def in_answers(rows: np.ndarray, dollar: int, equals: int) -> np.ndarray:
    """Which ids of rows (B, T) stand behind an `=`, up to and with the next `$`; no row begins within an answer."""
    order = np.arange(1, rows.shape[1] + 1)
    marks = np.where(rows == equals, 2 * order + 1, np.where(rows == dollar, 2 * order, 0))
    latest = np.maximum.accumulate(marks, axis=1)  # odd behind `=`, even behind `$`
    inside = np.zeros(rows.shape, dtype=bool)
    inside[:, 1:] = latest[:, :-1] % 2 == 1
    return inside


class Pairs:
    """Pairs in ids (N,) laid out as source, `start`, target, `end`, one after the other.

    The decoder reads `start` and the target, and predicts the target and `end`; shorter rows are filled with `padding`.
    Raises ConfigError for pairs that do not fit `max_len`.
    """

    def __init__(self, ids: np.ndarray, padding: int, start: int, end: int, max_len: int) -> None:
        self.ids, self.padding, self.start, self.end, self.max_len = ids, padding, start, end, max_len
        self.starts = np.flatnonzero(np.asarray(ids) == start)
        self.ends = np.flatnonzero(np.asarray(ids) == end)
        if len(self.starts) != len(self.ends) or not len(self.ends):
            raise ConfigError(f"{len(self.starts)} sources do not line up with {len(self.ends)} targets: prepare anew")
        self.begins = np.concatenate(([0], self.ends[:-1] + 1))
        self.sources, self.targets = self.starts - self.begins, self.ends - self.starts  # lengths; `end` counts
        for kind, lengths in (("source", self.sources), ("target", self.targets)):
            longest = int(lengths.argmax())
            if lengths[longest] > max_len:
                raise ConfigError(
                    f"the {kind} of pair {longest + 1} has {lengths[longest]} tokens, more than max_len={max_len}: "
                    "raise max_len, or leave long pairs out"
                )

    def __len__(self) -> int:
        return len(self.ends)

    def batch(self, key: str, seed: int, step: int, size: int) -> Batch:
        return self.take(random_starts(len(self), key, seed, step, size))

    def scored(self) -> Iterator[Batch]:
        order = np.lexsort((np.arange(len(self)), self.sources, self.targets))  # alike beside alike: little padding
        first = 0
        while first < len(order):
            longest = int(max(self.targets[order[first]], self.sources[order[first]]))
            rows = order[first : first + max(1, SCORED_TOKENS // longest)]
            yield self.take(rows)
            first += len(rows)

    def tokens_in(self, size: int) -> int:
        return round(size * float(self.targets.mean()))

    def epochs(self, tokens: int) -> float:
        return tokens / int(self.targets.sum())

    def as_much_as(self, other: "Pairs") -> "Pairs":
        ids = self.ids[: self.ends[min(len(self), len(other)) - 1] + 1]
        return Pairs(ids, self.padding, self.start, self.end, self.max_len)

    def targets_alone(self) -> np.ndarray:
        """The ids without the sources."""
        return np.concatenate([self.ids[start : end + 1] for start, end in zip(self.starts, self.ends, strict=True)])

    def texts(self, tokenizer: Tokenizer, limit: int | None = None) -> list[tuple[str, str]]:
        """The first pairs as they were written."""
        places = list(zip(self.begins, self.starts, self.ends, strict=True))[:limit]
        return [
            (tokenizer.decode(self.ids[begin:start]), tokenizer.decode(self.ids[start:end]))
            for begin, start, end in places
        ]

    def take(self, rows: np.ndarray) -> Batch:
        """These pairs, filled up to the longest source and the longest target among them."""
        starts, ends = self.starts[rows], self.ends[rows]
        source = self.side_by_side(self.begins[rows], starts, self.padding)
        inputs = self.side_by_side(starts, ends, self.padding)
        targets = self.side_by_side(starts + 1, ends + 1, IGNORED)
        return Batch(inputs, targets, source)

    def side_by_side(self, first: np.ndarray, end: np.ndarray, filler: int) -> np.ndarray:
        """The stretches [first, end) of the ids as rows (B, longest), filled up behind."""
        places = first[:, None] + np.arange(int((end - first).max()))
        inside = places < end[:, None]
        ids = self.ids[np.where(inside, places, 0)].astype(np.int64)  # a filler may be below 0, what is stored not
        return np.where(inside, ids, filler)


def examples(dataset: Dataset, split: str, context: int, max_len: int) -> Examples:
    """What a split of a data set offers to a model. Raises ConfigError."""
    ids, tokenizer, corpus = dataset.split(split), dataset.tokenizer, dataset.corpus
    if isinstance(tokenizer, WithSpecials):
        return Pairs(ids, tokenizer.pad, tokenizer.start, tokenizer.end, max_len)
    if isinstance(corpus, Arithmetic) and (corpus.answers_only or (corpus.aligned and split == "train")):
        return problem_windows(ids, context, tokenizer, corpus)
    return Windows(ids, context)


def problem_windows(ids: np.ndarray, context: int, tokenizer: Tokenizer, corpus: Arithmetic) -> ProblemWindows:
    """Windows as data.aligned and data.loss_on want them. Raises ConfigError where problems cannot be told or do not fit."""
    longest = corpus.longest_line()
    if not isinstance(tokenizer, CharacterTokenizer | ByteTokenizer):
        raise ConfigError(
            "data.aligned and data.loss_on=answer find problems by their characters: set tokenizer=characters"
        )
    if corpus.aligned and context + 1 < longest:
        raise ConfigError(
            f"train.context={context} is too short for data.aligned=true: a problem has up to {longest} characters, so "
            f"set max_len, and train.context, to at least {longest - 1}"
        )
    dollar, equals = tokenizer.encode("$=").tolist()
    return ProblemWindows(ids, context, dollar, equals, longest, corpus.aligned, corpus.answers_only)


def problem_lines(dataset: Dataset, split: str, limit: int | None = None) -> list[str]:
    """Arithmetic problems as lines such as `$(1+1)=2$`, whether they are stored as text or as pairs."""
    tokenizer, ids = dataset.tokenizer, dataset.split(split)
    if not isinstance(tokenizer, WithSpecials):
        if limit is None:
            return split_problems(tokenizer.decode(ids))
        assert isinstance(dataset.corpus, MadeUp)
        text = tokenizer.decode(ids[: (limit + 1) * dataset.corpus.longest_line()])
        return split_problems(text[: text.rfind("$$") + 1] or text)[:limit]  # the last one may be cut
    pairs = Pairs(ids, tokenizer.pad, tokenizer.start, tokenizer.end, len(ids))
    return [f"$({source})={target}$" for source, target in pairs.texts(tokenizer, limit)]

"""Training and evaluation batches of a split: windows of one long text, or pairs of sequences."""

from collections.abc import Iterator
from functools import cached_property

import numpy as np

from partwise.config import ConfigError
from partwise.data.batches import (
    EVAL_BATCH_TOKENS,
    IGNORE_INDEX,
    Batch,
    Examples,
    eval_windows,
    random_indices,
    sample_windows,
)
from partwise.data.corpora import Arithmetic, SyntheticProblems
from partwise.data.masking import MaskedWindows
from partwise.data.problems import split_problems
from partwise.data.shards import Dataset
from partwise.tokenizers import ByteTokenizer, CharacterTokenizer, Tokenizer, WithSpecialTokens


class Windows:
    """Windows of `seq_len` tokens of ids (N,); the first token of the text is never a target."""

    def __init__(self, ids: np.ndarray, seq_len: int) -> None:
        self.ids, self.seq_len = ids, seq_len

    def batch(self, key: str, seed: int, step: int, size: int) -> Batch:
        rows = sample_windows(self.ids, key=key, seed=seed, step=step, batch_size=size, seq_len=self.seq_len)
        return Batch(rows[:, :-1], rows[:, 1:])

    def eval_batches(self) -> Iterator[Batch]:
        windows = list(eval_windows(len(self.ids), self.seq_len))
        size = max(1, EVAL_BATCH_TOKENS // self.seq_len)
        full = [window for window in windows if window[1] == self.seq_len]
        groups = [full[first : first + size] for first in range(0, len(full), size)]
        for group in [*groups, *([window] for window in windows[len(full) :])]:
            ids = np.stack([self.ids[start : start + length + 1] for start, length in group]).astype(np.int64)
            yield Batch(ids[:, :-1], ids[:, 1:])

    def targets_per_batch(self, size: int) -> int:
        return size * self.seq_len

    def epochs(self, n_targets: int) -> float:
        return n_targets / len(self.ids)

    def truncate_like(self, other: "Windows") -> "Windows":
        return Windows(self.ids[: len(other.ids)], self.seq_len)


class ProblemWindows:
    """Windows of a text of problems such as `$(1+1)=2$`, one id per character.

    `aligned`: each window begins at the first `$` of a random problem and contains as many whole problems as fit
    `seq_len` + 1 ids; shorter rows are padded on the right. `answers_only`: only the ids after an `=`, through the `$` that
    ends the problem, are targets and scored. `max_length` is that of the longest problem.
    """

    def __init__(
        self,
        ids: np.ndarray,
        seq_len: int,
        dollar_id: int,
        equals_id: int,
        max_length: int,
        aligned: bool,
        answers_only: bool,
    ) -> None:
        self.ids, self.seq_len, self.dollar_id, self.equals_id = ids, seq_len, dollar_id, equals_id
        self.max_length = max_length
        self.aligned, self.answers_only = aligned, answers_only
        self.windows = Windows(ids, seq_len)

    @cached_property
    def problem_bounds(self) -> tuple[np.ndarray, np.ndarray]:
        """The indices of the first and the last `$` of each complete problem."""
        dollars = np.flatnonzero(np.asarray(self.ids) == self.dollar_id)
        complete = len(dollars) // 2 * 2  # the last problem may be cut off
        return dollars[:complete:2], dollars[1:complete:2]

    def batch(self, key: str, seed: int, step: int, size: int) -> Batch:
        return self.collate(*self.sample_spans(key, seed, step, size))

    def collate(self, starts: np.ndarray, lengths: np.ndarray) -> Batch:
        """Spans of the text as rows, padded on the right."""
        # the `=` of a row's first answer may precede the row, so the text to its left is needed to find the answer
        left = 0 if self.aligned or not self.answers_only else self.max_length
        indices = (starts - left)[:, None] + np.arange(left + int(lengths.max()))
        inside = (indices >= 0) & (indices < (starts + lengths)[:, None])
        rows = np.where(inside, self.ids[np.where(inside, indices, 0)].astype(np.int64), self.dollar_id)
        scored = inside & answer_mask(rows, self.dollar_id, self.equals_id) if self.answers_only else inside
        return Batch(rows[:, left:-1], np.where(scored, rows, IGNORE_INDEX)[:, left + 1 :])

    def sample_spans(self, key: str, seed: int, step: int, size: int) -> tuple[np.ndarray, np.ndarray]:
        """The start and length, in ids, of each row of a batch."""
        if not self.aligned:
            starts = random_indices(len(self.ids) - self.seq_len, key, seed, step, size)
            return starts, np.full(size, self.seq_len + 1)
        begins, ends = self.problem_bounds
        starts = begins[random_indices(len(begins), key, seed, step, size)]
        last = np.searchsorted(ends, starts + self.seq_len, side="right") - 1
        return starts, ends[last] + 1 - starts

    def eval_batches(self) -> Iterator[Batch]:
        """Every token is a target once, or with `answers_only` every token of the answers, after its own problem."""
        if not self.answers_only:
            yield from self.windows.eval_batches()
            return
        starts, lengths = self.eval_spans()
        size = max(1, EVAL_BATCH_TOKENS // self.seq_len)
        for first in range(0, len(starts), size):
            yield self.collate(starts[first : first + size], lengths[first : first + size])

    def eval_spans(self) -> tuple[np.ndarray, np.ndarray]:
        """The start and length of each evaluation row: as many whole problems as fit `seq_len` + 1 ids.

        A longer problem is truncated to its last `seq_len` + 1 ids.
        """
        begins, ends = self.problem_bounds
        firsts, lasts = [], []
        problem = 0
        while problem < len(begins):
            last = int(np.searchsorted(ends, begins[problem] + self.seq_len, side="right")) - 1
            lasts.append(max(last, problem))
            firsts.append(problem)
            problem = lasts[-1] + 1
        end = ends[np.array(lasts, dtype=np.int64)] + 1
        starts = np.maximum(begins[np.array(firsts, dtype=np.int64)], end - self.seq_len - 1)
        return starts, end - starts

    def answer_ids(self, limit: int | None = None) -> np.ndarray:
        """The ids after each `=`, through the `$` that ends its problem, among the first `limit` ids of the text."""
        ids = np.asarray(self.ids[:limit])
        return ids[answer_mask(ids[None], self.dollar_id, self.equals_id)[0]]

    @cached_property
    def mean_per_row(self) -> tuple[float, float]:
        """The average number of targets and of ids in a row, over a thousand rows."""
        sample = ("a sample", 0, 0, 1000)
        return self.batch(*sample).n_targets / 1000, float(self.sample_spans(*sample)[1].mean())

    def targets_per_batch(self, size: int) -> int:
        return round(size * self.mean_per_row[0])

    def epochs(self, n_targets: int) -> float:
        targets, ids = self.mean_per_row
        return n_targets / targets * ids / len(self.ids)

    def truncate_like(self, other: "ProblemWindows") -> "ProblemWindows":
        ids = self.ids[: len(other.ids)]
        return ProblemWindows(
            ids, self.seq_len, self.dollar_id, self.equals_id, self.max_length, self.aligned, self.answers_only
        )


def answer_mask(rows: np.ndarray, dollar_id: int, equals_id: int) -> np.ndarray:
    """Which ids of rows (B, T) follow an `=`, through the next `$`; no row may begin within an answer."""
    order = np.arange(1, rows.shape[1] + 1)
    marks = np.where(rows == equals_id, 2 * order + 1, np.where(rows == dollar_id, 2 * order, 0))
    latest = np.maximum.accumulate(marks, axis=1)  # odd after `=`, even after `$`
    inside = np.zeros(rows.shape, dtype=bool)
    inside[:, 1:] = latest[:, :-1] % 2 == 1
    return inside


class SequencePairs:
    """Pairs stored in ids (N,) as source, BOS, target, EOS, one after another.

    The decoder reads BOS and the target, and predicts the target and EOS; shorter rows are padded with `pad_id`.
    Raises ConfigError for pairs longer than `context_length`.
    """

    def __init__(self, ids: np.ndarray, pad_id: int, bos_id: int, eos_id: int, context_length: int) -> None:
        self.ids, self.pad_id, self.bos_id, self.eos_id, self.context_length = (
            ids,
            pad_id,
            bos_id,
            eos_id,
            context_length,
        )
        self.bos_indices = np.flatnonzero(np.asarray(ids) == bos_id)
        self.eos_indices = np.flatnonzero(np.asarray(ids) == eos_id)
        if len(self.bos_indices) != len(self.eos_indices) or not len(self.eos_indices):
            raise ConfigError(
                f"{len(self.bos_indices)} sources do not match {len(self.eos_indices)} targets: prepare the data again"
            )
        self.starts = np.concatenate(([0], self.eos_indices[:-1] + 1))
        self.source_lengths = self.bos_indices - self.starts
        self.target_lengths = self.eos_indices - self.bos_indices  # including EOS
        for kind, lengths in (("source", self.source_lengths), ("target", self.target_lengths)):
            longest = int(lengths.argmax())
            if lengths[longest] > context_length:
                raise ConfigError(
                    f"the {kind} of pair {longest + 1} has {lengths[longest]} tokens, more than context_length="
                    f"{context_length}: raise context_length, or remove long pairs"
                )

    def __len__(self) -> int:
        return len(self.eos_indices)

    def batch(self, key: str, seed: int, step: int, size: int) -> Batch:
        return self.collate(random_indices(len(self), key, seed, step, size))

    def eval_batches(self) -> Iterator[Batch]:
        # sorted by length, for little padding
        order = np.lexsort((np.arange(len(self)), self.source_lengths, self.target_lengths))
        first = 0
        while first < len(order):
            longest = int(max(self.target_lengths[order[first]], self.source_lengths[order[first]]))
            pairs = order[first : first + max(1, EVAL_BATCH_TOKENS // longest)]
            yield self.collate(pairs)
            first += len(pairs)

    def targets_per_batch(self, size: int) -> int:
        return round(size * float(self.target_lengths.mean()))

    def epochs(self, n_targets: int) -> float:
        return n_targets / int(self.target_lengths.sum())

    def truncate_like(self, other: "SequencePairs") -> "SequencePairs":
        ids = self.ids[: self.eos_indices[min(len(self), len(other)) - 1] + 1]
        return SequencePairs(ids, self.pad_id, self.bos_id, self.eos_id, self.context_length)

    def target_ids(self) -> np.ndarray:
        """The ids without the sources: BOS, target and EOS of each pair."""
        return np.concatenate(
            [self.ids[bos : eos + 1] for bos, eos in zip(self.bos_indices, self.eos_indices, strict=True)]
        )

    def texts(self, tokenizer: Tokenizer, limit: int | None = None) -> list[tuple[str, str]]:
        """The first `limit` pairs as text, default: all."""
        bounds = list(zip(self.starts, self.bos_indices, self.eos_indices, strict=True))[:limit]
        return [
            (tokenizer.decode(self.ids[start:bos]), tokenizer.decode(self.ids[bos:eos])) for start, bos, eos in bounds
        ]

    def collate(self, pairs: np.ndarray) -> Batch:
        """The pairs with these indices, padded to their longest source and longest target."""
        bos, eos = self.bos_indices[pairs], self.eos_indices[pairs]
        source = self.pad_spans(self.starts[pairs], bos, self.pad_id)
        inputs = self.pad_spans(bos, eos, self.pad_id)
        targets = self.pad_spans(bos + 1, eos + 1, IGNORE_INDEX)
        return Batch(inputs, targets, source)

    def pad_spans(self, starts: np.ndarray, ends: np.ndarray, value: int) -> np.ndarray:
        """The spans [start, end) of the ids as rows (B, longest), padded on the right with `value`."""
        indices = starts[:, None] + np.arange(int((ends - starts).max()))
        inside = indices < ends[:, None]
        ids = self.ids[np.where(inside, indices, 0)].astype(
            np.int64
        )  # `value` may be negative, stored ids are unsigned
        return np.where(inside, ids, value)


def build_examples(dataset: Dataset, split: str, seq_len: int, context_length: int) -> Examples:
    """The examples of a split. Raises ConfigError."""
    ids, tokenizer, corpus = dataset.split(split), dataset.tokenizer, dataset.corpus
    if isinstance(tokenizer, WithSpecialTokens):
        return SequencePairs(ids, tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id, context_length)
    if isinstance(corpus, Arithmetic) and (corpus.answers_only or (corpus.aligned and split == "train")):
        return build_problem_windows(ids, seq_len, tokenizer, corpus)
    if corpus.masked_share:
        return MaskedWindows(ids, seq_len, corpus.masked_share, tokenizer.vocab_size, dataset.hash)
    return Windows(ids, seq_len)


def build_problem_windows(ids: np.ndarray, seq_len: int, tokenizer: Tokenizer, corpus: Arithmetic) -> ProblemWindows:
    """Windows for data.aligned and data.answer_only_loss. Raises ConfigError for other tokenizers or a short `seq_len`."""
    max_length = corpus.max_line_length()
    if not isinstance(tokenizer, CharacterTokenizer | ByteTokenizer):
        raise ConfigError(
            "data.aligned and data.answer_only_loss=true find problems by their characters: set tokenizer=characters"
        )
    if corpus.aligned and seq_len + 1 < max_length:
        raise ConfigError(
            f"train.seq_len={seq_len} is too short for data.aligned=true: a problem has up to {max_length} characters, so "
            f"set context_length, and train.seq_len, to at least {max_length - 1}"
        )
    dollar_id, equals_id = tokenizer.encode("$=").tolist()
    return ProblemWindows(ids, seq_len, dollar_id, equals_id, max_length, corpus.aligned, corpus.answers_only)


def problem_lines(dataset: Dataset, split: str, limit: int | None = None) -> list[str]:
    """Arithmetic problems as lines such as `$(1+1)=2$`, whether stored as text or as pairs."""
    tokenizer, ids = dataset.tokenizer, dataset.split(split)
    if not isinstance(tokenizer, WithSpecialTokens):
        if limit is None:
            return split_problems(tokenizer.decode(ids))
        assert isinstance(dataset.corpus, SyntheticProblems)
        text = tokenizer.decode(ids[: (limit + 2) * dataset.corpus.max_line_length()])
        text = text[max(0, text.find("$(")) :]  # a tuning split may begin within a problem
        return split_problems(text[: text.rfind("$$") + 1] or text)[:limit]  # the last problem may be cut off
    pairs = SequencePairs(ids, tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id, len(ids))
    return [f"$({source})={target}$" for source, target in pairs.texts(tokenizer, limit)]

"""Windows of a text with some of their tokens hidden, for an encoder that sees both sides of each."""

from collections.abc import Iterator

import numpy as np

from partwise.data.batches import EVAL_BATCH_TOKENS, IGNORE_INDEX, Batch, eval_windows, random_words, sample_windows

HIDDEN_OF_10, REPLACED_OF_10 = 8, 1
"""Of ten chosen tokens, eight become the mask, one a random token, and one is shown. Devlin et al. 2018,
arXiv:1810.04805."""


class MaskedWindows:
    """Windows of `seq_len` tokens of ids (N,): the same share of tokens in each is chosen at random and predicted.

    A target is the token at its own position. Most chosen tokens are replaced by the id `n_ids`, which no text has.
    `key` identifies the text: the choice in evaluation depends on it and on the window alone.
    """

    def __init__(self, ids: np.ndarray, seq_len: int, mask_rate: float, n_ids: int, key: str) -> None:
        self.ids, self.seq_len, self.mask_rate, self.n_ids, self.key = ids, seq_len, mask_rate, n_ids, key

    def batch(self, key: str, seed: int, step: int, size: int) -> Batch:
        window = self.seq_len - 1  # one fewer than for next-token prediction, whose last target is no input
        rows = sample_windows(self.ids, key=key, seed=seed, step=step, batch_size=size, seq_len=window)
        words = random_words(f"{key} masks", seed, step, size * 3 * self.seq_len)
        return self.hide(rows, words.reshape(size, 3, self.seq_len))

    def eval_batches(self) -> Iterator[Batch]:
        """Every token of the text is in one window."""
        windows = list(eval_windows(len(self.ids) + 1, self.seq_len))  # a window has no target after its end
        size = max(1, EVAL_BATCH_TOKENS // self.seq_len)
        full = [window for window in windows if window[1] == self.seq_len]
        groups = [full[first : first + size] for first in range(0, len(full), size)]
        for group in [*groups, *([window] for window in windows[len(full) :])]:
            rows = np.stack([self.ids[start : start + length] for start, length in group]).astype(np.int64)
            words = [random_words(f"{self.key} masks", 0, start, 3 * length) for start, length in group]
            yield self.hide(rows, np.stack(words).reshape(len(rows), 3, -1))

    def hide(self, rows: np.ndarray, words: np.ndarray) -> Batch:
        """Rows (B, T) of a text and random words (B, 3, T) -> a batch in which the chosen tokens are targets."""
        count = self.n_chosen(rows.shape[1])
        chosen = np.argsort(words[:, 0], axis=1, kind="stable")[:, :count]  # (B, count) distinct positions
        tokens = np.take_along_axis(rows, chosen, axis=1)
        kind = np.take_along_axis(words[:, 1], chosen, axis=1) % np.uint64(10)
        other = (np.take_along_axis(words[:, 2], chosen, axis=1) % np.uint64(self.n_ids)).astype(np.int64)
        shown = np.where(kind < HIDDEN_OF_10, self.n_ids, np.where(kind < HIDDEN_OF_10 + REPLACED_OF_10, other, tokens))
        inputs, targets = rows.copy(), np.full_like(rows, IGNORE_INDEX)
        np.put_along_axis(inputs, chosen, shown, axis=1)
        np.put_along_axis(targets, chosen, tokens, axis=1)
        return Batch(inputs, targets)

    def n_chosen(self, length: int) -> int:
        """The number of targets in a window of `length` tokens: at least one."""
        return max(1, round(self.mask_rate * length))

    def targets_per_batch(self, size: int) -> int:
        return size * self.n_chosen(self.seq_len)

    def epochs(self, n_targets: int) -> float:
        return n_targets / self.n_chosen(self.seq_len) * self.seq_len / len(self.ids)

    def truncate_like(self, other: "MaskedWindows") -> "MaskedWindows":
        ids = self.ids[: len(other.ids)]
        return MaskedWindows(ids, self.seq_len, self.mask_rate, self.n_ids, self.key)

"""How much of a validation text also occurs word for word in the training text."""

import contextlib
import json

import numpy as np

from partwise.config import digest
from partwise.data.shards import Dataset
from partwise.files import replace_file
from partwise.records import DamagedFileError, read_record

WINDOW_BYTES = 50
"""A copy of twice this length always contains a whole window; texts that are no copies rarely share one."""

MAX_WINDOWS = 1 << 16
WARNED_SHARE = 0.05
CHUNK = 1 << 20
MAX_CHUNKS = 64
"""Maximum number of chunks of the training text to search, evenly spaced; beyond it the share is a lower bound."""
VERSION = 1

_FACTOR = 0x9E3779B97F4A7C15  # odd, so that every power of it keeps all bits


def repeated_share(dataset: Dataset) -> float | None:
    """The fraction of validation windows of about 50 bytes that the training text contains; None for pairs and problems.

    Problems are generated without repetition, and pairs are compared whole. Cached in the dataset's folder.
    """
    if dataset.corpus.paired or dataset.corpus.task != "text":
        return None
    path = dataset.folder / f"repetition-{VERSION}-{dataset.hash[:16]}.json"
    with contextlib.suppress(DamagedFileError):
        cached = read_record(path)
        if cached["sha256"] == digest({"share": cached["share"]}):
            return cached.number("share")
    train, validation = dataset.split("train"), dataset.split("val")
    tokens = max(1, round(WINDOW_BYTES * len(validation) / dataset.bytes("val")))
    share = share_of_windows(train, validation, tokens)
    with contextlib.suppress(OSError):  # without the cache it is computed again
        replace_file(path, json.dumps({"share": share, "sha256": digest({"share": share})}).encode())
    return share


def repetition_note(dataset: Dataset) -> str:
    """One sentence if a share of the validation text worth a warning also occurs in the training text; else empty."""
    share = repeated_share(dataset)
    if share is None or share < WARNED_SHARE:
        return ""
    return (
        f"at least {share:.0%} of the validation text also occurs in the training text (in windows of {WINDOW_BYTES} bytes), "
        "so the validation loss rewards memorization: remove the duplicates."
    )


def share_of_windows(train: np.ndarray, validation: np.ndarray, tokens: int) -> float:
    """The fraction of the validation's consecutive windows of `tokens` ids, at most MAX_WINDOWS, that occur in training."""
    n_windows = len(validation) // tokens
    if not n_windows or len(train) < tokens:
        return 0.0
    chosen = np.unique(np.linspace(0, n_windows - 1, min(n_windows, MAX_WINDOWS)).round().astype(np.int64))
    windows = np.asarray(validation)[chosen[:, None] * tokens + np.arange(tokens)]
    wanted = np.array(window_hashes(windows.reshape(-1), tokens)[::tokens])
    # most hashes of the training text are not among these: a table of last bits rejects them at once
    maybe = np.zeros(CHUNK, dtype=bool)
    maybe[wanted % CHUNK] = True
    found: list[np.ndarray] = []
    starts = np.arange(0, len(train) - tokens + 1, CHUNK)
    for start in starts[np.unique(np.linspace(0, len(starts) - 1, min(len(starts), MAX_CHUNKS)).round().astype(int))]:
        hashes = window_hashes(np.asarray(train[start : start + CHUNK + tokens - 1]), tokens)
        candidates = hashes[maybe[hashes % CHUNK]]
        found.append(np.unique(candidates[np.isin(candidates, wanted)]))
    return float(np.isin(wanted, np.concatenate(found)).mean())


def window_hashes(ids: np.ndarray, tokens: int) -> np.ndarray:
    """(N,) ids -> (N - tokens + 1,) 64-bit hashes of all windows, each from those of two shorter ones.

    sum_i h(id_i) a^(tokens - 1 - i) modulo 2^64, Karp and Rabin 1987, with the ids mixed first (Steele et al. 2014).
    """
    mixed = ids.astype(np.uint64) + np.uint64(1)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    hashes, width, total, covered = mixed, 1, mixed[:0], 0
    while True:
        if tokens & width:
            length = len(ids) - covered - width + 1
            total = total[:length] * power(width) + hashes[covered:][:length] if covered else hashes
            covered += width
        if covered == tokens:
            return total
        hashes = hashes[: len(ids) - 2 * width + 1] * power(width) + hashes[width:]
        width *= 2


def power(n: int) -> np.uint64:
    return np.uint64(pow(_FACTOR, n, 1 << 64))

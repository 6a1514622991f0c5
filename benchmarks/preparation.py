"""Preparing a text, from file to ids on disk: partwise against a plain script, and the memory for a long text.

    python benchmarks/preparation.py [--rounds 20] [--size 1000] [--json FILE]

The text is TinyShakespeare. For characters, the plain script reads the file, looks up every character in a dictionary
and writes the ids; for BPE it passes single lines to the `tokenizers` library, with the same tokenizer as partwise. Whole
jobs alternate; ours also checks the text, computes SHA-256 of what it reads and writes, and syncs to disk. Then a text of
`--size` megabytes (0: none) and one of a tenth of it are prepared, each in its own process; the larger one should not
take more memory.
"""

import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from measuring import alternate, benchmark_parser, rate_row, show_rows, write_rows

from partwise.data import Shakespeare, TextFile, prepare
from partwise.tokenizers import BPE, Characters, TokenizerRecipe, train_bpe

Job = Callable[[], object]
PLAIN = "plain script"
TARGET = 2.0
FLAT = 0.9
"""The target ratio of the small text's memory to the large text's."""

MEASURE = """
import sys
from pathlib import Path
import partwise, tokenizers
from partwise.data import TextFile, prepare
from partwise.tokenizers import TokenizerRecipe

def peak():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024

before = peak()
prepare(TextFile(path=sys.argv[1]), TokenizerRecipe.resolve(sys.argv[2]), cache=Path(sys.argv[3]))
print(peak() - before)
"""
"""Peak MiB of preparation beyond the imports; getrusage would include the parent's memory."""


def main() -> None:
    parser = benchmark_parser(__doc__, rounds=20)
    parser.add_argument("--size", type=int, default=1000, help="megabytes of the long text; 0 skips it")
    options = parser.parse_args()
    if options.size < 0:
        parser.error(f"--size {options.size}: must be at least 0")
    with tempfile.TemporaryDirectory() as folder:
        rows = speeds(Path(folder), options.rounds)
        if options.size:
            rows += memory(Path(folder), options.size)
    show_rows("Preparing a text", rows, f"{options.rounds} alternating rounds; memory does not include the imports")
    write_rows(options.json, rows)


def speeds(folder: Path, rounds: int) -> list[dict[str, Any]]:
    """One row for characters and one for BPE: megabytes of text per second."""
    text = "".join(split[:] for split in Shakespeare().splits().values())
    source, tokenizer = folder / "text.txt", folder / "tokenizer.json"
    source.write_bytes(text.encode())
    train_bpe(text).save(tokenizer)
    rows = []
    for what, recipe, plain in (
        ("characters", Characters(), lambda: plain_characters(source, folder)),
        ("BPE", BPE(path=str(tokenizer)), lambda: plain_bpe(source, tokenizer, folder)),
    ):
        jobs = {"partwise": preparation_job(source, recipe), PLAIN: plain}
        alternate(jobs, 1)
        seconds = alternate(jobs, rounds)
        rows.append(rate_row("preparation", what, "MB/s", seconds, len(text.encode()) / 1e6, TARGET))
    return rows


def preparation_job(source: Path, recipe: TokenizerRecipe) -> Job:
    def job() -> None:
        with tempfile.TemporaryDirectory(dir=source.parent) as cache:
            prepare(TextFile(path=str(source)), recipe, cache=Path(cache))

    return job


def plain_characters(source: Path, folder: Path) -> None:
    data = source.read_text(encoding="utf-8")
    ids = {character: rank for rank, character in enumerate(sorted(set(data)))}
    split_point = int(0.9 * len(data))
    for name, split in (("train", data[:split_point]), ("val", data[split_point:])):
        np.array([ids[character] for character in split], dtype=np.uint16).tofile(folder / f"{name}.bin")


def plain_bpe(source: Path, tokenizer: Path, folder: Path) -> None:
    from tokenizers import Tokenizer

    library = Tokenizer.from_file(str(tokenizer))
    data = source.read_text(encoding="utf-8")
    split_point = int(0.9 * len(data))
    for name, split in (("train", data[:split_point]), ("val", data[split_point:])):
        ids: list[int] = []
        for line in split.splitlines(keepends=True):
            ids.extend(library.encode(line).ids)
        np.array(ids, dtype=np.uint16).tofile(folder / f"{name}.bin")


def memory(folder: Path, size: int) -> list[dict[str, Any]]:
    """One row per tokenizer: the peak memory for a text of `size` megabytes, against one of a tenth of it."""
    peaks: dict[str, list[float]] = {"characters": [], "bpe": []}
    for megabytes in (max(1, size // 10), size):
        source = folder / "long.txt"
        with source.open("wb") as file:
            for chunk in long_text(megabytes):
                file.write(chunk)
        for tokenizer, values in peaks.items():
            with tempfile.TemporaryDirectory(dir=folder) as cache:
                words = [sys.executable, "-c", MEASURE, str(source), tokenizer, cache]
                values.append(float(subprocess.run(words, check=True, capture_output=True, text=True).stdout))
        source.unlink()
    rows = []
    for tokenizer, (small, large) in peaks.items():
        name = "peak memory at 1 GB" if size == 1000 else f"peak memory at {size} MB"
        row = {"goal": "preparation", "what": f"{name}, {tokenizer}", "ours": large, "unit": "MiB"}
        rows.append({**row, "peers": {"a tenth of the text": small}, "ratio": small / large, "target": FLAT})
    return rows


def long_text(megabytes: int) -> Iterator[bytes]:
    """About this many megabytes of text: lines of random words with a Zipf distribution."""
    rng = np.random.default_rng(0)
    letters = np.array(list("eeeettaaooiinnsshhrrdlucmfwypvbgkqjxzé"))
    words = np.array(["".join(rng.choice(letters, length)) for length in rng.integers(2, 11, 100_000)])
    left = megabytes * 1_000_000
    while left > 0:
        indices = np.minimum(rng.zipf(1.2, 200_000) - 1, len(words) - 1)
        lines = [" ".join(line) for line in words[indices].reshape(-1, 10).tolist()]
        chunk = (".\n".join(lines) + ".\n").encode()
        left -= len(chunk)
        yield chunk


if __name__ == "__main__":
    main()

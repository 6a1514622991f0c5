"""`tokenizer train`: train a byte-level BPE tokenizer and show how it segments text."""

import time
from contextlib import nullcontext
from pathlib import Path

from partwise.cli.terminal import console, format_duration
from partwise.config import ConfigError
from partwise.config.overrides import apply_overrides, distinct, flatten, parse_overrides
from partwise.data import Corpus, parse_data_option
from partwise.drafts import remove_drafts
from partwise.tokenizers import Text, Tokenizer, train_bpe
from partwise.tokenizers.split_points import as_string

SAMPLE = 20_000
"""Maximum number of characters of a split used to measure bytes per token."""


def train_tokenizer(data: str, overrides: list[str], vocab_size: int, out: Path) -> None:
    """Train byte-level BPE on the training text of a corpus and write it as a `tokenizer.json`."""
    corpus = _corpus(data, overrides)
    if vocab_size < 256:
        raise ConfigError(f"--vocab-size {vocab_size}: must be at least 256, one id per byte")
    if out.is_dir() or not out.absolute().parent.is_dir():
        raise ConfigError(f"--out {out}: give a file name in an existing folder, such as tokenizer.json")
    with console.status("reading the text") if console.is_terminal else nullcontext():
        splits = corpus.splits()
    text = splits["train"]
    console.print(
        f"training a vocabulary of {vocab_size:,} tokens on {len(text):,} characters of {corpus.name}", markup=False
    )
    started = time.monotonic()
    tokenizer = train_bpe(text, vocab_size, progress=_Progress())
    try:
        remove_drafts(out)
        tokenizer.save(out)
    except OSError as error:
        raise ConfigError(f"cannot write {out}: {error.strerror}; choose another file with --out") from None
    console.print(
        f"{out}: {tokenizer.vocab_size:,} tokens in {format_duration(time.monotonic() - started)}", markup=False
    )
    for name, split in (("train", "training"), ("val", "validation")):
        console.print(f"bytes per token of {split} text: {bytes_per_token(tokenizer, splits[name]):.3f}")
    console.print("sample, with tokens separated by bars:")
    console.print(show_tokens(tokenizer, splits["val"]), markup=False)
    console.print(
        f"to train with it: partwise train PRESET --data {data} tokenizer=bpe tokenizer.path={out}",
        markup=False,
        soft_wrap=True,
    )


def bytes_per_token(tokenizer: Tokenizer, text: Text) -> float:
    """UTF-8 bytes per token, averaged over the first `SAMPLE` characters."""
    sample = as_string(text[:SAMPLE])
    return len(sample.encode()) / len(tokenizer.encode(sample))


def show_tokens(tokenizer: Tokenizer, text: Text) -> str:
    """The first tokens of a text as `|First| Citizen|:|`; control characters and incomplete characters are escaped."""
    ids = tokenizer.encode(as_string(text[:300]))[:60].tolist()
    pieces = (tokenizer.token_bytes(index).decode(errors="backslashreplace") for index in ids)
    escaped = (
        "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in piece) for piece in pieces
    )
    return f"|{'|'.join(escaped)}|"


def _corpus(data: str, overrides: list[str]) -> Corpus:
    changes = distinct([*flatten({"data": parse_data_option(data)}), *parse_overrides(overrides)])
    corpus = Corpus.resolve(apply_overrides({"data": ""}, changes)["data"])
    assert isinstance(corpus, Corpus)
    return corpus


class _Progress:
    """Prints how much of the text has been read, at most every two seconds."""

    def __init__(self) -> None:
        self.last_print = time.monotonic()

    def __call__(self, done: int, total: int) -> None:
        if done == total:
            console.print(f"read {total:,} characters; merging")
        elif time.monotonic() > self.last_print + 2:
            self.last_print = time.monotonic()
            console.print(f"read {done:,} of {total:,} characters", end="\r" if console.is_terminal else "\n")

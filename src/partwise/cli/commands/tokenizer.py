"""`tokenizer`: a vocabulary learned from text, and what it makes of it."""

import time
from contextlib import nullcontext
from pathlib import Path

from partwise.cli.terminal import console, format_duration
from partwise.config import ConfigError
from partwise.config.overrides import apply_overrides, flatten, parse_overrides
from partwise.data import Corpus, parse_data_option
from partwise.tokenizers import Text, Tokenizer, train_bpe
from partwise.tokenizers.split_points import as_string

SAMPLE = 20_000
"""Characters of a split by which bytes per token are measured, where the split has as many."""


def train_tokenizer(data: str, words: list[str], vocab_size: int, out: Path) -> None:
    """Learn byte-level BPE from the training text of a corpus and write it as a `tokenizer.json`."""
    corpus = _corpus(data, words)
    if vocab_size < 256:
        raise ConfigError(f"--vocab-size {vocab_size}: give 256, an id for every byte, or more")
    if out.is_dir() or not out.absolute().parent.is_dir():
        raise ConfigError(f"--out {out}: give the name of a file in a folder that exists, as in tokenizer.json")
    with console.status("reading the text") if console.is_terminal else nullcontext():
        splits = corpus.splits()
    text = splits["train"]
    console.print(f"learning {vocab_size:,} ids from {len(text):,} characters of {corpus.name}", markup=False)
    began = time.monotonic()
    tokenizer = train_bpe(text, vocab_size, progress=_Watch())
    try:
        tokenizer.save(out)
    except OSError as error:
        raise ConfigError(f"cannot write {out}: {error.strerror}; give another file by --out") from None
    console.print(f"{out}: {tokenizer.vocab_size:,} ids in {format_duration(time.monotonic() - began)}", markup=False)
    for name, about in (("train", "training"), ("val", "validation")):
        console.print(f"bytes per token of {about} text: {bytes_per_token(tokenizer, splits[name]):.3f}")
    console.print("a sample, one token between two bars:")
    console.print(segmented(tokenizer, splits["val"]), markup=False)
    console.print(
        f"to train with it: partwise train PRESET --data {data} tokenizer=bpe tokenizer.path={out}", markup=False
    )


def bytes_per_token(tokenizer: Tokenizer, text: Text) -> float:
    """How many bytes of UTF-8 one token stands for, on average over the beginning of a text."""
    sample = as_string(text[:SAMPLE])
    return len(sample.encode()) / len(tokenizer.encode(sample))


def segmented(tokenizer: Tokenizer, text: Text) -> str:
    """The beginning of a text as `|First| Citizen|:|`; control characters and cut characters are escaped."""
    ids = tokenizer.encode(as_string(text[:300]))[:60].tolist()
    pieces = (tokenizer.token_bytes(index).decode(errors="backslashreplace") for index in ids)
    shown = ("".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in piece) for piece in pieces)
    return f"|{'|'.join(shown)}|"


def _corpus(data: str, words: list[str]) -> Corpus:
    overrides = [*flatten({"data": parse_data_option(data)}), *parse_overrides(words)]
    corpus = Corpus.resolve(apply_overrides({"data": ""}, overrides)["data"])
    assert isinstance(corpus, Corpus)
    return corpus


class _Watch:
    """Says how far the text was read, every two seconds at most."""

    def __init__(self) -> None:
        self.last = time.monotonic()

    def __call__(self, done: int, total: int) -> None:
        if done == total:
            console.print(f"read {total:,} characters; merging")
        elif time.monotonic() > self.last + 2:
            self.last = time.monotonic()
            console.print(f"read {done:,} of {total:,} characters", end="\r" if console.is_terminal else "\n")

"""The contract of a tokenizer: text to ids and back, by a rule that a file named `tokenizer.json` can state."""

import codecs
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from partwise.config import ConfigError, Part

PIECE = 1 << 22
"""Ids looked at in one go, so that a memory-mapped file of any length passes through little memory."""

SHELL: dict[str, Any] = {
    "version": "1.0",
    "truncation": None,
    "padding": None,
    "added_tokens": [],
    "normalizer": None,
    "pre_tokenizer": None,
    "post_processor": None,
    "decoder": None,
}
"""What every `tokenizer.json` holds beside its model."""


class TokenizerRecipe(Part):
    """What may stand at `tokenizer=`."""

    family: ClassVar[str] = "tokenizer"

    @abstractmethod
    def build(self, alphabet: str) -> "Tokenizer":
        """The tokenizer for texts over `alphabet`, the distinct characters of the data. Raises ConfigError."""


class Tokenizer(ABC):
    """Text <-> ids in [0, vocab_size), piece by piece: encode(a + b) is encode(a) followed by encode(b)."""

    vocab_size: int

    @abstractmethod
    def encode(self, text: str) -> np.ndarray:
        """The ids of a text, int64 (N,). Raises ConfigError for text that has no ids."""

    @abstractmethod
    def encode_ascii(self, codes: np.ndarray) -> np.ndarray:
        """The ids of ASCII text given as uint8 (N,), as uint8 (N,): the fast way for bulk data. Raises ConfigError."""

    @abstractmethod
    def decode(self, ids: Iterable[int] | np.ndarray) -> str:
        """The text of some ids; bytes that are not UTF-8 become U+FFFD. Raises ConfigError for an id out of range."""

    @abstractmethod
    def piece(self, index: int) -> bytes:
        """The bytes that one id stands for. Raises ConfigError for an id out of range."""

    @abstractmethod
    def bytes_of(self, ids: np.ndarray) -> int:
        """How many bytes of UTF-8 some ids stand for, the denominator of bits per byte; ids may be memory-mapped."""

    @abstractmethod
    def document(self) -> dict[str, Any]:
        """This tokenizer as the content of a `tokenizer.json` of the Hugging Face `tokenizers` library."""

    def stream(self) -> "Stream":
        """A decoder for ids that arrive one at a time."""
        return Stream(self)

    def save(self, path: Path | str) -> None:
        """Write a `tokenizer.json` that the Hugging Face `tokenizers` library reads and that gives the same ids."""
        path = Path(path)
        draft = path.with_name(f".{path.name}.{os.getpid()}")
        with draft.open("w", encoding="utf-8", newline="\n") as file:
            json.dump(self.document(), file, ensure_ascii=False, indent=1)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)

    def check(self, ids: Iterable[int] | np.ndarray) -> np.ndarray:
        """The ids as int64 (N,). Raises ConfigError naming the first one outside the vocabulary."""
        array = np.asarray(ids if hasattr(ids, "__len__") else list(ids), dtype=np.int64).reshape(-1)
        outside = (array < 0) | (array >= self.vocab_size)
        if outside.any():
            raise ConfigError(
                f"id {array[outside][0]} is outside the vocabulary of {self.vocab_size}: "
                "decode with the tokenizer that the model was trained with"
            )
        return array


class Stream:
    """Decodes ids as they arrive, and holds back the bytes of a character until its last one is there.

    All that `push` returned, followed by `flush`, is what `decode` makes of the same ids.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._piece = tokenizer.piece
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, index: int) -> str:
        """The text that one more id completes: often one character, sometimes none, sometimes several."""
        return self._decoder.decode(self._piece(int(index)))

    def flush(self) -> str:
        """What is left at the end: U+FFFD where a character was cut off, else nothing. The stream starts afresh."""
        rest = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return rest

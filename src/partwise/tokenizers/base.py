"""The contract of a tokenizer: text to ids and back, by a rule that a file named `tokenizer.json` can state."""

import codecs
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, ClassVar, NoReturn, Protocol, final

import numpy as np

from partwise.config import ConfigError, Part
from partwise.tokenizers.texts import Piece, Text

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


class Source(Protocol):
    """What a tokenizer may learn from, read only when it is asked for. A corpus is one."""

    def alphabet(self) -> str:
        """The distinct characters of all texts, sorted."""

    def training_text(self) -> Text:
        """The text to learn from: nothing that a model is judged by stands in it."""


class TokenizerRecipe(Part):
    """What may stand at `tokenizer=`."""

    family: ClassVar[str] = "tokenizer"

    @abstractmethod
    def build(self, source: Source) -> "Tokenizer":
        """The tokenizer for the texts of a source. Raises ConfigError."""

    def size(self, source: Source) -> int:
        """The vocab_size of what `build` makes; a recipe that learns says it without learning. Raises ConfigError."""
        return self.build(source).vocab_size

    def identity(self) -> dict[str, Any]:
        """Plain values that, with the source, determine what `build` makes. Raises ConfigError."""
        return self.to_dict()


class Tokenizer(ABC):
    """Text <-> ids in [0, vocab_size)."""

    vocab_size: int

    @abstractmethod
    def encode(self, text: str) -> np.ndarray:
        """The ids of a text, int64 (N,). Raises ConfigError for text that has no ids."""

    @abstractmethod
    def encode_ascii(self, codes: np.ndarray) -> np.ndarray:
        """The ids of ASCII text given as uint8 (T,), of an integer type (N,): for bulk data. Raises ConfigError."""

    def pieces(self, text: Text, size: int) -> Iterator[Piece]:
        """The text in pieces of about `size` characters whose ids, one after another, are those of the whole text.

        What an id stands for may depend on what is beside it, so not every place will do: unless a tokenizer knows
        better, the whole text is one piece.
        """
        if len(text):
            yield text[:]

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
        return ByteStream(self.piece)

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


class Stream(ABC):
    """Decodes ids as they arrive, and holds back the bytes of a character until its last one is there.

    All that `push` returned, followed by `flush`, is what `decode` makes of the same ids.
    """

    @abstractmethod
    def push(self, index: int) -> str:
        """The text that one more id completes: often one character, sometimes none, sometimes several."""

    @abstractmethod
    def flush(self) -> str:
        """What is left at the end: U+FFFD where a character was cut off, else nothing. The stream starts afresh."""


@final
class ByteStream(Stream):
    """For ids that stand for the same bytes wherever they are; `piece` gives them."""

    def __init__(self, piece: Callable[[int], bytes]) -> None:
        self._piece = piece
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, index: int) -> str:
        return self._decoder.decode(self._piece(int(index)))

    def flush(self) -> str:
        rest = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return rest


def slices(text: Text, size: int) -> Iterator[Piece]:
    """Pieces of `size` characters, for tokenizers with encode(a + b) equal to encode(a) followed by encode(b)."""
    return (text[start : start + size] for start in range(0, len(text), size))


def refuse_surrogate(error: UnicodeEncodeError) -> NoReturn:
    """Raise ConfigError for text that UTF-8 cannot hold."""
    raise ConfigError(
        f"the text holds half of a surrogate pair, {error.object[error.start]!a}, at {error.start}: "
        "UTF-8 has no bytes for it, remove it"
    ) from None

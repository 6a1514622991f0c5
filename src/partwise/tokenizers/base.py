"""The tokenizer interface: text to ids and back, saved as `tokenizer.json`."""

import codecs
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, NoReturn, Protocol, final

import numpy as np

from partwise.config import ConfigError, Part
from partwise.files import replace_file
from partwise.tokenizers.text import InMemoryText, Text

IDS_PER_CHUNK = 1 << 22
"""Ids processed at a time, so that memory-mapped files of any size need little memory."""

EMPTY_TOKENIZER_JSON: dict[str, Any] = {
    "version": "1.0",
    "truncation": None,
    "padding": None,
    "added_tokens": [],
    "normalizer": None,
    "pre_tokenizer": None,
    "post_processor": None,
    "decoder": None,
}
"""The fields of every `tokenizer.json` except its model."""


class TrainingData(Protocol):
    """Training data of a tokenizer, read on demand. Every corpus implements it."""

    def alphabet(self) -> str:
        """The distinct characters of all texts, sorted."""

    def training_text(self) -> Text:
        """The text to train on, without validation and test data."""


class TokenizerRecipe(Part):
    """A tokenizer, `tokenizer=`."""

    family: ClassVar[str] = "tokenizer"

    @abstractmethod
    def build(self, training_data: TrainingData) -> "Tokenizer":
        """The tokenizer for a corpus. Raises ConfigError."""

    def expected_vocab_size(self, training_data: TrainingData) -> int:
        """The vocab_size of the tokenizer that `build` returns, without training it. Raises ConfigError."""
        return self.build(training_data).vocab_size

    def identity(self) -> dict[str, Any]:
        """Plain values that, with the training data, determine the tokenizer. Raises ConfigError."""
        return self.to_stored()


class Tokenizer(ABC):
    """Text <-> ids in [0, vocab_size), without `missing_ids`, which stand for no token and decode to nothing."""

    vocab_size: int
    missing_ids: Sequence[int] = ()

    @abstractmethod
    def encode(self, text: str) -> np.ndarray:
        """The ids of a text, int64 (N,). Raises ConfigError for text that cannot be encoded."""

    @abstractmethod
    def encode_ascii(self, codes: np.ndarray) -> np.ndarray:
        """The ids, of an integer type (N,), of ASCII codes as uint8 (T,): for bulk data. Raises ConfigError."""

    def chunks(self, text: Text, size: int) -> Iterator[InMemoryText]:
        """Chunks of about `size` characters whose ids, concatenated, are the ids of the whole text.

        Ids may depend on the surrounding text, so the default is a single chunk; tokenizers that know safe split points
        override this.
        """
        if len(text):
            yield text[:]

    @abstractmethod
    def decode(self, ids: Iterable[int] | np.ndarray) -> str:
        """The text of ids; invalid UTF-8 becomes U+FFFD. Raises ConfigError for an id out of range."""

    @abstractmethod
    def token_bytes(self, index: int) -> bytes:
        """The bytes of one id. Raises ConfigError for an id out of range."""

    @abstractmethod
    def count_bytes(self, ids: np.ndarray) -> int:
        """The UTF-8 bytes of ids, which may be memory-mapped: the denominator of bits per byte."""

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """The content of this tokenizer's `tokenizer.json`, in the format of Hugging Face's `tokenizers`."""

    def continuation(self, after: Iterable[int] | np.ndarray, ids: Iterable[int] | np.ndarray) -> str:
        """What `ids` add to the text of the ids that come before them: decode([*after, *ids]) without decode(after)."""
        before = list(map(int, after))
        return self.decode([*before, *map(int, ids)])[len(self.decode(before)) :]

    def decode_stream(self, after: Sequence[int] = ()) -> "DecodeStream":
        """A decoder for ids that arrive one at a time and continue the text of the ids `after`, which is complete."""
        return ByteDecodeStream(self.token_bytes)

    def save(self, path: Path | str) -> None:
        """Write a `tokenizer.json` with which Hugging Face's `tokenizers` produces the same ids."""
        replace_file(Path(path), json.dumps(self.to_dict(), ensure_ascii=False, indent=1).encode())

    def check_ids(self, ids: Iterable[int] | np.ndarray) -> np.ndarray:
        """The ids as int64 (N,). Raises ConfigError naming the first id out of range."""
        array = np.asarray(ids if hasattr(ids, "__len__") else list(ids), dtype=np.int64).reshape(-1)
        outside = (array < 0) | (array >= self.vocab_size)
        if outside.any():
            raise ConfigError(
                f"id {array[outside][0]} is outside the vocabulary of {self.vocab_size}: "
                "decode with the tokenizer that the model was trained with"
            )
        return array

    def check_id(self, index: int) -> int:
        """`check_ids` of one id without an array: streaming calls it for every sampled token."""
        return index if 0 <= index < self.vocab_size else int(self.check_ids([index])[0])


class DecodeStream(ABC):
    """Decodes ids as they arrive and holds back incomplete characters.

    The outputs of `push`, followed by that of `flush`, equal the tokenizer's `continuation` by the same ids.
    """

    @abstractmethod
    def push(self, index: int) -> str:
        """The text that one more id completes: often one character, sometimes none or several."""

    @abstractmethod
    def flush(self) -> str:
        """The rest: U+FFFD for an incomplete character, else nothing. Resets the stream."""


@final
class ByteDecodeStream(DecodeStream):
    """For ids whose bytes do not depend on context, as given by `token_bytes`."""

    def __init__(self, token_bytes: Callable[[int], bytes]) -> None:
        self._token_bytes = token_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, index: int) -> str:
        return self._decoder.decode(self._token_bytes(int(index)))

    def flush(self) -> str:
        rest = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return rest


def fixed_size_chunks(text: Text, size: int) -> Iterator[InMemoryText]:
    """Chunks of `size` characters, for tokenizers with encode(a + b) equal to encode(a) followed by encode(b)."""
    return (text[start : start + size] for start in range(0, len(text), size))


def raise_lone_surrogate(error: UnicodeEncodeError) -> NoReturn:
    """Raise ConfigError for text that UTF-8 cannot encode."""
    raise ConfigError(
        f"the text has a lone surrogate, {error.object[error.start]!a}, at {error.start}: "
        "UTF-8 cannot encode it, so remove it"
    ) from None

"""One id per character: its rank among the characters of the data."""

from collections.abc import Iterable, Iterator
from typing import Any, NoReturn, final

import numpy as np

from partwise.config import ConfigError, part
from partwise.tokenizers.base import (
    EMPTY_TOKENIZER_JSON,
    IDS_PER_CHUNK,
    Tokenizer,
    TokenizerRecipe,
    TrainingData,
    fixed_size_chunks,
)
from partwise.tokenizers.text import InMemoryText, Text

UNKNOWN = 255  # never the id of an ASCII character: those sort first, so their ids are below 128


@part("characters")
class Characters(TokenizerRecipe):
    """id(c) = rank of c in sorted(set(text)). Karpathy's makemore, github.com/karpathy/makemore."""

    def build(self, training_data: TrainingData) -> Tokenizer:
        return CharacterTokenizer(training_data.alphabet())


@final
class CharacterTokenizer(Tokenizer):
    """The ranks of the characters of `alphabet`, which may be unsorted and contain duplicates.

    Raises ConfigError for an alphabet that is empty or has a lone surrogate.
    """

    def __init__(self, alphabet: str) -> None:
        self.alphabet = "".join(sorted(set(alphabet)))
        self.vocab_size = len(self.alphabet)
        if not self.alphabet:
            raise ConfigError("the alphabet is empty: tokenizer=characters needs text with at least one character")
        self._codes = _code_points(self.alphabet)
        if ((self._codes >= 0xD800) & (self._codes <= 0xDFFF)).any():
            raise ConfigError("the alphabet has a lone surrogate, which is not a character: clean the text")
        # the last entry, -1, serves every larger code point
        self._ranks = np.full(int(self._codes[-1]) + 2, -1, dtype=np.int64)
        self._ranks[self._codes] = np.arange(self.vocab_size)
        self._ascii_ids = bytes(self.alphabet.find(chr(code)) % 256 if code < 128 else UNKNOWN for code in range(256))
        self._sizes = np.array([len(character.encode()) for character in self.alphabet], dtype=np.int64)

    def encode(self, text: str) -> np.ndarray:
        codes = _code_points(text)
        ids: np.ndarray = self._ranks.take(codes, mode="clip")  # larger code points take the last entry
        if ids.size and ids.min() < 0:
            self._raise_unknown(chr(codes[int(np.argmax(ids < 0))]))
        return ids

    def encode_ascii(self, codes: np.ndarray) -> np.ndarray:
        ids = np.frombuffer(codes.tobytes().translate(self._ascii_ids), dtype=np.uint8)
        if ids.size and ids.max() == UNKNOWN:
            self._raise_unknown(chr(codes[int(np.argmax(ids == UNKNOWN))]))
        return ids

    def chunks(self, text: Text, size: int) -> Iterator[InMemoryText]:
        return fixed_size_chunks(text, size)

    def decode(self, ids: Iterable[int] | np.ndarray) -> str:
        return self._codes[self.check_ids(ids)].astype("<u4").tobytes().decode("utf-32-le")

    def token_bytes(self, index: int) -> bytes:
        return self.alphabet[self.check_id(index)].encode()

    def count_bytes(self, ids: np.ndarray) -> int:
        chunks = (ids[start : start + IDS_PER_CHUNK] for start in range(0, len(ids), IDS_PER_CHUNK))
        return sum(int(np.bincount(chunk, minlength=self.vocab_size) @ self._sizes) for chunk in chunks)

    def to_dict(self) -> dict[str, Any]:
        every_character = {"type": "Split", "pattern": {"Regex": r"[\s\S]"}, "behavior": "Isolated", "invert": False}
        ranks = {character: rank for rank, character in enumerate(self.alphabet)}
        # the vocabulary lacks the unknown token, so Hugging Face's library also raises for an unknown character
        model = {"type": "WordLevel", "vocab": ranks, "unk_token": "<unk>"}
        return EMPTY_TOKENIZER_JSON | {"pre_tokenizer": every_character, "decoder": {"type": "Fuse"}, "model": model}

    def _raise_unknown(self, character: str) -> NoReturn:
        raise ConfigError(
            f"the character {character!a} is not among the {self.vocab_size} of this tokenizer: "
            "use tokenizer=bytes, which can encode any text"
        )


def _code_points(text: str) -> np.ndarray:
    return np.frombuffer(text.encode("utf-32-le", errors="surrogatepass"), dtype="<u4")

"""One id per byte of UTF-8: any text, 256 ids, no training."""

from collections.abc import Iterable, Iterator
from typing import Any, final

import numpy as np

from partwise.config import part
from partwise.tokenizers.base import (
    EMPTY_TOKENIZER_JSON,
    Tokenizer,
    TokenizerRecipe,
    TrainingData,
    fixed_size_chunks,
    raise_lone_surrogate,
)
from partwise.tokenizers.text import InMemoryText, Text


@part("bytes")
class Bytes(TokenizerRecipe):
    """id = the value of the byte. Xue et al. 2021, arXiv:2105.13626."""

    def build(self, training_data: TrainingData) -> Tokenizer:
        return ByteTokenizer()


@final
class ByteTokenizer(Tokenizer):
    """The bytes of UTF-8."""

    vocab_size = 256

    def encode(self, text: str) -> np.ndarray:
        try:
            return np.frombuffer(text.encode(), dtype=np.uint8).astype(np.int64)
        except UnicodeEncodeError as error:
            raise_lone_surrogate(error)

    def encode_ascii(self, codes: np.ndarray) -> np.ndarray:
        return codes

    def chunks(self, text: Text, size: int) -> Iterator[InMemoryText]:
        return fixed_size_chunks(text, size)

    def decode(self, ids: Iterable[int] | np.ndarray) -> str:
        return self.check_ids(ids).astype(np.uint8).tobytes().decode(errors="replace")

    def token_bytes(self, index: int) -> bytes:
        return bytes((self.check_id(index),))

    def count_bytes(self, ids: np.ndarray) -> int:
        return len(ids)

    def to_dict(self) -> dict[str, Any]:
        byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
        model: dict[str, Any] = {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {character: byte for byte, character in enumerate(byte_characters())},
            "merges": [],
        }
        return EMPTY_TOKENIZER_JSON | {"pre_tokenizer": byte_level, "decoder": byte_level, "model": model}


def byte_characters() -> str:
    """The 256 printable characters by which byte-level vocabularies spell bytes since GPT-2 (`bytes_to_unicode`).

    A byte that is printable in Latin-1 maps to itself; the others map, in order, to the code points from 256.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    return "".join(chr(byte if byte in printable else 256 + others.index(byte)) for byte in range(256))

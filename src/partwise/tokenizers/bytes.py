"""One id per byte of UTF-8: any text, 256 ids, nothing to learn."""

from collections.abc import Iterable, Iterator
from typing import Any, final

import numpy as np

from partwise.config import part
from partwise.tokenizers.base import SHELL, Source, Tokenizer, TokenizerRecipe, refuse_surrogate, slices
from partwise.tokenizers.texts import Piece, Text


@part("bytes")
class Bytes(TokenizerRecipe):
    """id = the value of the byte. Xue et al. 2021, arXiv:2105.13626."""

    def build(self, source: Source) -> Tokenizer:
        return ByteTokenizer()


@final
class ByteTokenizer(Tokenizer):
    """The bytes of UTF-8."""

    vocab_size = 256

    def encode(self, text: str) -> np.ndarray:
        try:
            return np.frombuffer(text.encode(), dtype=np.uint8).astype(np.int64)
        except UnicodeEncodeError as error:
            refuse_surrogate(error)

    def encode_ascii(self, codes: np.ndarray) -> np.ndarray:
        return codes

    def pieces(self, text: Text, size: int) -> Iterator[Piece]:
        return slices(text, size)

    def decode(self, ids: Iterable[int] | np.ndarray) -> str:
        return self.check(ids).astype(np.uint8).tobytes().decode(errors="replace")

    def piece(self, index: int) -> bytes:
        return self.check([index]).astype(np.uint8).tobytes()

    def bytes_of(self, ids: np.ndarray) -> int:
        return len(ids)

    def document(self) -> dict[str, Any]:
        level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
        model: dict[str, Any] = {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {character: byte for byte, character in enumerate(visible_bytes())},
            "merges": [],
        }
        return SHELL | {"pre_tokenizer": level, "decoder": level, "model": model}


def visible_bytes() -> str:
    """256 characters, one for each byte, none of them blank: how byte-level vocabularies spell bytes since GPT-2.

    A byte that prints in Latin-1 is itself; the others, in order, are the code points from 256.
    """
    prints = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in prints]
    return "".join(chr(byte if byte in prints else 256 + others.index(byte)) for byte in range(256))

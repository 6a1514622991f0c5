"""Three ids beyond a tokenizer's own: where sequences are filled up, where they start and where they end."""

from collections.abc import Iterable, Iterator
from typing import Any, final

import numpy as np

from partwise.config import ConfigError
from partwise.tokenizers.base import PIECE, Stream, Tokenizer
from partwise.tokenizers.texts import Piece, Text

NAMES = ("<|pad|>", "<|start|>", "<|end|>")
"""What the three are called in a `tokenizer.json`. They stand for no text, and no text is encoded as one of them."""


@final
class WithSpecials(Tokenizer):
    """A tokenizer of V ids, then pad = V, start = V + 1 and end = V + 2, which decode to nothing."""

    def __init__(self, base: Tokenizer) -> None:
        if isinstance(base, WithSpecials):
            raise ConfigError("the tokenizer has its pad, start and end already: use it as it is")
        self.base = base
        self.pad, self.start, self.end = range(base.vocab_size, base.vocab_size + 3)
        self.vocab_size = base.vocab_size + 3

    def encode(self, text: str) -> np.ndarray:
        return self.base.encode(text)

    def encode_ascii(self, codes: np.ndarray) -> np.ndarray:
        return self.base.encode_ascii(codes)

    def pieces(self, text: Text, size: int) -> Iterator[Piece]:
        return self.base.pieces(text, size)

    def decode(self, ids: Iterable[int] | np.ndarray) -> str:
        array = self.check(ids)
        return self.base.decode(array[array < self.pad])

    def piece(self, index: int) -> bytes:
        index = int(self.check([index])[0])
        return self.base.piece(index) if index < self.pad else b""

    def bytes_of(self, ids: np.ndarray) -> int:
        pieces = (ids[at : at + PIECE] for at in range(0, len(ids), PIECE))
        return sum(self.base.bytes_of(piece[piece < self.pad]) for piece in pieces)

    def document(self) -> dict[str, Any]:
        document = self.base.document()
        flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
        tokens = [{"id": self.pad + place, "content": name, **flags} for place, name in enumerate(NAMES)]
        return document | {"added_tokens": [*document["added_tokens"], *tokens]}

    def stream(self) -> Stream:
        return _Silent(self)


def without_specials(document: dict[str, Any]) -> dict[str, Any] | None:
    """The document of the tokenizer below, where the last three added tokens are the specials; else None."""
    added = document["added_tokens"]
    if tuple(token.get("content") for token in added[-3:]) != NAMES:
        return None
    return document | {"added_tokens": added[:-3]}


@final
class _Silent(Stream):
    """Decodes all ids but the specials."""

    def __init__(self, tokenizer: WithSpecials) -> None:
        self._tokenizer = tokenizer
        self._stream = tokenizer.base.stream()

    def push(self, index: int) -> str:
        index = int(self._tokenizer.check([index])[0])
        return self._stream.push(index) if index < self._tokenizer.pad else ""

    def flush(self) -> str:
        return self._stream.flush()

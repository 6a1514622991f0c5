"""Three ids after a tokenizer's vocabulary: padding, beginning and end of a sequence."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, final

import numpy as np

from partwise.config import ConfigError
from partwise.tokenizers.base import IDS_PER_CHUNK, DecodeStream, Tokenizer
from partwise.tokenizers.text import InMemoryText, Text

SPECIAL_TOKENS = ("<|pad|>", "<|start|>", "<|end|>")
"""Their names in a `tokenizer.json`. They decode to nothing, and no text is encoded as one of them."""


@final
class WithSpecialTokens(Tokenizer):
    """A tokenizer of V ids, plus pad_id = V, bos_id = V + 1 and eos_id = V + 2, which decode to nothing."""

    def __init__(self, base: Tokenizer) -> None:
        if isinstance(base, WithSpecialTokens):
            raise ConfigError("the tokenizer already has padding, start and end tokens: use it as it is")
        self.base = base
        self.pad_id, self.bos_id, self.eos_id = range(base.vocab_size, base.vocab_size + 3)
        self.vocab_size, self.missing_ids = base.vocab_size + 3, base.missing_ids

    def encode(self, text: str) -> np.ndarray:
        return self.base.encode(text)

    def encode_ascii(self, codes: np.ndarray) -> np.ndarray:
        return self.base.encode_ascii(codes)

    def chunks(self, text: Text, size: int) -> Iterator[InMemoryText]:
        return self.base.chunks(text, size)

    def decode(self, ids: Iterable[int] | np.ndarray) -> str:
        array = self.check_ids(ids)
        return self.base.decode(array[array < self.pad_id])

    def token_bytes(self, index: int) -> bytes:
        index = self.check_id(index)
        return self.base.token_bytes(index) if index < self.pad_id else b""

    def count_bytes(self, ids: np.ndarray) -> int:
        chunks = (ids[start : start + IDS_PER_CHUNK] for start in range(0, len(ids), IDS_PER_CHUNK))
        return sum(self.base.count_bytes(chunk[chunk < self.pad_id]) for chunk in chunks)

    def to_dict(self) -> dict[str, Any]:
        tokenizer_json = self.base.to_dict()
        flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
        tokens = [{"id": self.pad_id + offset, "content": name, **flags} for offset, name in enumerate(SPECIAL_TOKENS)]
        return tokenizer_json | {"added_tokens": [*tokenizer_json["added_tokens"], *tokens]}

    def decode_stream(self, after: Sequence[int] = ()) -> DecodeStream:
        return _SkipSpecialTokens(self, after)


def without_special_tokens(tokenizer_json: dict[str, Any]) -> dict[str, Any] | None:
    """The base tokenizer's `tokenizer.json` if the last three added tokens are SPECIAL_TOKENS, else None."""
    added = tokenizer_json["added_tokens"]
    if tuple(token.get("content") for token in added[-3:]) != SPECIAL_TOKENS:
        return None
    return tokenizer_json | {"added_tokens": added[:-3]}


@final
class _SkipSpecialTokens(DecodeStream):
    """Decodes all ids except special tokens."""

    def __init__(self, tokenizer: WithSpecialTokens, after: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._stream = tokenizer.base.decode_stream([index for index in after if index < tokenizer.pad_id])

    def push(self, index: int) -> str:
        index = self._tokenizer.check_id(index)
        return self._stream.push(index) if index < self._tokenizer.pad_id else ""

    def flush(self) -> str:
        return self._stream.flush()

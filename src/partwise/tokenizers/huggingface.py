"""Tokenizers run by Hugging Face's `tokenizers` library: byte-level BPE, and any other `tokenizer.json`.

A `tokenizer.json` is data: nothing in it is executed. The library is imported when a tokenizer is created.
"""

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, Any, final

import numpy as np

from partwise.config import ConfigError
from partwise.tokenizers.base import IDS_PER_CHUNK, DecodeStream, Tokenizer, raise_lone_surrogate
from partwise.tokenizers.bytes import byte_characters
from partwise.tokenizers.library_errors import library_errors
from partwise.tokenizers.split_points import (
    GPT2_SPLIT_POINTS,
    SPACE_SPLIT_POINTS,
    WORD,
    EncodingCache,
    SplitPoints,
    as_string,
    split_at,
)
from partwise.tokenizers.text import InMemoryText, Text

if TYPE_CHECKING:
    import tokenizers

CHUNK_CHARACTERS = 1 << 12
"""Characters that one thread of the library encodes at a time."""

SPLIT_PATTERNS = (
    # GPT-4 and Llama 3; Qwen2
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
)
"""In their matches a space occurs only at the start or among other spaces, so SPACE_SPLIT_POINTS holds for them."""


SPACE = byte_characters()[ord(" ")]

MAX_IDS = 1 << 22
"""The largest vocabulary, holes included; the largest in use have a tenth of it."""

BYTE = re.compile("<0x([0-9A-F]{2})>")
"""The name of a byte's token where a vocabulary lacks characters."""

MAX_STEPS = 32
"""Steps of a normalizer or a decoder."""
MAX_GROWTH = 64
"""How many times as long the replacements of a normalizer or a decoder may make a text."""


def load_hf_tokenizer(tokenizer_json: dict[str, Any]) -> "tuple[tokenizers.Tokenizer, list[str | None]]":
    """The library's tokenizer, without post-processing, truncation and padding, and its tokens by id, None for no token.

    Raises ConfigError.
    """
    import tokenizers

    plain = tokenizer_json | {"post_processor": None, "truncation": None, "padding": None}
    try:
        with library_errors("{}"):
            hf_tokenizer = tokenizers.Tokenizer.from_str(json.dumps(plain))
            ids = hf_tokenizer.get_vocab(with_added_tokens=True)
        added = {token["content"]: token["id"] for token in tokenizer_json.get("added_tokens") or []}
    except (KeyError, TypeError) as error:
        raise ConfigError(f"its added tokens are not in the format of `tokenizers` ({error!r})") from None
    for part, steps in (("normalizer", "normalizers"), ("decoder", "decoders")):
        _check_growth(part, list(_steps(tokenizer_json.get(part), steps)))
    by_id = {index: token for token, index in ids.items()}
    if not ids or len(by_id) < len(ids) or max(by_id) >= MAX_IDS:
        raise ConfigError(f"its ids are not 0, 1, 2, ... (all below {MAX_IDS:,}), one per token")
    tokens = [by_id.get(index) for index in range(max(by_id) + 1)]
    if mismatched := [content for content, index in added.items() if hf_tokenizer.token_to_id(content) != index]:
        raise ConfigError(f"its added token {mismatched[0]!r} cannot have the id {added[mismatched[0]]!r}")
    if (tokenizer_json.get("model") or {}).get("dropout"):
        raise ConfigError("it uses BPE dropout, which encodes a text differently each time; set dropout to null")
    return hf_tokenizer, tokens


def _steps(part: Any, key: str) -> Iterator[Mapping[str, Any]]:
    """The steps of a normalizer or a decoder, without the sequences that hold them."""
    if isinstance(part, dict):
        for step in part.get(key) or ():
            yield from _steps(step, key)
        yield part


def _check_growth(part: str, steps: list[Mapping[str, Any]]) -> None:
    """Raise ConfigError if the steps could make a text so long that it fills the memory."""
    if len(steps) > MAX_STEPS:
        raise ConfigError(f"its {part} has {len(steps)} steps; at most {MAX_STEPS} are run")
    growth = 1
    for step in steps:
        growth *= max(1, _growth(step))
    if growth > MAX_GROWTH:
        raise ConfigError(f"its {part} may make a text {growth:,} times as long; at most {MAX_GROWTH} times is allowed")


def _growth(step: Mapping[str, Any]) -> int:
    """How many characters a step may write for each that it reads; a regular expression may match none."""
    if step.get("type") == "Prepend":
        return len(str(step.get("prepend") or ""))
    if step.get("type") != "Replace":
        return 1
    content, pattern = str(step.get("content") or ""), step.get("pattern")
    literal = pattern.get("String") if isinstance(pattern, dict) else None
    return math.ceil(len(content) / len(literal)) if literal else 1 + len(content)


def _encode(hf_tokenizer: "tokenizers.Tokenizer", texts: list[str]) -> list[list[int]]:
    """The ids of each text, encoded by several threads. Raises ConfigError."""
    with library_errors("the text cannot be encoded ({}): choose another tokenizer"):
        return [encoding.ids for encoding in hf_tokenizer.encode_batch_fast(texts, add_special_tokens=False)]


def _decode(hf_tokenizer: "tokenizers.Tokenizer", sequences: list[list[int]]) -> list[str]:
    """The text of each sequence of ids. Raises ConfigError."""
    with library_errors("ids cannot be decoded ({}): choose another tokenizer"):
        return [hf_tokenizer.decode(ids, skip_special_tokens=False) for ids in sequences]


def _check_utf8(text: str) -> None:
    """Raise ConfigError for text that UTF-8 cannot encode."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise_lone_surrogate(error)


class LibraryTokenizer(Tokenizer):
    """A tokenizer of the library; `tokenizer_json` is the content of a `tokenizer.json`. Raises ConfigError."""

    def __init__(self, tokenizer_json: dict[str, Any]) -> None:
        self._tokenizer_json = tokenizer_json
        self._hf_tokenizer, self._tokens = load_hf_tokenizer(tokenizer_json)
        self.vocab_size = len(self._tokens)
        self.missing_ids = [index for index, token in enumerate(self._tokens) if token is None]

    def encode_ascii(self, codes: np.ndarray) -> np.ndarray:
        return self.encode(as_string(codes))

    def token_bytes(self, index: int) -> bytes:
        return self._token_bytes[self.check_id(index)]

    def count_bytes(self, ids: np.ndarray) -> int:
        starts = range(0, len(ids), IDS_PER_CHUNK)
        return sum(int(self._sizes[ids[start : start + IDS_PER_CHUNK]].sum()) for start in starts)

    def to_dict(self) -> dict[str, Any]:
        return self._tokenizer_json

    @cached_property
    def _token_bytes(self) -> list[bytes]:
        """The bytes of each id."""
        raise NotImplementedError

    @cached_property
    def _sizes(self) -> np.ndarray:
        return np.array([len(content) for content in self._token_bytes], dtype=np.int64)


@final
class ByteLevelBPETokenizer(LibraryTokenizer):
    """Byte-level BPE: 256 ids for the bytes, and one for each merged pair of ids. It encodes any text.

    Sennrich, Haddow & Birch 2016, arXiv:1508.07909; over bytes: Radford et al. 2019, "Language Models are Unsupervised
    Multitask Learners". Raises ConfigError if it is not a byte-level BPE or changes the text.
    """

    def __init__(self, tokenizer_json: dict[str, Any]) -> None:
        if reason := _unsupported_reason(tokenizer_json):
            raise ConfigError(reason)
        super().__init__(tokenizer_json)
        self._added = [token["content"] for token in tokenizer_json["added_tokens"]]
        self._split_points = _split_points(tokenizer_json["pre_tokenizer"])
        self._cache = EncodingCache(self._encode_segments)

    def encode(self, text: str) -> np.ndarray:
        _check_utf8(text)
        if self._split_points is None or any(name in text for name in self._added):
            chunks = list(map(as_string, self.chunks(text, CHUNK_CHARACTERS)))
            return np.fromiter(chain.from_iterable(_encode(self._hf_tokenizer, chunks)), dtype=np.int64)
        return self._cache.encode(self._split_points.segments(text)).astype(np.int64)

    def chunks(self, text: Text, size: int) -> Iterator[InMemoryText]:
        if self._split_points is None:
            return super().chunks(text, size)
        return split_at(self._split_points, text, size, self._added)

    def _encode_segments(self, segments: list[str]) -> dict[str, list[int]]:
        """The ids of each segment. Words go straight to the BPE model: no other step of the library changes them."""
        tokenize = self._hf_tokenizer.model.tokenize
        ids = {
            word: [token.id for token in tokenize(word.replace(" ", SPACE))]
            for word in filter(WORD.fullmatch, segments)
        }
        others = [segment for segment in segments if segment not in ids]
        return ids | dict(zip(others, _encode(self._hf_tokenizer, others), strict=True))

    def decode(self, ids: Iterable[int] | np.ndarray) -> str:
        return b"".join(map(self._token_bytes.__getitem__, self.check_ids(ids).tolist())).decode(errors="replace")

    @cached_property
    def _token_bytes(self) -> list[bytes]:
        """The bytes of each id: what its characters spell, or the text of an added token; none for an id without a token."""
        byte_values = {character: byte for byte, character in enumerate(byte_characters())}
        contents, added = list[bytes](), set(self._added)
        for token in (token or "" for token in self._tokens):
            try:
                contents.append(token.encode() if token in added else bytes(map(byte_values.__getitem__, token)))
            except KeyError:  # it does not spell bytes
                contents.append(token.encode())
        return contents


def _unsupported_reason(tokenizer_json: dict[str, Any]) -> str | None:
    """Why decoding would not restore every text byte by byte, or None if it would."""
    model, decoder = tokenizer_json["model"], tokenizer_json.get("decoder") or {}
    if model["type"] != "BPE" or decoder.get("type") != "ByteLevel" or set(byte_characters()) - set(model["vocab"]):
        return "it is not a byte-level BPE with an id for every byte"
    changes = ("continuing_subword_prefix", "end_of_word_suffix", "byte_fallback")
    if tokenizer_json.get("normalizer") or any(model.get(option) for option in changes):
        return "it changes the text before splitting it"
    pre_tokenizer = tokenizer_json.get("pre_tokenizer") or {}
    steps = pre_tokenizer.get("pretokenizers", [pre_tokenizer])
    only_splits = all(step.get("type") == "Split" and step.get("behavior") != "Removed" for step in steps[:-1])
    if not only_splits or steps[-1].get("type") != "ByteLevel" or steps[-1].get("add_prefix_space"):
        return "its pre-tokenizer adds or removes spaces, or is unknown"
    if any(token.get(flag) for token in tokenizer_json["added_tokens"] for flag in ("lstrip", "rstrip", "single_word")):
        return "its added tokens depend on the surrounding text"
    return None


def _split_points(pre_tokenizer: dict[str, Any]) -> SplitPoints | None:
    """Where a text may be split, or None for an unknown pre-tokenizer."""
    steps = pre_tokenizer.get("pretokenizers", [pre_tokenizer])
    if len(steps) == 1:
        return GPT2_SPLIT_POINTS if steps[0].get("use_regex", True) else None
    first, last = steps[0], steps[-1]
    known = first.get("pattern", {}).get("Regex") in SPLIT_PATTERNS and first.get("behavior") == "Isolated"
    if len(steps) == 2 and known and not first.get("invert") and not last.get("use_regex"):
        return SPACE_SPLIT_POINTS
    return None


@final
class HuggingFaceTokenizer(LibraryTokenizer):
    """Any other `tokenizer.json`, run by the library as it is; decoding may not restore the text.

    An id's text may depend on its position, such as a space that is dropped at the start; the bytes of an id are those
    it has inside a text.
    """

    def encode(self, text: str) -> np.ndarray:
        _check_utf8(text)
        return np.array(_encode(self._hf_tokenizer, [text])[0], dtype=np.int64)

    def decode(self, ids: Iterable[int] | np.ndarray) -> str:
        return _decode(self._hf_tokenizer, [self.check_ids(ids).tolist()])[0]

    def decode_stream(self, after: Sequence[int] = ()) -> DecodeStream:
        return TextDecodeStream(self, after, self._byte_ids)

    @cached_property
    def _byte_ids(self) -> frozenset[int]:
        """The ids of single bytes: their characters depend on the bytes beside them."""
        if not self._tokenizer_json["model"].get("byte_fallback"):
            return frozenset()
        return frozenset(index for index, token in enumerate(self._tokens) if token and BYTE.fullmatch(token))

    @cached_property
    def _token_bytes(self) -> list[bytes]:
        """The bytes of each id inside a text: what it adds to the text of a preceding letter."""
        words = (index for index, token in enumerate(self._tokens) if token and token.isalpha() and token.isascii())
        anchor = next(words, 0)
        after_anchor = [[anchor, index] for index in range(len(self._tokens))]
        (alone, *texts) = _decode(self._hf_tokenizer, [[anchor], *after_anchor])
        contents = []
        for index, (token, text) in enumerate(zip(self._tokens, texts, strict=True)):
            byte = BYTE.fullmatch(token or "") if index in self._byte_ids else None
            contents.append(bytes.fromhex(byte[1]) if byte else text[len(alone) :].encode())
        return contents


@final
class TextDecodeStream(DecodeStream):
    """For ids whose text depends on the preceding id: decodes from the last id whose text is complete.

    The text of consecutive `byte_ids` is complete at the first other id: one byte more could make all of them invalid.
    """

    def __init__(self, tokenizer: Tokenizer, after: Sequence[int], byte_ids: frozenset[int]) -> None:
        self._tokenizer, self._byte_ids = tokenizer, byte_ids
        self._emitted = list(map(int, after))  # the ids of the last emitted text, as context for the next
        self._pending: list[int] = []

    def push(self, index: int) -> str:
        self._pending.append(int(index))
        text = "" if index in self._byte_ids else self._text()
        if not text or text.endswith("\ufffd"):
            return ""
        self._emitted, self._pending = self._pending, []
        return text

    def flush(self) -> str:
        text = self._text()
        self._emitted, self._pending = [], []
        return text

    def _text(self) -> str:
        prefix = self._tokenizer.decode(self._emitted)
        return self._tokenizer.decode([*self._emitted, *self._pending])[len(prefix) :]

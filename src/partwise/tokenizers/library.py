"""Tokenizers that the Hugging Face `tokenizers` library runs: byte-level BPE, whose ids are bytes, and all others.

A `tokenizer.json` is data: nothing in it is executed. The library is imported when a tokenizer is made.
"""

import json
import re
from collections.abc import Iterable, Iterator
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, Any, final

import numpy as np

from partwise.config import ConfigError
from partwise.tokenizers.base import PIECE, Stream, Tokenizer, refuse_surrogate
from partwise.tokenizers.borders import LETTERS_AND_SPACES, SPACES, WORD, Borders, Memory, as_string, cut_at
from partwise.tokenizers.bytes import visible_bytes
from partwise.tokenizers.texts import Piece, Text

if TYPE_CHECKING:
    import tokenizers

WORK = 1 << 12
"""Characters that one thread of the library encodes in one go."""

SPLIT_RULES = (
    # GPT-4 and Llama 3; Qwen2
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
)
"""In all of them a space stands only at the beginning of a stretch or among spaces: they end where SPACES says."""


SPACE = visible_bytes()[ord(" ")]


def open_library(document: dict[str, Any]) -> "tuple[tokenizers.Tokenizer, list[str]]":
    """The library's tokenizer for a document, without what would add, cut or fill up, and its tokens by id.

    Raises ConfigError.
    """
    import tokenizers

    plain = document | {"post_processor": None, "truncation": None, "padding": None}
    try:
        library = tokenizers.Tokenizer.from_str(json.dumps(plain))
        ids = library.get_vocab(with_added_tokens=True)
        added = {token["content"]: token["id"] for token in document.get("added_tokens") or []}
    except (KeyError, TypeError) as error:
        raise ConfigError(f"its added tokens are not what the library writes ({error!r})") from None
    except BaseException as error:
        # the library raises Exception itself, and where its code panics a class that only derives from BaseException
        if type(error) is not Exception and type(error).__name__ != "PanicException":
            raise
        raise ConfigError(" ".join(str(error).split())[:200]) from None
    tokens = sorted(ids, key=ids.__getitem__)
    if not ids or any(ids[token] != index for index, token in enumerate(tokens)):
        raise ConfigError("its ids are not 0, 1, 2 and so on, each for one token")
    if wrong := [content for content, index in added.items() if library.token_to_id(content) != index]:
        raise ConfigError(f"its added token {wrong[0]!r} cannot have the id {added[wrong[0]]!r}")
    if (document.get("model") or {}).get("dropout"):
        raise ConfigError("it drops merges at random, so a text would have other ids each time; set dropout to null")
    return library, tokens


def _encode(library: "tokenizers.Tokenizer", texts: list[str]) -> list[list[int]]:
    """The ids of each text, found by several threads. Raises ConfigError."""
    try:
        return [found.ids for found in library.encode_batch_fast(texts, add_special_tokens=False)]
    except Exception as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"the text has no ids ({reason}): choose another tokenizer") from None


def _check(text: str) -> None:
    """Raises ConfigError for text that UTF-8 cannot hold."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        refuse_surrogate(error)


@final
class BytePairTokenizer(Tokenizer):
    """Byte-level BPE: 256 ids for the bytes, and one for each pair of ids that was merged. Any text has ids.

    Sennrich, Haddow & Birch 2016, arXiv:1508.07909; over bytes: Radford et al. 2019, "Language Models are Unsupervised
    Multitask Learners". `document` is the content of a `tokenizer.json`. Raises ConfigError for one that is no
    byte-level BPE, or that changes the text.
    """

    def __init__(self, document: dict[str, Any]) -> None:
        if complaint := _why_not_bytes(document):
            raise ConfigError(complaint)
        self._document = document
        self._library, tokens = open_library(document)
        self._added = [token["content"] for token in document["added_tokens"]]
        self._pieces = _pieces(tokens, set(self._added))
        self._sizes = np.array([len(piece) for piece in self._pieces], dtype=np.int64)
        self._borders = _borders(document["pre_tokenizer"])
        self._memory = Memory(self._ids_of)
        self.vocab_size = len(self._pieces)

    def encode(self, text: str) -> np.ndarray:
        _check(text)
        if self._borders is None or any(name in text for name in self._added):
            pieces = list(map(as_string, self.pieces(text, WORK)))
            return np.fromiter(chain.from_iterable(_encode(self._library, pieces)), dtype=np.int64)
        return self._memory.encode(self._borders.stretches(text)).astype(np.int64)

    def encode_ascii(self, codes: np.ndarray) -> np.ndarray:
        return self.encode(as_string(codes))

    def pieces(self, text: Text, size: int) -> Iterator[Piece]:
        if self._borders is None:
            return super().pieces(text, size)
        return cut_at(self._borders, text, size, self._added)

    def _ids_of(self, stretches: list[str]) -> dict[str, list[int]]:
        """The ids of every stretch. A word goes straight to the merges: nothing else in the library would change it."""
        merge = self._library.model.tokenize
        ids = {
            word: [token.id for token in merge(word.replace(" ", SPACE))] for word in filter(WORD.fullmatch, stretches)
        }
        others = [stretch for stretch in stretches if stretch not in ids]
        return ids | dict(zip(others, _encode(self._library, others), strict=True))

    def decode(self, ids: Iterable[int] | np.ndarray) -> str:
        return b"".join(map(self._pieces.__getitem__, self.check(ids).tolist())).decode(errors="replace")

    def piece(self, index: int) -> bytes:
        if not 0 <= index < self.vocab_size:
            self.check([index])
        return self._pieces[index]

    def bytes_of(self, ids: np.ndarray) -> int:
        return sum(int(self._sizes[ids[at : at + PIECE]].sum()) for at in range(0, len(ids), PIECE))

    def document(self) -> dict[str, Any]:
        return self._document


def _why_not_bytes(document: dict[str, Any]) -> str | None:
    """Why decoding would not give back every text exactly, byte by byte; None where it does."""
    model, decoder = document["model"], document.get("decoder") or {}
    if model["type"] != "BPE" or decoder.get("type") != "ByteLevel" or set(visible_bytes()) - set(model["vocab"]):
        return "it is no byte-level BPE with an id for every byte"
    changes = ("continuing_subword_prefix", "end_of_word_suffix", "byte_fallback")
    if document.get("normalizer") or any(model.get(option) for option in changes):
        return "it changes the text before it splits it"
    rule = document.get("pre_tokenizer") or {}
    steps = rule.get("pretokenizers", [rule])
    splits = all(step.get("type") == "Split" and step.get("behavior") != "Removed" for step in steps[:-1])
    if not splits or steps[-1].get("type") != "ByteLevel" or steps[-1].get("add_prefix_space"):
        return "its splitting adds or removes spaces, or is unknown here"
    if any(token.get(flag) for token in document["added_tokens"] for flag in ("lstrip", "rstrip", "single_word")):
        return "its added tokens look at the text around them"
    return None


def _borders(rule: dict[str, Any]) -> Borders | None:
    """Where a text may be cut; None where nothing is known of the rule."""
    steps = rule.get("pretokenizers", [rule])
    if len(steps) == 1:
        return LETTERS_AND_SPACES if steps[0].get("use_regex", True) else None
    first, last = steps[0], steps[-1]
    known = first.get("pattern", {}).get("Regex") in SPLIT_RULES and first.get("behavior") == "Isolated"
    return SPACES if len(steps) == 2 and known and not first.get("invert") and not last.get("use_regex") else None


def _pieces(tokens: list[str], added: set[str]) -> list[bytes]:
    """The bytes of every id: what its characters spell, or the text itself of an added token."""
    spelled = {character: byte for byte, character in enumerate(visible_bytes())}
    pieces = []
    for token in tokens:
        try:
            pieces.append(token.encode() if token in added else bytes(map(spelled.__getitem__, token)))
        except KeyError:  # it spells no bytes
            pieces.append(token.encode())
    return pieces


@final
class LibraryTokenizer(Tokenizer):
    """Any other `tokenizer.json`: it does what the library does, which need not give back a text as it was.

    An id may mean different text in different places, such as a space that is left out at the beginning; the bytes of
    one id are those it has inside a text. Raises ConfigError.
    """

    def __init__(self, document: dict[str, Any]) -> None:
        self._document = document
        self._library, self._tokens = open_library(document)
        self.vocab_size = len(self._tokens)

    def encode(self, text: str) -> np.ndarray:
        _check(text)
        return np.array(_encode(self._library, [text])[0], dtype=np.int64)

    def encode_ascii(self, codes: np.ndarray) -> np.ndarray:
        return self.encode(as_string(codes))

    def decode(self, ids: Iterable[int] | np.ndarray) -> str:
        return self._library.decode(self.check(ids).tolist(), skip_special_tokens=False)

    def piece(self, index: int) -> bytes:
        if not 0 <= index < self.vocab_size:
            self.check([index])
        return self._pieces[index]

    def bytes_of(self, ids: np.ndarray) -> int:
        sizes = np.array([len(piece) for piece in self._pieces], dtype=np.int64)
        return sum(int(sizes[ids[at : at + PIECE]].sum()) for at in range(0, len(ids), PIECE))

    def document(self) -> dict[str, Any]:
        return self._document

    def stream(self) -> Stream:
        return TextStream(self)

    @cached_property
    def _pieces(self) -> list[bytes]:
        """The bytes of every id inside a text: what it adds to the text of an id that has some."""
        by_byte = self._document["model"].get("byte_fallback")
        anchor = next((index for index, token in enumerate(self._tokens) if token.isalpha() and token.isascii()), 0)
        before = len(self._library.decode([anchor], skip_special_tokens=False))
        pieces = []
        for index, token in enumerate(self._tokens):
            if by_byte and (byte := re.fullmatch(r"<0x([0-9A-F]{2})>", token)):
                pieces.append(bytes.fromhex(byte[1]))
            else:
                pieces.append(self._library.decode([anchor, index], skip_special_tokens=False)[before:].encode())
        return pieces


@final
class TextStream(Stream):
    """For ids whose text depends on the one before: decodes from the last id whose text is complete."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._told: list[int] = []  # the last ids whose text was given out, for what comes next to lean on
        self._new: list[int] = []

    def push(self, index: int) -> str:
        self._new.append(int(index))
        text = self._text()
        if not text or text.endswith("\ufffd"):
            return ""
        self._told, self._new = self._new, []
        return text

    def flush(self) -> str:
        text = self._text()
        self._told, self._new = [], []
        return text

    def _text(self) -> str:
        before = self._tokenizer.decode(self._told)
        return self._tokenizer.decode([*self._told, *self._new])[len(before) :]

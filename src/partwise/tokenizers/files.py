"""Reading a tokenizer: a `tokenizer.json`, or the two files of GPT-2."""

import hashlib
import json
from pathlib import Path
from typing import Any

from partwise.config import ConfigError
from partwise.tokenizers.base import SHELL, Tokenizer
from partwise.tokenizers.bytes import ByteTokenizer
from partwise.tokenizers.characters import CharacterTokenizer
from partwise.tokenizers.library import BytePairTokenizer, LibraryTokenizer
from partwise.tokenizers.specials import WithSpecials, without_specials

LARGEST = 1 << 28
"""Bytes of a file that are read: the largest vocabularies in use take a sixth of it."""

VOCABULARIES, MERGES = ("encoder.json", "vocab.json"), ("vocab.bpe", "merges.txt")
"""GPT-2's two files under the names of OpenAI, then of Hugging Face."""


def load_tokenizer(path: Path | str, vocab_size: int | None = None) -> Tokenizer:
    """The tokenizer in a `tokenizer.json`, or in a folder that holds one or the two files of GPT-2.

    `vocab_size` is that of the model that is to use it. Raises ConfigError for a missing or damaged file, and for a
    tokenizer with more ids than the model has.
    """
    path = Path(path)
    document = read_document(path)
    try:
        tokenizer = from_document(document)
    except ConfigError as error:
        raise ConfigError(f"{path} is damaged or no tokenizer ({error}): give another tokenizer.json") from None
    if vocab_size is not None and tokenizer.vocab_size > vocab_size:
        raise ConfigError(
            f"{path} has {tokenizer.vocab_size} ids, and the model {vocab_size}: give the tokenizer that the model was "
            "trained with"
        )
    return tokenizer


def tokenizer_sha256(path: Path | str) -> str:
    """SHA-256 over the files that `load_tokenizer` reads. Raises ConfigError."""
    digest = hashlib.sha256()
    for file in _files(Path(path)):
        digest.update(hashlib.sha256(_read(file)).digest())
    return digest.hexdigest()


def read_document(path: Path) -> dict[str, Any]:
    """The content of a `tokenizer.json`, as it is or made from the two files of GPT-2. Raises ConfigError."""
    files = _files(path)
    if len(files) == 2:
        return _gpt2_document(*files)
    document = _read_json(files[0])
    if not isinstance(document.get("model"), dict):
        raise ConfigError(f"{files[0]} is no tokenizer: it holds no model; give a tokenizer.json")
    return {"added_tokens": [], **document}


def from_document(document: dict[str, Any]) -> Tokenizer:
    """The tokenizer that a document describes. Raises ConfigError."""
    try:
        if (below := without_specials(document)) is not None:
            tokenizer: Tokenizer = WithSpecials(from_document(below))
            if [token["id"] for token in document["added_tokens"][-3:]] != [*range(tokenizer.vocab_size)][-3:]:
                raise ConfigError("its pad, start and end are not the last three ids")
            return tokenizer
        own = _own_tokenizer(document)
        if own is not None and own.document() == document:
            return own
        model = document["model"]
        # files before version 0.10 of the library leave the type out where the merges tell it
        document = document | {"model": {"type": "BPE"} | model} if "merges" in model else document
        try:
            return BytePairTokenizer(document)
        except ConfigError:
            return LibraryTokenizer(document)
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise ConfigError(f"{type(error).__name__}: {error}") from None


def _own_tokenizer(document: dict[str, Any]) -> Tokenizer | None:
    """The tokenizer of ours that may have written the document."""
    try:
        if document["model"].get("type") == "WordLevel":
            return CharacterTokenizer("".join(document["model"]["vocab"]))
    except ConfigError:
        return None
    return ByteTokenizer() if not document["model"].get("merges", True) else None


def _gpt2_document(vocabulary: Path, merges: Path) -> dict[str, Any]:
    lines = _decode(merges).split("\n")
    pairs = [line.split(" ") for line in lines[lines[0].startswith("#version") :] if line]
    if wrong := [" ".join(pair) for pair in pairs if len(pair) != 2]:
        raise ConfigError(f"{merges} is damaged: {wrong[0][:40]!r} is not two tokens with one space between them")
    return byte_level_document({"type": "BPE", "vocab": _read_json(vocabulary), "merges": pairs})


def byte_level_document(model: dict[str, Any]) -> dict[str, Any]:
    """A `tokenizer.json` for a BPE model over text that GPT-2's rule split.

    The rule keeps letters, digits and other characters apart, each with at most one space before it, and splits off
    the English contractions; of several spaces all but the last stand for themselves.
    """
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return SHELL | {"pre_tokenizer": level, "decoder": level, "model": model}


def _files(path: Path) -> tuple[Path, ...]:
    """The files to read: one `tokenizer.json`, or a vocabulary and its merges."""
    if not path.is_dir():
        return (path,)
    if (path / "tokenizer.json").exists():
        return (path / "tokenizer.json",)
    pair = [next((path / name for name in names if (path / name).exists()), None) for names in (VOCABULARIES, MERGES)]
    if pair[0] is None or pair[1] is None:
        raise ConfigError(
            f"{path} holds no tokenizer: give a folder with tokenizer.json, or with encoder.json and vocab.bpe, or with "
            "vocab.json and merges.txt"
        )
    return pair[0], pair[1]


def _read(path: Path) -> bytes:
    try:
        if path.exists() and not path.is_file():  # a pipe would have us wait for ever
            raise ConfigError(f"{path} is no file: give a tokenizer.json")
        if path.stat().st_size > LARGEST:
            raise ConfigError(f"{path} has {path.stat().st_size:,} bytes, more than any tokenizer: give another file")
        return path.read_bytes()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"cannot read the tokenizer {str(path)!r}: {reason}; give a tokenizer.json") from None


def _decode(path: Path) -> str:
    try:
        return _read(path).decode("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is damaged, not UTF-8 at byte offset {error.start}: take it from a backup") from None


def _read_json(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(_decode(path))
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is damaged, not JSON ({error}): take it from a backup or prepare the data") from None
    if not isinstance(values, dict):
        raise ConfigError(f"{path} is no tokenizer: it holds no JSON object; give a tokenizer.json")
    return values

"""Loading a tokenizer: from a `tokenizer.json`, or from GPT-2's two files."""

import hashlib
import json
from pathlib import Path
from typing import Any

from partwise.config import ConfigError, decode_text, read_file
from partwise.tokenizers.base import EMPTY_TOKENIZER_JSON, Tokenizer
from partwise.tokenizers.bytes import ByteTokenizer
from partwise.tokenizers.characters import CharacterTokenizer
from partwise.tokenizers.huggingface import ByteLevelBPETokenizer, HuggingFaceTokenizer
from partwise.tokenizers.special_tokens import WithSpecialTokens, without_special_tokens

MAX_FILE_BYTES = 1 << 28
"""Larger files are refused: the largest vocabularies in use take a sixth of it."""

VOCAB_FILES, MERGES_FILES = ("encoder.json", "vocab.json"), ("vocab.bpe", "merges.txt")
"""GPT-2's two files under the names of OpenAI, then of Hugging Face."""


def load_tokenizer(path: Path | str, vocab_size: int | None = None) -> Tokenizer:
    """The tokenizer in a `tokenizer.json`, or in a folder with one or with GPT-2's two files.

    `vocab_size` is that of the model it is for. Raises ConfigError for a missing or corrupt file, and for a tokenizer
    with more ids than the model.
    """
    path = Path(path)
    tokenizer_json = read_tokenizer_json(path)
    try:
        tokenizer = tokenizer_from_dict(tokenizer_json)
    except ConfigError as error:
        raise ConfigError(f"{path} is corrupt or not a tokenizer ({error}): give another tokenizer.json") from None
    if vocab_size is not None and tokenizer.vocab_size > vocab_size:
        raise ConfigError(
            f"{path} has {tokenizer.vocab_size} ids, but the model has {vocab_size}: give the tokenizer that the model "
            "was trained with"
        )
    return tokenizer


def tokenizer_sha256(path: Path | str) -> str:
    """SHA-256 over the files that `load_tokenizer` reads. Raises ConfigError."""
    hasher = hashlib.sha256()
    for file in _files(Path(path)):
        hasher.update(hashlib.sha256(_read(file)).digest())
    return hasher.hexdigest()


def read_tokenizer_json(path: Path) -> dict[str, Any]:
    """The content of a `tokenizer.json`, or the equivalent of GPT-2's two files. Raises ConfigError."""
    files = _files(path)
    if len(files) == 2:
        return _gpt2_json(*files)
    tokenizer_json = _read_json(files[0])
    if not isinstance(tokenizer_json.get("model"), dict):
        raise ConfigError(f"{files[0]} is not a tokenizer: it has no model; give a tokenizer.json")
    return {"added_tokens": [], **tokenizer_json}


def tokenizer_from_dict(tokenizer_json: dict[str, Any]) -> Tokenizer:
    """The tokenizer that the content of a `tokenizer.json` describes. Raises ConfigError."""
    try:
        if (base_json := without_special_tokens(tokenizer_json)) is not None:
            tokenizer: Tokenizer = WithSpecialTokens(tokenizer_from_dict(base_json))
            if [token["id"] for token in tokenizer_json["added_tokens"][-3:]] != [*range(tokenizer.vocab_size)][-3:]:
                raise ConfigError("its padding, start and end tokens are not the last three ids")
            return tokenizer
        native = _native_tokenizer(tokenizer_json)
        if native is not None and native.to_dict() == tokenizer_json:
            return native
        model = tokenizer_json["model"]
        # files written before version 0.10 of `tokenizers` omit the type if the model has merges
        tokenizer_json = tokenizer_json | {"model": {"type": "BPE"} | model} if "merges" in model else tokenizer_json
        try:
            return ByteLevelBPETokenizer(tokenizer_json)
        except ConfigError:
            return HuggingFaceTokenizer(tokenizer_json)
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise ConfigError(f"{type(error).__name__}: {error}") from None


def _native_tokenizer(tokenizer_json: dict[str, Any]) -> Tokenizer | None:
    """The character or byte tokenizer that may have written this file."""
    try:
        if tokenizer_json["model"].get("type") == "WordLevel":
            return CharacterTokenizer("".join(tokenizer_json["model"]["vocab"]))
    except ConfigError:
        return None
    return ByteTokenizer() if not tokenizer_json["model"].get("merges", True) else None


def _gpt2_json(vocab_file: Path, merges_file: Path) -> dict[str, Any]:
    lines = _read_text(merges_file).replace("\r\n", "\n").split("\n")  # no symbol of bytes is a line break
    pairs = [line.split(" ") for line in lines[lines[0].startswith("#version") :] if line]
    if invalid := [" ".join(pair) for pair in pairs if len(pair) != 2]:
        raise ConfigError(f"{merges_file} is corrupt: {invalid[0][:40]!r} is not two tokens separated by one space")
    return byte_level_bpe_json({"type": "BPE", "vocab": _read_json(vocab_file), "merges": pairs})


def byte_level_bpe_json(model: dict[str, Any]) -> dict[str, Any]:
    """A `tokenizer.json` for a BPE model over text split by GPT-2's pattern.

    The pattern separates letters, digits and other characters, each with at most one preceding space, and splits off
    English contractions; of several spaces, all but the last are separate.
    """
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return EMPTY_TOKENIZER_JSON | {"pre_tokenizer": byte_level, "decoder": byte_level, "model": model}


def _files(path: Path) -> tuple[Path, ...]:
    """The files to read: one `tokenizer.json`, or a vocabulary and its merges."""
    if not path.is_dir():
        return (path,)
    if (path / "tokenizer.json").exists():
        return (path / "tokenizer.json",)
    pair = [
        next((path / name for name in names if (path / name).exists()), None) for names in (VOCAB_FILES, MERGES_FILES)
    ]
    if pair[0] is None or pair[1] is None:
        raise ConfigError(
            f"{path} has no tokenizer: give a folder with tokenizer.json, with encoder.json and vocab.bpe, or with "
            "vocab.json and merges.txt"
        )
    return pair[0], pair[1]


def _read(path: Path) -> bytes:
    try:
        return read_file(path, MAX_FILE_BYTES)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"cannot read the tokenizer {str(path)!r}: {reason}; give a tokenizer.json") from None


def _read_text(path: Path) -> str:
    try:
        return decode_text(_read(path))
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{path} is corrupt, not UTF-8 at byte offset {error.start}: restore it from a backup"
        ) from None
    except UnicodeError as error:
        raise ConfigError(f"cannot read {path}: {error}") from None


def _read_json(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(_read_text(path))
    except (ValueError, RecursionError) as error:
        raise ConfigError(
            f"{path} is corrupt, not JSON ({error}): restore it from a backup or prepare the data again"
        ) from None
    if not isinstance(values, dict):
        raise ConfigError(f"{path} is not a tokenizer: it has no JSON object; give a tokenizer.json")
    return values

"""Reading a `tokenizer.json`."""

import json
from pathlib import Path

from partwise.config import ConfigError
from partwise.tokenizers.base import Tokenizer
from partwise.tokenizers.bytes import ByteTokenizer
from partwise.tokenizers.characters import CharacterTokenizer


def load_tokenizer(path: Path | str) -> Tokenizer:
    """The tokenizer that `Tokenizer.save` wrote. Raises ConfigError for a missing, damaged or foreign file."""
    try:
        document = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read the tokenizer {path}: {error.strerror}; give a tokenizer.json") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is damaged, not JSON ({error}): take it from a backup or prepare the data") from None
    tokenizer: Tokenizer | None = None
    try:
        if document["model"]["type"] == "WordLevel":
            tokenizer = CharacterTokenizer("".join(document["model"]["vocab"]))
        elif document["model"]["type"] == "BPE":
            tokenizer = ByteTokenizer()
    except (KeyError, TypeError, ConfigError):
        tokenizer = None
    # whatever says anything else than what we would have written may mean something else: refuse, never guess
    if tokenizer is None or document != tokenizer.document():
        raise ConfigError(
            f"{path} is damaged or holds a tokenizer other than characters or bytes: give one that partwise saved"
        )
    return tokenizer

"""Tokenizers of every kind, by whether an id's text depends on its place: tiny ones, for tests of what they decode to."""

import json
from typing import Any

import tokenizers as hugging_face
from partwise.tokenizers import ByteTokenizer, CharacterTokenizer, Tokenizer, WithSpecialTokens, train_bpe
from partwise.tokenizers.files import tokenizer_from_dict
from tokenizers import decoders, models, pre_tokenizers

WORDS = ["hello", "!", "it", "'", "n't", "##ing", "don", "."]
PIECES = ["▁", *"helo!", "▁hello", "▁!", "lo", "▁'", "é", "\ufffd"]
MERGES = [("l", "o")]


def numbered(tokens: list[str]) -> dict[str, int]:
    return {token: index for index, token in enumerate(["<unk>", *tokens])}


def of_library(model: Any, pre_tokenizer: Any = None, decoder: Any = None) -> Tokenizer:
    made = hugging_face.Tokenizer(model)
    for name, part in (("pre_tokenizer", pre_tokenizer), ("decoder", decoder)):
        if part is not None:
            setattr(made, name, part)
    return tokenizer_from_dict({"added_tokens": [], **json.loads(made.to_str())})


def llama2() -> Tokenizer:
    """Bytes for characters that are missing, and one space dropped at the start of a text."""
    tokens = [f"<0x{byte:02X}>" for byte in (0x0A, 0x41, 0xC3, 0xA9, 0xE2, 0x82, 0xAC, 0xFF)] + PIECES
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    model = models.BPE(numbered(tokens), MERGES, unk_token="<unk>", byte_fallback=True)
    return of_library(model, None, decoders.Sequence(steps))


def byte_level() -> Tokenizer:
    """A space before the first word, which `ByteLevelBPETokenizer` refuses."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    model = models.BPE({character: index for index, character in enumerate(alphabet)}, [])
    return of_library(model, pre_tokenizers.ByteLevel(add_prefix_space=True), decoders.ByteLevel())


KINDS = {
    "characters": CharacterTokenizer("helo wrd!'\n"),
    "bytes": ByteTokenizer(),
    "bpe": train_bpe("hello world, hello words! " * 30, 266),
    "byte_level": byte_level(),
    "llama2": llama2(),
    "metaspace": of_library(
        models.BPE(numbered(PIECES), MERGES, unk_token="<unk>"), pre_tokenizers.Metaspace(), decoders.Metaspace()
    ),
    "words": of_library(models.WordLevel(numbered(WORDS), "<unk>"), pre_tokenizers.Whitespace()),
    "wordpiece": of_library(models.WordPiece(numbered(WORDS), unk_token="<unk>"), None, decoders.WordPiece()),
    "end_of_word": of_library(
        models.BPE(numbered(["h", "e", "e</w>", "!</w>"]), [], end_of_word_suffix="</w>"), None, decoders.BPEDecoder()
    ),
    "special": WithSpecialTokens(llama2()),
}

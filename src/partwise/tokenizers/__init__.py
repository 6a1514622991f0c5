"""Text <-> ids: characters and bytes."""

from partwise.tokenizers.base import Stream, Tokenizer, TokenizerRecipe
from partwise.tokenizers.bytes import Bytes, ByteTokenizer
from partwise.tokenizers.characters import Characters, CharacterTokenizer
from partwise.tokenizers.files import load_tokenizer

__all__ = [
    "ByteTokenizer",
    "Bytes",
    "CharacterTokenizer",
    "Characters",
    "Stream",
    "Tokenizer",
    "TokenizerRecipe",
    "load_tokenizer",
]

"""Text <-> ids: characters, bytes, byte-pair encoding."""

from partwise.tokenizers.base import Source, Stream, Tokenizer, TokenizerRecipe
from partwise.tokenizers.bpe import BytePairs, learn
from partwise.tokenizers.bytes import Bytes, ByteTokenizer
from partwise.tokenizers.characters import Characters, CharacterTokenizer
from partwise.tokenizers.files import load_tokenizer
from partwise.tokenizers.library import BytePairTokenizer, LibraryTokenizer
from partwise.tokenizers.specials import WithSpecials
from partwise.tokenizers.texts import LongText, Text

__all__ = [
    "BytePairTokenizer",
    "BytePairs",
    "ByteTokenizer",
    "Bytes",
    "CharacterTokenizer",
    "Characters",
    "LibraryTokenizer",
    "LongText",
    "Source",
    "Stream",
    "Text",
    "Tokenizer",
    "TokenizerRecipe",
    "WithSpecials",
    "learn",
    "load_tokenizer",
]

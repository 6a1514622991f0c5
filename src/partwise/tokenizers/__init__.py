"""Text <-> ids: characters, bytes, byte-pair encoding."""

from partwise.tokenizers.base import DecodeStream, Tokenizer, TokenizerRecipe, TrainingData
from partwise.tokenizers.bpe import BPE, train_bpe
from partwise.tokenizers.bytes import Bytes, ByteTokenizer
from partwise.tokenizers.characters import Characters, CharacterTokenizer
from partwise.tokenizers.files import load_tokenizer
from partwise.tokenizers.huggingface import ByteLevelBPETokenizer, HuggingFaceTokenizer
from partwise.tokenizers.special_tokens import WithSpecialTokens
from partwise.tokenizers.text import LazyText, Text

__all__ = [
    "BPE",
    "ByteLevelBPETokenizer",
    "ByteTokenizer",
    "Bytes",
    "CharacterTokenizer",
    "Characters",
    "DecodeStream",
    "HuggingFaceTokenizer",
    "LazyText",
    "Text",
    "Tokenizer",
    "TokenizerRecipe",
    "TrainingData",
    "WithSpecialTokens",
    "load_tokenizer",
    "train_bpe",
]

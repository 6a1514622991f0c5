"""`tokenizer=bpe`: byte-pair encoding, learned from the training text or read from a file."""

import json
from collections.abc import Callable, Iterator
from typing import Any

from pydantic import Field

from partwise.config import ConfigError, part
from partwise.tokenizers.base import Source, Tokenizer, TokenizerRecipe
from partwise.tokenizers.borders import LETTERS_AND_SPACES, as_string, cut_at
from partwise.tokenizers.files import byte_level_document, load_tokenizer, tokenizer_sha256
from partwise.tokenizers.library import BytePairTokenizer
from partwise.tokenizers.texts import Text

PIECE = 1 << 16
"""Characters handed to the library at a time: often enough for progress, and for an interrupt to be heard."""

VOCAB_SIZE = 1024
LEARN_FROM = 20_000_000

Progress = Callable[[int, int], None]
"""Called with the characters that were read, and all that will be."""


@part("bpe")
class BytePairs(TokenizerRecipe):
    """Merge the pair of ids that occurs most, again and again, from bytes. Sennrich et al. 2016, arXiv:1508.07909.

    `path` names a tokenizer.json, or a folder with one or with GPT-2's files; without it `vocab_size` ids (1024) are
    learned from the training text, from `learn_from` characters of it that are spread over the whole.
    """

    path: str | None = Field(None, min_length=1)
    vocab_size: int | None = Field(None, ge=256)
    learn_from: int = Field(LEARN_FROM, gt=0)

    def model_post_init(self, context: Any) -> None:
        if self.path is not None and self.vocab_size is not None:
            raise ConfigError(
                f"tokenizer.vocab_size={self.vocab_size} and tokenizer.path={self.path}: a tokenizer from a file has "
                "the size it has; leave one of the two out"
            )

    def build(self, source: Source) -> Tokenizer:
        if self.path is not None:
            return load_tokenizer(self.path)
        return learn(source.training_text(), self.vocab_size or VOCAB_SIZE, self.learn_from)

    def size(self, source: Source) -> int:
        return (self.vocab_size or VOCAB_SIZE) if self.path is None else load_tokenizer(self.path).vocab_size

    def identity(self) -> dict[str, Any]:
        if self.path is None:
            return self.to_dict()
        return {"part": self.name, "sha256": tokenizer_sha256(self.path)}  # wherever the file lies


def learn(
    text: Text, vocab_size: int = VOCAB_SIZE, learn_from: int = LEARN_FROM, progress: Progress | None = None
) -> BytePairTokenizer:
    """A byte-level BPE of `vocab_size` ids: the 256 bytes, then a merge each time of the most frequent pair.

    Of pairs that occur as often, the one with the lowest ids; never across a border of GPT-2's rule, and no pair that
    occurs only once. Equal text, equal ids. Raises ConfigError for text that repeats too little for so many ids.
    """
    from tokenizers import Tokenizer as Library
    from tokenizers import models, pre_tokenizers, trainers

    library = Library(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=2,
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    library.train_from_iterator(_sample(text, learn_from, progress), trainer)
    document = byte_level_document(json.loads(library.to_str())["model"])
    tokenizer = BytePairTokenizer(document)
    if tokenizer.vocab_size != vocab_size:
        raise ConfigError(
            f"tokenizer.vocab_size={vocab_size}: the training text repeats enough for {tokenizer.vocab_size} ids only; "
            "lower it, or give more text"
        )
    return tokenizer


def _sample(text: Text, limit: int, progress: Progress | None) -> Iterator[str]:
    """About `limit` characters of a text in pieces that are spread evenly over it; all of a text that is shorter."""
    share, read = min(1.0, limit / max(1, len(text))), 0
    for place, piece in enumerate(cut_at(LETTERS_AND_SPACES, text, PIECE)):
        read += len(piece)
        if int((place + 1) * share) > int(place * share) or share == 1:
            yield as_string(piece)
        if progress:
            progress(read, len(text))

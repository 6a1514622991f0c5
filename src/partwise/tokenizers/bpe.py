"""`tokenizer=bpe`: byte-pair encoding, trained on the training text or loaded from a file."""

import json
from collections.abc import Callable, Iterator
from typing import Any

from pydantic import Field

from partwise.config import ConfigError, part
from partwise.tokenizers.base import Tokenizer, TokenizerRecipe, TrainingData
from partwise.tokenizers.files import byte_level_bpe_json, load_tokenizer, tokenizer_sha256
from partwise.tokenizers.huggingface import ByteLevelBPETokenizer
from partwise.tokenizers.split_points import GPT2_SPLIT_POINTS, as_string, split_at
from partwise.tokenizers.text import Text

CHUNK_CHARACTERS = 1 << 16
"""Characters per call of the `tokenizers` library: small enough for progress reports and interrupts."""

VOCAB_SIZE = 1024
SAMPLE_CHARACTERS = 20_000_000

Progress = Callable[[int, int], None]
"""Called with the number of characters read so far and the total."""


@part("bpe")
class BPE(TokenizerRecipe):
    """Start from bytes and repeatedly merge the most frequent pair of ids. Sennrich et al. 2016, arXiv:1508.07909.

    `path` names a tokenizer.json, or a folder with one or with GPT-2's files. Without it, `vocab_size` ids (default: 1024)
    are learned from `sample_characters` characters spread over the training text.
    """

    path: str | None = Field(None, min_length=1)
    """A tokenizer.json, or a folder with one or with GPT-2's files. Default: learned from the training text."""
    vocab_size: int | None = Field(None, ge=256)
    """Ids to learn. Default: 1024."""
    sample_characters: int = Field(SAMPLE_CHARACTERS, gt=0)
    """Characters of the training text from which merges are learned."""

    def model_post_init(self, context: Any) -> None:
        if self.path is not None and self.vocab_size is not None:
            raise ConfigError(
                f"tokenizer.vocab_size={self.vocab_size} and tokenizer.path={self.path}: the file determines the "
                "vocabulary size; remove one of the two"
            )

    def build(self, training_data: TrainingData) -> Tokenizer:
        if self.path is not None:
            return load_tokenizer(self.path)
        return train_bpe(training_data.training_text(), self.vocab_size or VOCAB_SIZE, self.sample_characters)

    def expected_vocab_size(self, training_data: TrainingData) -> int:
        return (self.vocab_size or VOCAB_SIZE) if self.path is None else load_tokenizer(self.path).vocab_size

    def identity(self) -> dict[str, Any]:
        if self.path is None:
            return self.to_stored()
        return {"part": self.name, "sha256": tokenizer_sha256(self.path)}  # independent of the file's location


def train_bpe(
    text: Text,
    vocab_size: int = VOCAB_SIZE,
    sample_characters: int = SAMPLE_CHARACTERS,
    progress: Progress | None = None,
) -> ByteLevelBPETokenizer:
    """A byte-level BPE of `vocab_size` ids: the 256 bytes, then one merge at a time of the most frequent pair.

    Ties go to the pair with the lowest ids. No merge crosses a split of GPT-2's pattern, and none joins a pair that occurs
    only once. Equal text gives equal ids. Raises ConfigError if the text repeats too little for `vocab_size`.
    """
    import tokenizers
    from tokenizers import models, pre_tokenizers, trainers

    hf_tokenizer = tokenizers.Tokenizer(models.BPE())
    hf_tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=2,
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    hf_tokenizer.train_from_iterator(_sample(text, sample_characters, progress), trainer)
    tokenizer_json = byte_level_bpe_json(json.loads(hf_tokenizer.to_str())["model"])
    tokenizer = ByteLevelBPETokenizer(tokenizer_json)
    if tokenizer.vocab_size != vocab_size:
        raise ConfigError(
            f"tokenizer.vocab_size={vocab_size}: the training text supports a vocabulary of only "
            f"{tokenizer.vocab_size} tokens; lower it, or give more text"
        )
    return tokenizer


def _sample(text: Text, limit: int, progress: Progress | None) -> Iterator[str]:
    """About `limit` characters of a text, in chunks spread evenly over it; all of a shorter text."""
    fraction, read = min(1.0, limit / max(1, len(text))), 0
    for index, chunk in enumerate(split_at(GPT2_SPLIT_POINTS, text, CHUNK_CHARACTERS)):
        read += len(chunk)
        if int((index + 1) * fraction) > int(index * fraction) or fraction == 1:
            yield as_string(chunk)
        if progress:
            progress(read, len(text))

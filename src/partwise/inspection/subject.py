"""The subject of an inspection: a preset with initial weights or a run with trained ones, and its input."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from partwise.checkpoint import find_run
from partwise.config import ConfigError, did_you_mean
from partwise.config.overrides import apply_overrides, distinct, flatten, parse_overrides
from partwise.data import IGNORE_INDEX, Batch, Dataset, build_examples, parse_data_option
from partwise.formats.huggingface.reading import is_hf_folder
from partwise.formats.loading import load
from partwise.model import Transformer
from partwise.model.reconfigured import reconfigured
from partwise.presets import PRESETS, preset_name
from partwise.tokenizers import WithSpecialTokens
from partwise.train.config import RunConfig, run_config
from partwise.train.run_metadata import open_run


@dataclass(frozen=True)
class Subject:
    """A model to inspect; pages are written to `folder`. A preset has no `run`."""

    name: str
    config: RunConfig
    folder: Path
    run: Path | None = None
    requested_seq_len: int | None = None  # --seq-len
    text: str | None = None  # --text
    processes: int = 1  # --processes

    @cached_property
    def dataset(self) -> Dataset:
        return self.config.prepare()

    @cached_property
    def model(self) -> Transformer:
        """With a run's newest weights, or the initial weights of the configured seed; in evaluation mode."""
        if self.run is None:
            return Transformer(self.config.model, seed=self.config.train.weights_seed).eval()
        trained, _ = load(self.run)
        return trained if trained.config == self.config.model else reconfigured(trained, self.config.model)

    @property
    def seq_len(self) -> int:
        """Tokens per row of a sample."""
        return self.requested_seq_len or min(self.config.seq_len, 256)

    def sample(self, tokens: int = 4096) -> Batch:
        """About `tokens` targets of the validation split, in random windows (B, T) or pairs; the same on every call."""
        split = build_examples(self.dataset, "val", self.seq_len, self.config.model.context_length)
        return split.batch("a look inside", 0, 0, max(1, tokens // split.targets_per_batch(1)))

    def row(self) -> Batch:
        """One row to show, (1, T): `text`, or the first row of the sample. Raises ConfigError.

        For an encoder-decoder, `text` is source and target separated by a tab.
        """
        if self.text is None:
            return self.sample(1)
        tokenizer, limit = self.dataset.tokenizer, self.seq_len
        if not isinstance(tokenizer, WithSpecialTokens):
            ids = tokenizer.encode(self.text)[:limit]
            if not len(ids):
                raise ConfigError(f"--text {self.text!r} has no tokens: give a longer text")
            own = self.config.model.encoder_only  # whose targets are the tokens themselves
            return Batch(ids[None], (ids if own else np.append(ids[1:], IGNORE_INDEX))[None])
        source, tab, target = self.text.partition("\t")
        if not (source and tab):
            raise ConfigError(f"--text {self.text!r}: give source and target, separated by a tab")
        ids = tokenizer.encode(target)[: limit - 1]
        inputs, targets = np.append(tokenizer.bos_id, ids), np.append(ids, tokenizer.eos_id)
        return Batch(inputs[None], targets[None], tokenizer.encode(source)[: self.config.model.context_length][None])

    def tensors(self, batch: Batch) -> tuple[Tensor, Tensor | None]:
        """Inputs and source of a batch as tensors."""
        return torch.from_numpy(batch.inputs), None if batch.source is None else torch.from_numpy(batch.source)

    def token_labels(self, ids: np.ndarray) -> list[str]:
        """The text of each id with spaces and newlines made visible, or `#id` if it has none."""
        tokenizer = self.dataset.tokenizer
        names = {}
        if isinstance(tokenizer, WithSpecialTokens):
            names = {tokenizer.pad_id: "<pad>", tokenizer.bos_id: "<start>", tokenizer.eos_id: "<end>"}
        elif self.config.data.masked_share:
            names = {tokenizer.vocab_size: "<mask>"}

        def text(index: int) -> str:
            known = index < tokenizer.vocab_size  # a model's vocab_size may exceed its tokenizer's
            return "".join(map(visible, tokenizer.decode(np.array([index])))) if known else ""

        return [names.get(index) or text(index) or f"#{index}" for index in ids.tolist()]


def visible(character: str) -> str:
    """A visible symbol for whitespace, and an escape code for other unprintable characters."""
    symbol = {" ": "\u2423", "\n": "\u23ce", "\t": "\u21e5"}.get(character, character)
    return symbol if symbol.isprintable() else f"\\x{ord(symbol):02x}"


def find_subject(
    target: str, words: list[str], data: str | None = None, seq_len: int | None = None, text: str | None = None
) -> Subject:
    """A preset or a run with overrides applied. Raises ConfigError."""
    given = [] if data is None else flatten({"data": parse_data_option(data)})
    overrides = distinct([*given, *parse_overrides(words)])
    if (known := preset_name(target)) is not None:
        subject = Subject(known, run_config(known, *words, data=data), Path(), None, seq_len, text)
    else:
        try:
            if not is_hf_folder(target):
                find_run(target)
        except ConfigError as error:
            raise ConfigError(
                f"{target!r} is not a preset{did_you_mean(target, PRESETS)}, and not a run: {error}"
            ) from None
        folder, config, _ = open_run(target)
        changed = RunConfig.from_dict(apply_overrides(config.to_dict(), overrides))
        pages = Path() if is_hf_folder(target) else folder  # nothing is written into another program's folder
        subject = Subject(folder.resolve().name, changed, pages, folder, seq_len, text)
    return subject


def check_seq_len(subject: Subject) -> None:
    """Raises ConfigError for a --seq-len that the model's context does not hold."""
    seq_len, limit = subject.requested_seq_len, subject.config.model.context_length
    if seq_len is not None and not 0 < seq_len <= limit:
        raise ConfigError(f"--seq-len {seq_len}: must be from 1 to {limit}, the model's context_length")

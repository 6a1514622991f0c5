"""What one looks into: a preset with its initial values, or a run with its trained ones, and text to show it."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from partwise.checkpoint import Damaged, find_run, load, load_weights
from partwise.config import ConfigError, did_you_mean
from partwise.data import IGNORED, Batch, Dataset, data_override, examples
from partwise.model import Transformer
from partwise.overrides import Override, apply_overrides, flatten, parse_overrides
from partwise.presets import PRESETS
from partwise.tokenizers import WithSpecials
from partwise.train.card import open_run
from partwise.train.settings import RunConfig, preset_settings, run_config

SMALL = ("data.train=20000", "data.validation=500", "data.test=500")
"""Sizes of the problems that a preset is shown where no data is named."""


@dataclass(frozen=True)
class Subject:
    """`folder` is where its pages go; a `run` has weights and a history, and a preset has neither."""

    name: str
    config: RunConfig
    folder: Path
    run: Path | None = None
    asked_context: int | None = None  # tokens to look at, where the user said so
    text: str | None = None  # what to show the model, where the user said so

    @cached_property
    def dataset(self) -> Dataset:
        return self.config.prepare()

    @cached_property
    def model(self) -> Transformer:
        """With a run's newest weights, or the initial values of the configured seed; in evaluation mode."""
        model = Transformer(self.config.model, seed=self.config.train.seed)
        if self.run is not None:
            trained, _ = load(self.run)
            try:
                load_weights(model, trained.state_dict())
            except Damaged as error:
                raise ConfigError(f"{self.name}: {error}: leave out the overrides that change its weights") from None
        return model.eval()

    @property
    def context(self) -> int:
        """Tokens of one row of a sample."""
        return self.asked_context or min(self.config.context, 256)

    def sample(self, tokens: int = 4096) -> Batch:
        """About so many targets of the validation split, in random windows (B, T) or in pairs; the same every time."""
        split = examples(self.dataset, "val", self.context, self.config.model.max_len)
        return split.batch("a look inside", 0, 0, max(1, tokens // split.tokens_in(1)))

    def row(self) -> Batch:
        """One row to show, (1, T): the text that the user gave, or the first row of the sample. Raises ConfigError.

        Where a model reads a source, a text is source and target with a tab between them.
        """
        if self.text is None:
            return self.sample(1)
        tokenizer, limit = self.dataset.tokenizer, self.context
        if not isinstance(tokenizer, WithSpecials):
            ids = tokenizer.encode(self.text)[:limit]
            if not len(ids):
                raise ConfigError(f"--text {self.text!r} is no token: give a longer text")
            return Batch(ids[None], np.append(ids[1:], IGNORED)[None])
        source, tab, target = self.text.partition("\t")
        if not (source and tab):
            raise ConfigError(f"--text {self.text!r}: give the source and the target, with a tab between them")
        ids = tokenizer.encode(target)[: limit - 1]
        inputs, targets = np.append(tokenizer.start, ids), np.append(ids, tokenizer.end)
        return Batch(inputs[None], targets[None], tokenizer.encode(source)[: self.config.model.max_len][None])

    def tensors(self, batch: Batch) -> tuple[Tensor, Tensor | None]:
        """Inputs and source of a batch, as the model takes them."""
        return torch.from_numpy(batch.inputs), None if batch.source is None else torch.from_numpy(batch.source)

    def symbols(self, ids: np.ndarray) -> list[str]:
        """Each id as a person reads it, with a space and a line's end made visible; one without a text by its number."""
        tokenizer = self.dataset.tokenizer
        names = {}
        if isinstance(tokenizer, WithSpecials):
            names = {tokenizer.pad: "<pad>", tokenizer.start: "<start>", tokenizer.end: "<end>"}

        def text(index: int) -> str:
            known = index < tokenizer.vocab_size  # a model may have more ids than its text has tokens
            return "".join(map(visible, tokenizer.decode(np.array([index])))) if known else ""

        return [names.get(index) or text(index) or f"#{index}" for index in ids.tolist()]


def visible(letter: str) -> str:
    """A letter that can be seen; of other characters the code."""
    shown = {" ": "\u2423", "\n": "\u23ce", "\t": "\u21e5"}.get(letter, letter)
    return shown if shown.isprintable() else f"\\x{ord(shown):02x}"


def find_subject(
    target: str, words: list[str], data: str | None = None, context: int | None = None, text: str | None = None
) -> Subject:
    """A preset or a run, changed by overrides. Raises ConfigError."""
    overrides = [*([] if data is None else flatten({"data": data_override(data)})), *parse_overrides(words)]
    if target in PRESETS:
        subject = Subject(target, preset_config(target, words, overrides, data), Path(), None, context, text)
    else:
        try:
            find_run(target)
        except ConfigError as error:
            raise ConfigError(f"{target!r} is no preset{did_you_mean(target, PRESETS)}, and no run: {error}") from None
        folder, config, _ = open_run(target)
        changed = RunConfig.from_dict(apply_overrides(config.to_dict(), overrides))
        subject = Subject(folder.resolve().name, changed, folder, folder, context, text)
    limit = subject.config.model.max_len
    if context is not None and not 0 < context <= limit:
        raise ConfigError(f"--context {context}: give 1 to max_len={limit}")
    return subject


def preset_config(name: str, words: list[str], overrides: list[Override], data: str | None) -> RunConfig:
    """Where no data is named, arithmetic problems, and the vocabulary that the preset has of itself."""
    if data is not None or any(path[0] == "data" for path, _ in overrides):
        return run_config(name, *words, data=data)
    settings = apply_overrides(preset_settings(name), overrides)
    corpus = "arithmetic_pairs" if settings["encoder_layers"] else "arithmetic"
    own = f"vocab_size={settings['vocab_size']}"
    return run_config(name, *SMALL, own, *words, data=corpus)

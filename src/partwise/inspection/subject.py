"""What one looks into: a preset with its initial values, or a run with its trained ones, and text to show it."""

from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from partwise.checkpoint import Damaged, find_run, load, load_weights
from partwise.config import ConfigError, did_you_mean
from partwise.data import Batch, Dataset, data_override, examples, prepare
from partwise.model import Transformer
from partwise.overrides import Override, apply_overrides, flatten, parse_overrides
from partwise.presets import PRESETS
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
        return prepare(self.config.data, self.config.tokenizer)

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
        """About so many tokens of the validation split, in random windows (B, T) or in pairs; the same every time."""
        context = self.context
        split = examples(self.dataset, "val", context, self.config.model.max_len)
        return split.batch("a look inside", 0, 0, max(1, tokens // context))

    def tensors(self, batch: Batch) -> tuple[Tensor, Tensor | None]:
        """Inputs and source of a batch, as the model takes them."""
        return torch.from_numpy(batch.inputs), None if batch.source is None else torch.from_numpy(batch.source)

    def symbols(self, ids: np.ndarray) -> list[str]:
        """Each token as a person reads it: a space and a line's end made visible."""
        tokenizer = self.dataset.tokenizer
        shown = {" ": "\u2423", "\n": "\u23ce", "\t": "\u21e5"}
        texts = (tokenizer.decode(np.array([index])) for index in ids)
        return ["".join(chain(shown.get(letter, letter) for letter in text)) for text in texts]


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

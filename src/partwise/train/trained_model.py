"""A trained model as it is evaluated: on its run's device, with the backends that its run would use here."""

from dataclasses import dataclass, replace
from typing import Any

import torch

from partwise.compute.plan import apply_backends
from partwise.compute.runtime import Runtime, requested
from partwise.formats.loading import load
from partwise.kernels.library import kernels_available
from partwise.model import Transformer
from partwise.tokenizers import Tokenizer
from partwise.train.config import RunConfig
from partwise.train.run_metadata import open_run


@dataclass(frozen=True)
class TrainedModel:
    """The model of a run, or of a folder as `transformers` writes it."""

    model: Transformer
    tokenizer: Tokenizer
    config: RunConfig
    metadata: dict[str, Any]
    runtime: Runtime


def open_trained(name: str) -> TrainedModel:
    """The model of a run, ready to be evaluated. Raises ConfigError."""
    folder, config, metadata = open_run(name)
    model, tokenizer = load(folder)
    runtime = Runtime(**metadata["runtime"])
    if runtime.device != "cpu" and getattr(torch, runtime.device).is_available():
        model.to(runtime.device)
    runtime = replace(runtime, kernels=runtime.kernels and kernels_available())
    apply_backends(model, runtime, requested(config.train), config.seq_len)
    return TrainedModel(model, tokenizer, config, metadata, runtime)

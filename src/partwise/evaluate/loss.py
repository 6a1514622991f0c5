"""Evaluation of the loss: on a full split, where every token but the first is a target exactly once, or on random batches."""

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch.nn import functional as F

from partwise.data import IGNORE_INDEX, Batch, Examples
from partwise.kernels.malloc import keep_freed_memory
from partwise.model import Transformer


@dataclass(frozen=True)
class SplitLoss:
    """Mean loss of a split in nats per token, with its number of tokens and UTF-8 bytes."""

    nats: float
    tokens: int
    bytes: int

    @property
    def bits_per_byte(self) -> float:
        return self.nats * self.tokens / math.log(2) / max(1, self.bytes)

    @property
    def perplexity(self) -> float:
        return math.exp(min(self.nats, 700.0))


@contextmanager
def evaluation_mode(model: Transformer, precision: str, training_text: bool = False) -> Iterator[torch.device]:
    """Disable gradients and dropout and autocast to `precision`; restores the model's training mode on exit.

    On `training_text`, layers fitted to it compute as in training, since they have seen the targets.
    """
    device = model.embed.weight.device
    if device.type == "cpu":
        keep_freed_memory()
    was_training = model.training
    model.eval()
    for layer in model.fitted_layers.values():
        layer.train(training_text)
    try:
        with torch.inference_mode(), torch.autocast(device.type, torch.bfloat16, enabled=precision == "bfloat16"):
            yield device
    finally:
        model.train(was_training)


def mean_loss(
    model: Transformer, batches: Iterable[Batch], precision: str = "float32", training_text: bool = False
) -> float:
    """Nats per target over some batches; `training_text` says whether the model was trained on them."""
    total, count = 0.0, 0
    with evaluation_mode(model, precision, training_text) as device:
        for batch in batches:
            inputs, targets, source = (
                None if ids is None else torch.from_numpy(ids).to(device)
                for ids in (batch.inputs, batch.targets, batch.source)
            )
            logits = model(inputs, source=source).flatten(0, 1).float()
            losses = F.cross_entropy(logits, targets.flatten(), ignore_index=IGNORE_INDEX, reduction="none")  # type: ignore[union-attr]
            total += losses.cpu().double().sum().item()  # MPS does not support float64
            count += batch.n_targets
    return total / count


def random_batches_loss(
    model: Transformer,
    examples: Examples,
    size: int,
    *,
    key: str,
    seed: int,
    step: int,
    precision: str,
    training_text: bool = False,
) -> float:
    """The mean loss over 200 random batches, which differ between steps, as the tutorial estimates it."""
    losses = [
        mean_loss(model, [examples.batch(f"{key} estimate {index}", seed, step, size)], precision, training_text)
        for index in range(200)
    ]
    return sum(losses) / len(losses)

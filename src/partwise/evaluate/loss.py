"""Loss on a whole split: every token but the first is scored exactly once, in fixed windows."""

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch.nn import functional as F

from partwise.data import IGNORED, Batch, Examples
from partwise.kernels.memory import keep_freed
from partwise.model import Transformer


@dataclass(frozen=True)
class Score:
    """Mean loss in nats per token, over how many tokens that take how many UTF-8 bytes."""

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
def evaluating(model: Transformer, precision: str, learned: bool = False) -> Iterator[torch.device]:
    """No gradients, no dropout, the run's precision; the mode of the model is restored.

    On text that was `learned` from, without its counts, as in training: they know the answers there.
    """
    device = model.embed.weight.device
    if device.type == "cpu":
        keep_freed()
    was_training = model.training
    model.eval()
    model.counts.train(learned)
    try:
        with torch.inference_mode(), torch.autocast(device.type, torch.bfloat16, enabled=precision == "bfloat16"):
            yield device
    finally:
        model.train(was_training)


def mean_loss(model: Transformer, batches: Iterable[Batch], precision: str = "float32", learned: bool = False) -> float:
    """Nats per target over some batches, of text that was `learned` from or not."""
    total, count = 0.0, 0
    with evaluating(model, precision, learned) as device:
        for batch in batches:
            inputs, targets, source = (
                None if ids is None else torch.from_numpy(ids).to(device)
                for ids in (batch.inputs, batch.targets, batch.source)
            )
            logits = model(inputs, source=source).flatten(0, 1).float()
            losses = F.cross_entropy(logits, targets.flatten(), ignore_index=IGNORED, reduction="none")  # type: ignore[union-attr]
            total += losses.cpu().double().sum().item()  # Apple's GPUs have no float64
            count += batch.count
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
    learned: bool = False,
) -> float:
    """The tutorial's estimator: the mean over 200 random batches, which differ from step to step."""
    losses = [
        mean_loss(model, [examples.batch(f"{key} estimate {number}", seed, step, size)], precision, learned)
        for number in range(200)
    ]
    return sum(losses) / len(losses)

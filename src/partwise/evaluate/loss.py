"""Loss on a whole split: every token but the first is scored exactly once, in fixed windows."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch.nn import functional as F

from partwise.data import batch, windows
from partwise.model import Transformer

TOKENS_PER_BATCH = 2048  # larger batches leave the cache, and are slower on a CPU


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
def evaluating(model: Transformer, precision: str) -> Iterator[torch.device]:
    """No gradients, no dropout, the run's precision; the mode of the model is restored."""
    device = model.embed.weight.device
    was_training = model.training
    model.eval()
    try:
        with torch.inference_mode(), torch.autocast(device.type, torch.bfloat16, enabled=precision == "bfloat16"):
            yield device
    finally:
        model.train(was_training)


def split_loss(model: Transformer, ids: np.ndarray, context: int, precision: str = "float32") -> float:
    """Nats per token over ids[1:], in windows of `context` that each start cold; the last one may be shorter."""
    spans = list(windows(len(ids), context))
    rows = max(1, TOKENS_PER_BATCH // context)
    whole = [span for span in spans if span[1] == context]
    groups = [whole[first : first + rows] for first in range(0, len(whole), rows)]
    groups += [[span] for span in spans[len(whole) :]]
    total = 0.0
    with evaluating(model, precision) as device:
        for group in groups:
            batch_ids = np.stack([ids[start : start + length + 1] for start, length in group]).astype(np.int64)
            tokens = torch.from_numpy(batch_ids).to(device)  # (B, T + 1)
            logits = model(tokens[:, :-1]).flatten(0, 1).float()
            total += F.cross_entropy(logits, tokens[:, 1:].flatten(), reduction="none").double().sum().item()
    return total / (len(ids) - 1)


def random_batches_loss(
    model: Transformer, ids: np.ndarray, context: int, size: int, *, key: str, seed: int, step: int, precision: str
) -> float:
    """The tutorial's estimator: the mean over 200 random batches, which differ from step to step."""
    total = 0.0
    with evaluating(model, precision) as device:
        for number in range(200):
            rows = batch(ids, key=f"{key} estimate {number}", seed=seed, step=step, size=size, context=context)
            windows = torch.from_numpy(rows).to(device)
            logits = model(windows[:, :-1]).flatten(0, 1).float()
            total += F.cross_entropy(logits, windows[:, 1:].flatten()).item()
    return total / 200

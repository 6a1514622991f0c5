"""Loss on a whole split: every token but the first is scored exactly once, in fixed windows."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch.nn import functional as F

from partwise.data import batch
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
    targets = len(ids) - 1
    full = targets // context
    total = 0.0
    with evaluating(model, precision) as device:
        rows = max(1, TOKENS_PER_BATCH // context)
        inputs = np.asarray(ids[: full * context]).reshape(full, context)
        wanted = np.asarray(ids[1 : full * context + 1]).reshape(full, context)
        pieces = [(inputs[start : start + rows], wanted[start : start + rows]) for start in range(0, full, rows)]
        if targets % context:
            pieces.append((np.asarray(ids[full * context : -1])[None], np.asarray(ids[full * context + 1 :])[None]))
        for x, y in pieces:
            logits = model(torch.from_numpy(x.astype(np.int64)).to(device)).flatten(0, 1).float()
            losses = F.cross_entropy(
                logits, torch.from_numpy(y.astype(np.int64)).to(device).flatten(), reduction="none"
            )
            total += losses.double().sum().item()
    return total / targets


def random_batches_loss(
    model: Transformer, ids: np.ndarray, context: int, size: int, *, key: str, seed: int, step: int, precision: str
) -> float:
    """The documents' estimator: the mean over 200 random batches, which differ from step to step."""
    total = 0.0
    with evaluating(model, precision) as device:
        for number in range(200):
            rows = batch(ids, key=f"{key} estimate {number}", seed=seed, step=step, size=size, context=context)
            windows = torch.from_numpy(rows).to(device)
            logits = model(windows[:, :-1]).flatten(0, 1).float()
            total += F.cross_entropy(logits, windows[:, 1:].flatten()).item()
    return total / 200

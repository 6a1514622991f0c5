"""Lesson 5, what drowns the tokens? Two square roots: of the scores in attention, and of embeddings under positions."""

import math

import torch
from torch import Tensor


def softmax(scores: Tensor) -> Tensor:
    """The largest score is subtracted first: it changes nothing, and exp cannot overflow."""
    weights = torch.exp(scores - scores.amax(dim=-1, keepdim=True))
    return weights / weights.sum(dim=-1, keepdim=True)


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float | None = None,
) -> Tensor:
    """q.k of E random numbers has variance E. With 1 / sqrt(E) it is 1."""
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    scores = q @ k.transpose(-2, -1) * scale  # (B, H, T, S)
    return softmax(scores) @ v  # -> (B, H, T, E)


def entropy(weights: Tensor) -> Tensor:
    """-sum p log p in nats, of each row: log(n) if all n keys weigh the same, 0 if one has all the weight."""
    logs = torch.where(weights > 0, weights, 1).log()  # 0 log 0 counts as 0
    return -(weights * logs).sum(dim=-1)


def embed(tokens: Tensor, table: Tensor) -> Tensor:
    """Rows of the table (V, D), times sqrt(D): small initial values would drown in positions of norm sqrt(D / 2)."""
    return table[tokens] * math.sqrt(table.shape[-1])  # (B, T) -> (B, T, D)


if __name__ == "__main__":
    torch.manual_seed(0)
    q, k = torch.randn(2, 1000, 64)
    scaled, unscaled = (entropy(softmax(q @ k[:128].T * scale)).mean() for scale in (1 / math.sqrt(64), 1.0))
    print(
        f"entropy over 128 keys: {scaled:.2f} nats with the scale, {unscaled:.2f} without, at most {math.log(128):.2f}"
    )

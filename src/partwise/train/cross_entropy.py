"""Targets, and the cross-entropy of logits in half precision, a piece at a time: never all of them in float32 at once."""

from typing import Any

import torch
from torch import Tensor

from partwise.data import IGNORED
from partwise.kernels.cross_entropy import half_cross_entropy, serves

PIECE = 2**22
"""Logits that are taken to float32 at a time: 16 MiB."""


def summed_cross_entropy(logits: Tensor, targets: Tensor, smoothing: float = 0.0, kernel: bool = False) -> Tensor:
    """(N, V) logits and (N,) targets, of which IGNORED ones are left out -> the summed loss in nats, a float32 scalar.

    With `smoothing` s, (1 - s) times the loss of the target and s times the mean loss over all V. The numbers of
    `torch.nn.functional.cross_entropy` on `logits.float()`, and gradients in the logits' precision; both are computed in
    pieces of PIECE logits in float32, or in float64 where they are that; or by the compiled `kernel`, where it serves.
    """
    if kernel and serves(logits):
        return half_cross_entropy(logits, targets, IGNORED, smoothing)
    return _Summed.apply(logits, targets, smoothing)


def later(targets: Tensor, places: int) -> Tensor:
    """(..., T) targets -> (..., T) those so many places later in their row; IGNORED where either is, or the row ends."""
    found = torch.full_like(targets, IGNORED)
    found[..., :-places] = targets[..., places:]
    return found.masked_fill_(targets == IGNORED, IGNORED)


class _Summed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, smoothing: float) -> Tensor:
        total = logits.new_zeros((), dtype=torch.promote_types(logits.dtype, torch.float32))
        for piece, wanted in _pieces(logits, targets):
            wide = piece.to(total.dtype)
            counted, rows = wanted != IGNORED, torch.logsumexp(wide, dim=1)
            chosen = wide.gather(1, wanted.clamp(min=0)[:, None])[:, 0]
            losses = rows - (1 - smoothing) * chosen - smoothing * wide.mean(dim=1)
            total += torch.where(counted, losses, 0.0).sum()
        ctx.save_for_backward(logits, targets)
        ctx.smoothing = smoothing
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        logits, targets = ctx.saved_tensors
        found = torch.empty_like(logits)
        for (piece, wanted), place in zip(_pieces(logits, targets), _pieces(found, targets), strict=True):
            share = torch.softmax(piece.to(grads[0].dtype), dim=1)
            share -= ctx.smoothing / logits.shape[1]
            share.scatter_add_(1, wanted.clamp(min=0)[:, None], share.new_full((len(wanted), 1), ctx.smoothing - 1))
            place[0].copy_(torch.where((wanted != IGNORED)[:, None], share * grads[0], 0.0))
        return found, None, None


def _pieces(logits: Tensor, targets: Tensor) -> list[tuple[Tensor, Tensor]]:
    rows = max(1, PIECE // logits.shape[1])
    return list(zip(logits.split(rows), targets.split(rows), strict=True))

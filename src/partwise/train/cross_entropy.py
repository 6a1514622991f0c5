"""Cross-entropy without a float32 copy of all logits, in chunks or compiled; shifted targets."""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from partwise.compute import compilation
from partwise.data import IGNORE_INDEX
from partwise.kernels.cross_entropy import bf16_cross_entropy, supports_bf16_cross_entropy

CHUNK_LOGITS, ACCELERATOR_CHUNK_LOGITS = 2**22, 2**25
"""Logits converted to float32 per chunk: 16 MiB on a CPU, which its cache may hold; 128 MiB on an accelerator, where each
operation of a chunk takes a launch. Up to three tensors of this size exist at once."""


def chunk_size(device: str) -> int:
    """The largest number of logits in a chunk on a type of device."""
    return CHUNK_LOGITS if device == "cpu" else ACCELERATOR_CHUNK_LOGITS


def summed_cross_entropy(
    logits: Tensor, targets: Tensor, smoothing: float = 0.0, cpp: bool = False, chunk: int | None = None
) -> Tensor:
    """(N, V) logits, (N,) targets -> the loss in nats summed over targets other than IGNORE_INDEX, a float32 scalar.

    With `smoothing` s, (1 - s) times the loss of the target plus s times the mean loss over all V. The result is that of
    `torch.nn.functional.cross_entropy` on `logits.float()`; the gradient has the logits' dtype. Computed in chunks of at most
    `chunk` logits (default: `chunk_size`) in float32 (float64 for float64 logits), or with `cpp` by the C++ kernel if it
    supports the logits.
    """
    if cpp and supports_bf16_cross_entropy(logits):
        return bf16_cross_entropy(logits, targets, IGNORE_INDEX, smoothing)
    return _ChunkedCrossEntropy.apply(logits, targets, smoothing, chunk or chunk_size(logits.device.type))


def summed_loss(
    logits: Tensor, targets: Tensor, smoothing: float, cpp: bool, compiled: bool = False, chunk: int | None = None
) -> Tensor:
    """(B, T, V) logits, (B, T) targets -> the loss summed over the targets, in chunks where logits have 16 bits.

    With `compiled`, torch.compile makes one kernel each of the forward and the backward pass, which keep float32 values of
    a row only while they read it.
    """
    logits, targets = logits.flatten(0, 1), targets.flatten()
    if compiled:
        return compiled_losses(logits[None], targets[None], smoothing)[0]
    if logits.dtype in (torch.bfloat16, torch.float16):
        return summed_cross_entropy(logits, targets, smoothing, cpp, chunk)
    return F.cross_entropy(logits, targets, ignore_index=IGNORE_INDEX, reduction="sum", label_smoothing=smoothing)


def shift_targets(targets: Tensor, offset: int) -> Tensor:
    """(..., T) targets -> (..., T) the targets `offset` positions later, or IGNORE_INDEX if either is or the row ends."""
    shifted = torch.full_like(targets, IGNORE_INDEX)
    shifted[..., :-offset] = targets[..., offset:]
    return shifted.masked_fill_(targets == IGNORE_INDEX, IGNORE_INDEX)


class _ChunkedCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, smoothing: float, size: int) -> Tensor:
        total = logits.new_zeros((), dtype=torch.promote_types(logits.dtype, torch.float32))
        for chunk, chunk_targets in _chunks(logits, targets, size):
            log_p = torch.log_softmax(chunk, dim=1, dtype=total.dtype)
            losses = (smoothing - 1) * log_p.gather(1, chunk_targets.clamp(min=0)[:, None])[:, 0]
            if smoothing:
                losses -= smoothing * log_p.mean(dim=1)
            total += torch.where(chunk_targets != IGNORE_INDEX, losses, 0.0).sum()
        ctx.save_for_backward(logits, targets)
        ctx.smoothing, ctx.size = smoothing, size
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        logits, targets = ctx.saved_tensors
        grad_logits = torch.empty_like(logits)
        both = zip(_chunks(logits, targets, ctx.size), _chunks(grad_logits, targets, ctx.size), strict=True)
        for (chunk, chunk_targets), out in both:
            grad = torch.softmax(chunk, dim=1, dtype=grads[0].dtype)
            if ctx.smoothing:
                grad -= ctx.smoothing / logits.shape[1]
            minus_one = grad.new_full((len(chunk_targets), 1), ctx.smoothing - 1)
            grad.scatter_add_(1, chunk_targets.clamp(min=0)[:, None], minus_one)
            mask = (chunk_targets != IGNORE_INDEX)[:, None]
            out[0].copy_(torch.where(mask, grad.mul_(grads[0]), 0.0))
        return grad_logits, None, None, None


def compiled_losses(logits: Tensor, targets: Tensor, smoothing: float) -> Tensor:
    """(S, ..., V) logits, (S, ...) targets -> (S,) losses, each summed over its targets, by torch.compile."""
    return _CompiledCrossEntropy.apply(logits.flatten(1, -2), targets.flatten(1), smoothing)


class _CompiledCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, smoothing: float) -> Tensor:
        totals, log_z = _compiled(_losses, compilation.COMPILER)(logits.detach(), targets, smoothing)
        ctx.save_for_backward(logits, targets, log_z)
        ctx.smoothing = smoothing
        return totals

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        logits, targets, log_z = ctx.saved_tensors
        gradient = _compiled(_gradient, compilation.COMPILER)
        return gradient(logits.detach(), targets, log_z, grads[0], ctx.smoothing), None, None


def _losses(logits: Tensor, targets: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
    """(S, N, V) logits -> the summed losses (S,), and the logarithm of each row's partition function (S, N)."""
    x = logits.to(torch.promote_types(logits.dtype, torch.float32))
    log_z = x.logsumexp(dim=2)
    losses = log_z - (1 - smoothing) * x.gather(2, targets.clamp(min=0)[..., None])[..., 0]
    if smoothing:
        losses = losses - smoothing * x.mean(dim=2)
    return torch.where(targets != IGNORE_INDEX, losses, 0.0).sum(dim=1), log_z


def _gradient(logits: Tensor, targets: Tensor, log_z: Tensor, scales: Tensor, smoothing: float) -> Tensor:
    """The gradient of the logits, in their own dtype."""
    V = logits.shape[2]
    is_target = torch.arange(V, device=logits.device) == targets[..., None]
    grad = (logits.to(log_z.dtype) - log_z[..., None]).exp() - smoothing / V
    grad = scales[:, None, None] * torch.where(is_target, grad - (1 - smoothing), grad)
    return torch.where((targets != IGNORE_INDEX)[..., None], grad, 0.0).to(logits.dtype)


@lru_cache
def _compiled(function: Callable[..., Any], backend: str) -> Callable[..., Any]:
    return torch.compile(function, backend=backend, fullgraph=True, dynamic=False)


def _chunks(logits: Tensor, targets: Tensor, size: int) -> list[tuple[Tensor, Tensor]]:
    rows = max(1, size // logits.shape[1])
    return list(zip(logits.split(rows), targets.split(rows), strict=True))

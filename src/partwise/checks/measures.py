"""Measures of a model's logits: what they depend on, and what should not change them."""

import math
from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import Tensor

from partwise.model import Transformer

Logits = Callable[[Tensor], Tensor]
"""(B, T) ids -> (B, T, V) logits, the same whenever it is called with the same ids."""


def other_ids(tokens: Tensor, vocab_size: int) -> Tensor:
    """Ids that differ from `tokens` everywhere, if the vocabulary has more than one."""
    return (tokens + max(1, vocab_size // 3)) % vocab_size


def relative_change(after: Tensor, before: Tensor) -> float:
    """The largest difference, relative to the largest finite value before; infinite if other values are not finite."""
    if not before.numel():
        return 0.0
    finite = before.isfinite()
    if not torch.equal(after.isfinite(), finite):
        return math.inf
    zero = torch.zeros((), dtype=before.dtype, device=before.device)
    after, before = torch.where(finite, after, zero), torch.where(finite, before, zero)
    largest = before.abs().max().item()
    return (after - before).abs().max().item() / (largest or 1.0)


def change_before(logits: Logits, tokens: Tensor, position: int, vocab_size: int, base: Tensor) -> float:
    """How much logits before `position` depend on the ids from there on; `base` are the logits of `tokens`."""
    return change_before_each(logits, tokens, [position] * len(tokens), vocab_size, base)


def change_before_each(
    logits: Logits, tokens: Tensor, positions: Sequence[int], vocab_size: int, base: Tensor
) -> float:
    """As `change_before`, with a position for each row: zero only if rows do not depend on each other either."""
    changed, others = tokens.clone(), other_ids(tokens, vocab_size)
    for row, position in enumerate(positions):
        changed[row, position:] = others[row, position:]
    after = logits(changed)
    return max(relative_change(after[row, :position], base[row, :position]) for row, position in enumerate(positions))


def change_of_first_row(logits: Logits, tokens: Tensor, vocab_size: int, base: Tensor) -> float:
    """How much the logits of the first row depend on the other rows."""
    return change_before_each(logits, tokens, [tokens.shape[1], *(0,) * (len(tokens) - 1)], vocab_size, base)


def cached_logits(
    model: Transformer, tokens: Tensor, cuts: Sequence[int], source: Tensor | tuple[Tensor, Tensor | None] | None = None
) -> Tensor:
    """The logits of `tokens` in pieces that end at `cuts`, each after the cache of those before."""
    ends = [0, *cuts, tokens.shape[1]]
    cache = model.new_cache(tokens.shape[0], tokens.shape[1], source)
    return torch.cat([model(tokens[:, start:end], cache) for start, end in pairwise(ends)], dim=1)


def gradient_shares(model: Transformer, tokens: Tensor, source: Tensor | None = None) -> dict[str, float]:
    """The largest gradient of each trainable parameter, relative to the largest of all.

    The function is a random linear one of the logits and those of `mtp=`, plus the layers' terms of the training loss.
    """
    aux_losses, mtp_logits = list[Tensor](), list[Tensor]()
    logits = model(tokens, source=source, aux_losses=aux_losses, mtp_logits=mtp_logits)
    model.zero_grad()
    loss = sum((linear_function(each) for each in (logits, *mtp_logits)), start=logits.new_zeros(()))
    sum(aux_losses, start=loss).backward()
    sizes = {
        name: 0.0 if parameter.grad is None else parameter.grad.abs().max().item()
        for name, parameter in model.named_parameters()
        if parameter.requires_grad and parameter.numel()
    }
    largest = max(sizes.values(), default=0.0) or 1.0
    return {name: size / largest for name, size in sizes.items()}


def linear_function(logits: Tensor) -> Tensor:
    """The same random linear function of any logits of this shape."""
    weights = torch.randn(logits.shape, generator=torch.Generator().manual_seed(7), dtype=logits.dtype)
    return (logits * weights.to(logits.device)).sum()


@torch.no_grad()
def perturb(model: Transformer, seed: int = 0, size: float = 1.0) -> None:
    """Make all parameters random, so that no zero or one hides an effect; `size` scales the matrices."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        if parameter.dim() > 1:
            noise *= size / math.sqrt(parameter.shape[-1])
        else:
            noise = 0.3 * noise + float(name.endswith(("weight", "beta", "alpha")))
        parameter.copy_(noise.to(parameter.dtype))


@torch.no_grad()
def nudge(model: Transformer, seed: int = 0) -> None:
    """Scale every parameter by a random factor near 1, which keeps its sign, and open those that are zero a little."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        scaled = parameter.cpu().double() * torch.exp(0.2 * noise)
        parameter.copy_(torch.where(scaled == 0, 0.1 * noise.abs(), scaled).to(parameter.dtype))

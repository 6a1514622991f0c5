"""Sampling of the next token from logits."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from partwise.compute.float64 import float64_device
from partwise.config import ConfigError
from partwise.tokenizers import Tokenizer


@dataclass(frozen=True)
class Sampling:
    """Temperature, top-k and top-p (nucleus) sampling.

    Temperature 0 takes the most likely token. Otherwise, logits are divided by the temperature, restricted to the
    `top_k` most likely tokens, and then to the smallest set of most likely tokens whose renormalized probabilities reach
    `top_p` (at least one token). Ties go to the lower id. A token is sampled by inverting the cumulative distribution.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < float("inf"):
            raise ConfigError(f"temperature={self.temperature}: must be finite and at least 0 (the most likely token)")
        if self.top_k is not None and self.top_k < 1:
            raise ConfigError(f"top_k={self.top_k}: must be at least 1")
        if not 0 <= self.top_p <= 1:
            raise ConfigError(f"top_p={self.top_p}: must be from 0 (the most likely token) to 1 (every token)")

    def sample(self, logits: Tensor, uniform: Tensor) -> Tensor:
        """(B, V) logits and (B,) uniform numbers in [0, 1) -> (B,) ids. Raises ConfigError if logits are not finite.

        Ids and uniform numbers are on the `float64_device` of the logits.
        """
        logits = logits.to(float64_device(logits.device))
        top = logits.amax(dim=-1, keepdim=True)  # NaN if the row contains one
        if not top.isfinite().all():
            raise ConfigError("the model's logits are not finite: it diverged in training; use an earlier checkpoint")
        if self.temperature == 0:
            return logits.argmax(dim=-1)  # ties go to the lowest id
        ids, exact = self.sample_candidates(self.top_k or N_CANDIDATES, logits, top, uniform)
        if not exact.all():
            rest = ~exact
            ids[rest] = self.sample_candidates(logits.shape[1], logits[rest], top[rest], uniform[rest])[0]
        return ids

    def sample_candidates(self, count: int, logits: Tensor, top: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor]:
        """(B,) ids sampled from the `count` most likely ones, and (B,) whether more candidates give the same ids."""
        order, ranked = top_candidates(logits, count)
        all_candidates = order.shape[1] == logits.shape[1] or count == self.top_k
        weights = self.weights(ranked, top)
        mass = weights.cumsum(dim=-1)
        total = mass[:, -1:] if all_candidates else self.weights(logits, top).sum(dim=-1, keepdim=True)
        kept = mass - weights < self.top_p * total
        kept[:, 0] = True
        kept_mass = (weights * kept).cumsum(dim=-1)
        target = uniform.double().unsqueeze(-1) * (total if self.top_p == 1 else kept_mass[:, -1:])
        rank = torch.searchsorted(kept_mass, target, right=True)
        rank = torch.minimum(rank, (kept & (weights > 0)).sum(dim=-1, keepdim=True) - 1)
        exact = (target < kept_mass[:, -1:]) & ~kept[:, -1:] if self.top_p < 1 else target < mass[:, -1:]
        return order.gather(-1, rank).squeeze(-1), exact.squeeze(-1) | all_candidates

    def weights(self, logits: Tensor, top: Tensor) -> Tensor:
        """Unnormalized probabilities, in float64."""
        return ((logits.double() - top.double()) / self.temperature).exp()


CPU = torch.device("cpu")

N_CANDIDATES = 1024
"""The most likely ids that are sorted first; all ids are sorted only if these do not determine the sample."""


def top_candidates(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` most likely ids of each row (B, V), most likely first with ties by id, and their logits."""
    B, V = logits.shape
    if count < V // 2:
        least = logits.topk(count, dim=-1, sorted=False).values.amin(dim=-1, keepdim=True)
        indices = (logits >= least).nonzero()
        if len(indices) == B * count:  # otherwise a tie extends beyond the last candidate
            ids = indices[:, 1].view(B, count)  # ascending
            candidates = logits.gather(-1, ids)
            order = candidates.argsort(dim=-1, descending=True, stable=True)
            return ids.gather(-1, order), candidates.gather(-1, order)
    order = logits.argsort(dim=-1, descending=True, stable=True)[:, :count]
    return order, logits.gather(-1, order)


def known_ids(tokenizer: Tokenizer, vocab_size: int, device: torch.device) -> Tensor | None:
    """The ids (K,) that can be chosen from a table of `vocab_size` rows, ascending; None if they are all.

    A row without a token, as tables have that are padded to a multiple of 64, would have no text.
    """
    known = np.arange(vocab_size) < tokenizer.vocab_size
    known[[index for index in tokenizer.missing_ids if index < vocab_size]] = False
    return None if known.all() else torch.from_numpy(known.nonzero()[0]).to(device)


def uniform_numbers(rows: Sequence[int], length: int, seed: int, device: torch.device = CPU) -> Tensor:
    """(len(rows), length) numbers in [0, 1) to sample from logits on `device`.

    Each row depends only on the seed and its row number.
    """
    numbers = np.empty((len(rows), length))
    if not 0 <= seed < 2**64:
        raise ConfigError(f"seed={seed}: must be an integer from 0 to 2**64 - 1")
    for index, row in enumerate(rows):
        numbers[index] = np.random.Generator(np.random.Philox(key=np.array([seed, row], dtype=np.uint64))).random(
            length
        )
    return torch.from_numpy(numbers).to(float64_device(device))

"""Which experts a token goes to, and what keeps them equally busy. Shapes: N tokens, X experts, k of them per token."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from partwise.parts.families import Flow, Trained
from partwise.parts.roles import Role

Score = Callable[[Tensor], Tensor]

SCORES: dict[str, Score] = {"softmax": partial(torch.softmax, dim=-1), "sigmoid": torch.sigmoid}


class Groups(NamedTuple):
    """Groups of neighbouring experts, of which a token chooses a few first: it then is sent to as many machines."""

    number: int
    k: int

    def limit(self, preference: Tensor) -> Tensor:
        grouped = preference.unflatten(-1, (self.number, -1))  # (N, groups, experts of a group)
        best = grouped.topk(min(2, grouped.shape[-1])).values.sum(-1)
        kept = torch.zeros_like(best, dtype=torch.bool).scatter(-1, highest(best, self.k), True)
        return grouped.masked_fill(~kept[..., None], float("-inf")).flatten(-2)


def highest(preference: Tensor, k: int) -> Tensor:
    """(N, X) -> (N, k) where the k highest stand. Not topk: of equals the first is taken, on every device."""
    return preference.sort(dim=-1, descending=True, stable=True).indices[:, :k]


class Balance(nn.Module):
    """What keeps experts equally busy: here nothing."""

    def preference(self, logits: Tensor, scores: Tensor) -> Tensor:
        """(N, X) by which experts are chosen."""
        return logits  # in the order of the scores, and apart where those round to 0 or 1

    def record(self, scores: Tensor, chosen: Tensor, flow: Flow | None) -> None:
        """Take note of a forward pass in training."""


class BalanceByLoss(Balance):
    def __init__(self, coefficient: float) -> None:
        super().__init__()
        self.coefficient = coefficient

    def record(self, scores: Tensor, chosen: Tensor, flow: Flow | None) -> None:
        if flow is None:
            return
        counted = tokens_that_count(scores, flow)  # (N, 1)
        picks = (count(chosen, scores.shape[-1]) * counted).sum(0)  # (X,)
        shares = (scores / total(scores) * counted).sum(0)
        product = (picks / picks.sum().clamp(min=1) * shares / counted.sum().clamp(min=1)).sum()
        flow.losses.append(self.coefficient * scores.shape[-1] * product)


class BalanceByBias(Balance, Trained):
    bias: Tensor
    load: Tensor

    def __init__(self, n_experts: int, rate: float) -> None:
        super().__init__()
        self.rate = rate
        self.register_buffer("bias", torch.zeros(n_experts))
        # whole numbers, which no change of precision rounds; a checkpoint is written between updates, when it is zero
        self.register_buffer("load", torch.zeros(n_experts, dtype=torch.long), persistent=False)

    def preference(self, logits: Tensor, scores: Tensor) -> Tensor:
        return scores + self.bias

    def record(self, scores: Tensor, chosen: Tensor, flow: Flow | None) -> None:
        picks = count(chosen, scores.shape[-1]) * tokens_that_count(scores, flow).long()
        self.load.add_(picks.sum(0))

    @torch.no_grad()
    def after_step(self) -> None:
        """In data-parallel training, sum `load` over the processes first: `bias` is then the same in all of them."""
        direction = torch.sign(self.load.sum() - self.load * len(self.load))  # in whole numbers, so that equal is equal
        self.bias += self.rate * direction.to(self.bias.dtype)
        self.load.zero_()


def total(scores: Tensor) -> Tensor:
    return scores.sum(-1, keepdim=True).clamp(min=1e-30)  # sigmoids may all round to zero


def tokens_that_count(scores: Tensor, flow: Flow | None) -> Tensor:
    """(N, 1) one for a token, zero for padding."""
    if flow is None or flow.segments is None:
        return scores.new_ones(scores.shape[0], 1)
    return (flow.segments[:, flow.past :].flatten() >= 0).to(scores.dtype)[:, None]


def count(chosen: Tensor, n_experts: int) -> Tensor:
    """(N, k) numbers of experts -> (N, X) one where an expert was chosen, else zero."""
    return (chosen[..., None] == torch.arange(n_experts, device=chosen.device)).sum(1)


class Router(nn.Module):
    """(N, D) tokens -> the weights (N, k) and the numbers (N, k) of their experts; in float32 or finer throughout."""

    def __init__(
        self,
        d_model: int,
        n_experts: int,
        k: int,
        score: Score,
        normalise: bool,
        scale: float,
        balance: Balance,
        groups: Groups | None,
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(n_experts, d_model))
        self.role: Role = "hidden"
        self.n_experts, self.k, self.score, self.normalise, self.scale = n_experts, k, score, normalise, scale
        self.balance, self.groups = balance, groups

    def forward(self, x: Tensor, flow: Flow | None) -> tuple[Tensor, Tensor]:
        logits = exact_linear(x, self.weight)  # (N, X)
        scores = self.score(logits)
        with torch.no_grad():
            chosen = highest(self.preference(logits, scores), self.k)
        weights = scores.gather(-1, chosen)
        if self.normalise:
            weights = weights / total(weights)
        if self.training:
            self.balance.record(scores, chosen, flow)
        return self.scale * weights, chosen

    def preference(self, logits: Tensor, scores: Tensor) -> Tensor:
        """(N, X) by which experts are chosen: minus infinity in the groups that are not."""
        if self.groups is None:
            return self.balance.preference(logits, scores)
        return self.groups.limit(self.balance.preference(scores, scores))


def exact_linear(x: Tensor, weight: Tensor) -> Tensor:
    """A linear map in float32 or finer, also where autocast would take less."""
    wide = torch.promote_types(x.dtype, torch.float32)
    if x.is_meta:  # which autocast does not know
        return F.linear(x.to(wide), weight.to(wide))
    with torch.autocast(x.device.type, enabled=False):
        return F.linear(x.to(wide), weight.to(wide))

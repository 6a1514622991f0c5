"""The routing of tokens to experts, and load balancing. Shapes: N tokens, X experts, k experts per token."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from partwise.parts.contracts import AfterStepHook, ForwardContext
from partwise.parts.roles import Role

ScoringFunction = Callable[[Tensor], Tensor]

SCORING_FUNCTIONS: dict[str, ScoringFunction] = {"softmax": partial(torch.softmax, dim=-1), "sigmoid": torch.sigmoid}


class ExpertGroups(NamedTuple):
    """Groups of adjacent experts; a token selects groups first, which limits the number of devices it is sent to."""

    n_groups: int
    top_k: int

    def mask_groups(self, preference: Tensor) -> Tensor:
        grouped = preference.unflatten(-1, (self.n_groups, -1))  # (N, groups, experts per group)
        group_scores = grouped.topk(min(2, grouped.shape[-1])).values.sum(-1)
        indices = top_k_indices(group_scores, self.top_k)
        selected = torch.zeros_like(group_scores, dtype=torch.bool).scatter(-1, indices, True)
        return grouped.masked_fill(~selected[..., None], float("-inf")).flatten(-2)


def top_k_indices(preference: Tensor, k: int) -> Tensor:
    """(N, X) -> (N, k) indices of the highest values. Unlike topk, prefers the first of equal values on every device."""
    return preference.sort(dim=-1, descending=True, stable=True).indices[:, :k]


class LoadBalancer(nn.Module):
    """Keeps the load of experts balanced; this base class does nothing."""

    def __init__(self) -> None:
        super().__init__()
        # replaced in data-parallel training, so that the balance is that of the global batch
        self.sum_over_processes: Callable[[Tensor], Tensor] = unchanged

    def preference(self, logits: Tensor, scores: Tensor) -> Tensor:
        """(N, X) values by which experts are selected."""
        return logits  # ordered as the scores, but still distinct where scores round to 0 or 1

    def record(self, scores: Tensor, selected: Tensor, ctx: ForwardContext | None) -> None:
        """Record a forward pass in training."""


class AuxLossBalancer(LoadBalancer):
    def __init__(self, coefficient: float) -> None:
        super().__init__()
        self.coefficient = coefficient

    def record(self, scores: Tensor, selected: Tensor, ctx: ForwardContext | None) -> None:
        if ctx is None:
            return
        mask = token_mask(scores, ctx)  # (N, 1)
        counts = self.sum_over_processes((multi_hot(selected, scores.shape[-1]) * mask).sum(0))  # (X,)
        n_tokens = self.sum_over_processes(mask.sum())
        score_sums = (scores / clamped_sum(scores) * mask).sum(0)
        # linear in this process's scores: the terms of all processes sum to that of the global batch
        dot = (counts / counts.sum().clamp(min=1) * score_sums / n_tokens.clamp(min=1)).sum()
        ctx.aux_losses.append(self.coefficient * scores.shape[-1] * dot)


class BiasBalancer(LoadBalancer, AfterStepHook):
    bias: Tensor
    load: Tensor

    def __init__(self, n_experts: int, update_rate: float) -> None:
        super().__init__()
        self.update_rate = update_rate
        self.register_buffer("bias", torch.zeros(n_experts))
        # integers, exact in any precision; not saved, since it is zero between steps, when checkpoints are written
        self.register_buffer("load", torch.zeros(n_experts, dtype=torch.long), persistent=False)

    def preference(self, logits: Tensor, scores: Tensor) -> Tensor:
        return scores + self.bias

    def record(self, scores: Tensor, selected: Tensor, ctx: ForwardContext | None) -> None:
        if ctx is not None and ctx.recomputing:
            return
        counts = multi_hot(selected, scores.shape[-1]) * token_mask(scores, ctx).long()
        self.load.add_(counts.sum(0))

    @torch.no_grad()
    def after_step(self) -> None:
        load = self.sum_over_processes(self.load)  # so that all processes have the same `bias`
        direction = torch.sign(load.sum() - load * len(load))  # integers, so that ties are exact
        self.bias += self.update_rate * direction.to(self.bias.dtype)
        self.load.zero_()


def unchanged(x: Tensor) -> Tensor:
    """The sum over one process."""
    return x


def clamped_sum(scores: Tensor) -> Tensor:
    return scores.sum(-1, keepdim=True).clamp(min=1e-30)  # all sigmoids may round to zero


def token_mask(scores: Tensor, ctx: ForwardContext | None) -> Tensor:
    """(N, 1) one for a token, zero for padding."""
    if ctx is None or ctx.document_ids is None:
        return scores.new_ones(scores.shape[0], 1)
    return (ctx.document_ids[:, ctx.past_length :].flatten() >= 0).to(scores.dtype)[:, None]


def multi_hot(selected: Tensor, n_experts: int) -> Tensor:
    """(N, k) expert indices -> (N, X) one for a selected expert, else zero."""
    return (selected[..., None] == torch.arange(n_experts, device=selected.device)).sum(1)


class Router(nn.Module):
    """(N, D) tokens -> weights (N, k) and indices (N, k) of their experts, in float32 or higher precision."""

    def __init__(
        self,
        d_model: int,
        n_experts: int,
        top_k: int,
        scoring_func: ScoringFunction,
        norm_topk_prob: bool,
        routed_scaling_factor: float,
        balance: LoadBalancer,
        groups: ExpertGroups | None,
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(n_experts, d_model))
        self.role: Role = "hidden"
        self.n_experts, self.top_k, self.scoring_func = n_experts, top_k, scoring_func
        self.norm_topk_prob, self.routed_scaling_factor = norm_topk_prob, routed_scaling_factor
        self.balance, self.groups = balance, groups

    def forward(self, x: Tensor, ctx: ForwardContext | None) -> tuple[Tensor, Tensor]:
        logits = float32_linear(x, self.weight)  # (N, X)
        scores = self.scoring_func(logits)
        with torch.no_grad():
            selected = top_k_indices(self.preference(logits, scores), self.top_k)
        weights = scores.gather(-1, selected)
        if self.norm_topk_prob:
            weights = weights / clamped_sum(weights)
        if self.training:
            self.balance.record(scores, selected, ctx)
        return self.routed_scaling_factor * weights, selected

    def preference(self, logits: Tensor, scores: Tensor) -> Tensor:
        """(N, X) values by which experts are selected: -inf outside the selected groups."""
        if self.groups is None:
            return self.balance.preference(logits, scores)
        return self.groups.mask_groups(self.balance.preference(scores, scores))


def float32_linear(x: Tensor, weight: Tensor) -> Tensor:
    """A linear map in float32 or higher precision, even under autocast."""
    dtype = torch.promote_types(x.dtype, torch.float32)
    if x.is_meta:  # not supported by autocast
        return F.linear(x.to(dtype), weight.to(dtype))
    with torch.autocast(x.device.type, enabled=False):
        return F.linear(x.to(dtype), weight.to(dtype))

"""The mixture of experts at `ffn=moe`: a router, experts stacked in one tensor per matrix, and ways to balance them.

No expert has a capacity and no token is dropped: what a token gets depends on that token alone. Further shapes:

    N tokens   X experts   P = N k pairs of a token and one of its experts
"""

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.flop_counter import register_flop_formula

from partwise.config import ConfigError, part
from partwise.parts.families import FeedForward, Flow, Role, Site, Trained
from partwise.parts.mlp import GATED, MLP, UNGATED, Activation, GatedMLP

Score = Callable[[Tensor], Tensor]

SCORES: dict[str, Score] = {"softmax": partial(torch.softmax, dim=-1), "sigmoid": torch.sigmoid}


@part("moe")
class Mixture(FeedForward):
    """sum over the k experts e of the highest score s_e(x) of w_e expert_e(x), plus the shared experts of every token.

    s is the softmax or the sigmoid of router(x); w_e is s_e, `normalise` divides it by the sum over the k, and
    `routed_scale` multiplies it. An expert is a feed-forward of the given `kind`, `hidden` (or `expansion` times D)
    wide. Shazeer et al. 2017, arXiv:1701.06538; k = 1: Fedus et al. 2021, arXiv:2101.03961; normalised: Jiang et al.
    2024, arXiv:2401.04088; shared experts: Dai et al. 2024, arXiv:2401.06066.

    Balance: `loss` adds loss_coefficient X sum_e f_e P_e to the training loss, where f_e is the share of all choices
    that fell on e and P_e the mean share of e in a token's scores; both equal, it is loss_coefficient. `bias` adds b_e
    to s_e where experts are chosen, and nowhere else; after each update b_e grows by bias_rate where e was chosen less
    often than the mean, and falls where more often. DeepSeek-AI 2024, arXiv:2412.19437.
    """

    kind: Literal["relu", "relu2", "gelu", "elu", "swish", "glu", "bilinear", "reglu", "geglu", "swiglu"] = "swiglu"
    n_experts: int = Field(8, ge=2, le=2**16)
    k: int = Field(2, ge=1)
    n_shared: int = Field(0, ge=0, le=2**16)
    hidden: int | None = Field(None, gt=0, le=2**24)
    expansion: float = Field(4 / 3, gt=0, le=1000)  # two chosen experts are then as wide as one dense swiglu
    score: Literal["softmax", "sigmoid"] = "softmax"
    normalise: bool = True
    routed_scale: float = Field(1.0, gt=0)
    balance: Literal["none", "loss", "bias"] = "none"
    loss_coefficient: float = Field(0.01, gt=0)
    bias_rate: float = Field(0.001, gt=0)

    def build(self, site: Site) -> nn.Module:
        width, hidden, gated = site.d_model, self.hidden or round(self.expansion * site.d_model), self.kind in GATED
        if hidden < 1:
            raise ConfigError(
                f"ffn.expansion={self.expansion} leaves no hidden unit at d_model={site.d_model}: raise it"
            )
        if self.n_experts < self.k:
            raise ConfigError(
                f"ffn.n_experts={self.n_experts}: experts fewer than k={self.k}, which each token takes: lower ffn.k"
            )
        if self.k == 1 and self.normalise:
            raise ConfigError(
                "ffn.k=1 with ffn.normalise=true gives the one expert of a token the weight 1 whatever the router "
                "says, which then learns nothing: set ffn.normalise=false"
            )
        activation = GATED[self.kind] if gated else UNGATED[self.kind]
        experts = (GatedExperts if gated else PlainExperts)(self.n_experts, width, hidden, activation)
        dense = GatedMLP if gated else MLP
        shared = dense(width, self.n_shared * hidden, activation) if self.n_shared else None
        score = SCORES[self.score]
        router = Router(width, self.n_experts, self.k, score, self.normalise, self.routed_scale, self.new_balance())
        return MixtureOfExperts(router, experts, shared)

    def new_balance(self) -> "Balance":
        if self.balance == "loss":
            return BalanceByLoss(self.loss_coefficient)
        return BalanceByBias(self.n_experts, self.bias_rate) if self.balance == "bias" else Balance()


class MixtureOfExperts(nn.Module):
    def __init__(self, router: "Router", experts: "PlainExperts | GatedExperts", shared: nn.Module | None) -> None:
        super().__init__()
        self.router, self.experts, self.shared = router, experts, shared

    def forward(self, x: Tensor, flow: Flow | None = None) -> Tensor:
        weights, chosen = self.router(x.flatten(0, -2), flow)  # (N, k) each
        k = chosen.shape[-1]
        expert, order = chosen.flatten().sort(stable=True)  # (P,) the pairs, expert by expert
        numbers = torch.arange(self.router.n_experts, device=x.device)
        ends = torch.searchsorted(expert, numbers, right=True)  # (X,) where the pairs of each expert end
        y = self.experts(as_product(x).flatten(0, -2)[order // k], ends)  # (P, D)
        y = y[order.argsort()].view(*weights.shape, -1)
        y = (y * weights[..., None]).sum(1).to(y.dtype).view(x.shape)
        return y if self.shared is None else y + self.shared(x, flow)

    def idle(self) -> int:
        """How many of the layer's parameters one token makes no use of."""
        stacked = sum(parameter.numel() for parameter in self.experts.parameters())
        return stacked // self.router.n_experts * (self.router.n_experts - self.router.k)


class Router(nn.Module):
    """(N, D) tokens -> the weights (N, k) and the numbers (N, k) of their experts; in float32 or finer throughout."""

    def __init__(
        self, d_model: int, n_experts: int, k: int, score: Score, normalise: bool, scale: float, balance: "Balance"
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(n_experts, d_model))
        self.role: Role = "hidden"
        self.n_experts, self.k, self.score, self.normalise, self.scale = n_experts, k, score, normalise, scale
        self.balance = balance

    def forward(self, x: Tensor, flow: Flow | None) -> tuple[Tensor, Tensor]:
        logits = exact_linear(x, self.weight)  # (N, X)
        scores = self.score(logits)
        with torch.no_grad():
            # not topk: of equal scores the first expert is taken, on every device
            chosen = self.balance.preference(logits, scores).sort(dim=-1, descending=True, stable=True).indices
            chosen = chosen[:, : self.k]
        weights = scores.gather(-1, chosen)
        if self.normalise:
            weights = weights / total(weights)
        if self.training:
            self.balance.record(scores, chosen, flow)
        return self.scale * weights, chosen


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


class PlainExperts(nn.Module):
    """(P, D) -> (P, D) row by row through the expert of each, as `MLP` does."""

    def __init__(self, n_experts: int, d_model: int, hidden: int, activation: Activation) -> None:
        super().__init__()
        self.up = ExpertLinear(n_experts, d_model, hidden, "hidden")
        self.activation = activation
        self.down = ExpertLinear(n_experts, hidden, d_model, "output")

    def forward(self, x: Tensor, ends: Tensor) -> Tensor:
        return self.down(self.activation(self.up(x, ends)), ends)


class GatedExperts(nn.Module):
    """(P, D) -> (P, D) row by row through the expert of each, as `GatedMLP` does."""

    def __init__(self, n_experts: int, d_model: int, hidden: int, activation: Activation) -> None:
        super().__init__()
        self.gate = ExpertLinear(n_experts, d_model, hidden, "hidden")
        self.up = ExpertLinear(n_experts, d_model, hidden, "hidden")
        self.activation = activation
        self.down = ExpertLinear(n_experts, hidden, d_model, "output")

    def forward(self, x: Tensor, ends: Tensor) -> Tensor:
        return self.down(self.activation(self.gate(x, ends)) * self.up(x, ends), ends)


class ExpertLinear(nn.Module):
    """As many linear maps as there are experts, in one tensor."""

    def __init__(self, n_experts: int, d_in: int, d_out: int, role: Role) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(n_experts, d_out, d_in))
        self.role = role

    def forward(self, x: Tensor, ends: Tensor) -> Tensor:
        return grouped_linear(x, self.weight.to(x.dtype), ends)


def exact_linear(x: Tensor, weight: Tensor) -> Tensor:
    """A linear map in float32 or finer, also where autocast would take less."""
    wide = torch.promote_types(x.dtype, torch.float32)
    if x.is_meta:  # which autocast does not know
        return F.linear(x.to(wide), weight.to(wide))
    with torch.autocast(x.device.type, enabled=False):
        return F.linear(x.to(wide), weight.to(wide))


def as_product(x: Tensor) -> Tensor:
    """x in the precision in which autocast takes matrix products: it does not know ours."""
    if x.is_meta or not torch.is_autocast_enabled(x.device.type):
        return x
    return x.to(torch.get_autocast_dtype(x.device.type))


# Operators of our own, because sizes that depend on values break a compiled graph, and inside an operator they do not.


@torch.library.custom_op("partwise::grouped_linear", mutates_args=())
def grouped_linear(x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    """x (P, I) and weight (X, O, I) -> (P, O): rows up to ends[0] by weight[0], those up to ends[1] by weight[1], ..."""
    y = x.new_empty(x.shape[0], weight.shape[1])
    for expert, (start, end) in enumerate(pairwise([0, *ends.tolist()])):
        if start < end:
            torch.mm(x[start:end], weight[expert].T, out=y[start:end])
    return y


@torch.library.custom_op("partwise::grouped_outer", mutates_args=())
def grouped_outer(y: Tensor, x: Tensor, ends: Tensor) -> Tensor:
    """y (P, O) and x (P, I) -> (X, O, I): the sum of outer products over the rows of each expert."""
    weight = x.new_empty(len(ends), y.shape[1], x.shape[1])
    for expert, (start, end) in enumerate(pairwise([0, *ends.tolist()])):
        torch.mm(y[start:end].T, x[start:end], out=weight[expert])  # zero where there is no row
    return weight


@grouped_linear.register_fake
def _(x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    return x.new_empty(x.shape[0], weight.shape[1])


@grouped_outer.register_fake
def _(y: Tensor, x: Tensor, ends: Tensor) -> Tensor:
    return x.new_empty(ends.shape[0], y.shape[1], x.shape[1])


def remember(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def differentiate(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
    x, weight, ends = ctx.saved_tensors
    grad = grad.contiguous()
    wants_x, wants_weight, _ = ctx.needs_input_grad
    return (
        grouped_linear(grad, weight.transpose(1, 2), ends) if wants_x else None,
        grouped_outer(grad, x, ends) if wants_weight else None,
        None,
    )


grouped_linear.register_autograd(differentiate, setup_context=remember)


@register_flop_formula([torch.ops.partwise.grouped_linear, torch.ops.partwise.grouped_outer])
def count_products(first: tuple[int, ...], second: tuple[int, ...], *_: Any, out_shape: Any = None, **__: Any) -> int:
    """Two operations for each row, output and input, whichever expert a row belongs to."""
    # x and weight (.., O, I), or the gradient (P, O) and x (P, I)
    return 2 * first[0] * second[-1] * (second[-2] if len(second) == 3 else first[1])

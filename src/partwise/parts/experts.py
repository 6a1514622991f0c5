"""The mixture of experts at `ffn=moe`: a router, experts stacked in one tensor per matrix, and ways to balance them.

No expert has a capacity and no token is dropped: what a token gets depends on that token alone. Further shapes:

    N tokens   X experts   P = N k pairs of a token and one of its experts
"""

from itertools import pairwise
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.utils.flop_counter import register_flop_formula

from partwise.config import ConfigError, part
from partwise.parts.families import FeedForward, Flow, Site
from partwise.parts.mlp import GATED, MLP, UNGATED, Activation, GatedMLP
from partwise.parts.roles import Role
from partwise.parts.routing import SCORES, Balance, BalanceByBias, BalanceByLoss, Groups, Router


@part("moe")
class Mixture(FeedForward):
    """sum over the k experts e of the highest score s_e(x) of w_e expert_e(x), plus the shared experts of every token.

    s is the softmax or the sigmoid of router(x); w_e is s_e, `normalise` divides it by the sum over the k, and
    `routed_scale` multiplies it. An expert is a feed-forward of the given `kind`, `hidden` (or `expansion` times D)
    wide. Shazeer et al. 2017, arXiv:1701.06538; k = 1: Fedus et al. 2021, arXiv:2101.03961; normalised: Jiang et al.
    2024, arXiv:2401.04088; shared experts: Dai et al. 2024, arXiv:2401.06066. With `n_groups` of neighbouring experts a
    token chooses among the `k_groups` groups whose two highest scores sum to most: arXiv:2412.19437.

    Balance: `loss` adds loss_coefficient X sum_e f_e P_e to the training loss, where f_e is the share of all choices
    that fell on e and P_e the mean share of e in a token's scores; both equal, it is loss_coefficient. `bias` adds b_e
    to s_e where experts are chosen, and nowhere else; after each update b_e grows by bias_rate where e was chosen less
    often than the mean, and falls where more often. DeepSeek-AI 2024, arXiv:2412.19437.
    """

    kind: Literal["relu", "relu2", "gelu", "elu", "swish", "glu", "bilinear", "reglu", "geglu", "swiglu"] = "swiglu"
    n_experts: int = Field(8, ge=2, le=2**16)
    k: int = Field(2, ge=1)
    n_shared: int = Field(0, ge=0, le=2**16)
    n_groups: int = Field(1, ge=1, le=2**16)
    k_groups: int = Field(1, ge=1)
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
        self.check_groups()
        if self.k == 1 and self.normalise:
            raise ConfigError(
                "ffn.k=1 with ffn.normalise=true gives the one expert of a token the weight 1 whatever the router "
                "says, which then learns nothing: set ffn.normalise=false"
            )
        activation = GATED[self.kind] if gated else UNGATED[self.kind]
        experts = (GatedExperts if gated else PlainExperts)(self.n_experts, width, hidden, activation)
        dense = GatedMLP if gated else MLP
        shared = dense(width, self.n_shared * hidden, activation) if self.n_shared else None
        groups = Groups(self.n_groups, self.k_groups) if self.n_groups > 1 else None
        score, balance = SCORES[self.score], self.new_balance()
        router = Router(width, self.n_experts, self.k, score, self.normalise, self.routed_scale, balance, groups)
        return MixtureOfExperts(router, experts, shared)

    def check_groups(self) -> None:
        if self.n_experts % self.n_groups:
            raise ConfigError(
                f"ffn.n_groups={self.n_groups} does not divide ffn.n_experts={self.n_experts}: choose a divisor"
            )
        if self.k_groups > self.n_groups:
            raise ConfigError(f"ffn.k_groups={self.k_groups} exceeds ffn.n_groups={self.n_groups}: lower it")
        among = self.n_experts // self.n_groups * self.k_groups
        if self.k > among:
            raise ConfigError(
                f"ffn.k={self.k} experts are not found among the {among} of ffn.k_groups={self.k_groups} groups: lower "
                "ffn.k, or raise ffn.k_groups"
            )

    def new_balance(self) -> Balance:
        if self.balance == "loss":
            return BalanceByLoss(self.loss_coefficient)
        return BalanceByBias(self.n_experts, self.bias_rate) if self.balance == "bias" else Balance()


class MixtureOfExperts(nn.Module):
    def __init__(self, router: Router, experts: "PlainExperts | GatedExperts", shared: nn.Module | None) -> None:
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

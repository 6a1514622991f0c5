"""Mixture of experts, `ffn=moe`: a router with load balancing, and experts stacked in one tensor per matrix.

Experts have no capacity limit and no token is dropped, so the output of a token depends only on that token. More shapes:

    N tokens   X experts   P = N k (token, expert) pairs
"""

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Annotated, Any, Literal

import torch
import torch.nn.functional as F
from pydantic import AfterValidator, Field
from torch import Tensor, nn
from torch.utils.flop_counter import register_flop_formula

from partwise.config import REGISTRY, ConfigError, Part, did_you_mean, part
from partwise.parts.contracts import FeedForward, ForwardContext, LayerContext
from partwise.parts.feed_forward.dense import FeedForwardOptions, Gated
from partwise.parts.feed_forward.mlp import MLP, OTHER, Activation, GatedMLP
from partwise.parts.feed_forward.router import (
    SCORING_FUNCTIONS,
    AuxLossBalancer,
    BiasBalancer,
    ExpertGroups,
    LoadBalancer,
    Router,
)
from partwise.parts.roles import Role


def dense_recipes() -> dict[str, type[FeedForwardOptions]]:
    """The dense feed-forward layers by name, which an expert computes with their default options."""
    found = REGISTRY[FeedForward.family].items()
    return {name: recipe for name, recipe in found if issubclass(recipe, FeedForwardOptions)}


def check_expert(name: str) -> str:
    known = dense_recipes()
    if name not in known:
        raise ValueError(
            f"expected a dense feed-forward layer{did_you_mean(name, known)}; --import FILE loads custom parts"
        )
    return name


@part("moe")
class MoE(FeedForward):
    """sum_e w_e expert_e(x) over the k = `top_k` experts with the highest scores s_e(x), plus the shared experts.

    s is the softmax or sigmoid of router(x). The weight w_e is s_e, divided by its sum over the k experts with
    `norm_topk_prob`, times `routed_scaling_factor`. An expert is a feed-forward layer of type `expert` with hidden width
    `hidden` (default: `expansion` times D). Shazeer et al. 2017, arXiv:1701.06538; k = 1: Fedus et al. 2021,
    arXiv:2101.03961; normalized: Jiang et al. 2024, arXiv:2401.04088; shared experts: Dai et al. 2024, arXiv:2401.06066.
    With `n_groups` groups of adjacent experts, a token selects experts from the `top_k_groups` groups with the highest
    sum of their two highest scores: arXiv:2412.19437.

    Load balancing: `aux_loss` adds aux_loss_coef X sum_e f_e P_e to the training loss, where f_e is the fraction of
    selections of e and P_e the mean fraction of e in a token's scores; it equals aux_loss_coef if both are uniform. `bias`
    adds b_e to s_e for selection only; after each step, b_e increases by bias_update_rate if e was selected less often
    than the mean, and decreases if more often. DeepSeek-AI 2024, arXiv:2412.19437.
    """

    expert: Annotated[str, AfterValidator(check_expert)] = "swiglu"
    """The kind of each expert: the name of a dense feed-forward layer."""
    n_experts: int = Field(8, ge=2, le=2**16)
    """The number of experts; each token uses `top_k` of them."""
    top_k: int = Field(2, ge=1)
    """Experts that each token uses."""
    n_shared_experts: int = Field(0, ge=0, le=2**16)
    """Experts that every token uses besides."""
    n_groups: int = Field(1, ge=1, le=2**16)
    """Groups of adjacent experts."""
    top_k_groups: int = Field(1, ge=1)
    """Groups that a token selects experts from."""
    hidden: int | None = Field(None, gt=0, le=2**24)
    """Hidden units of an expert. Default: `expansion` times d_model."""
    expansion: float = Field(4 / 3, gt=0, le=1000)
    """Hidden units of an expert per number of d_model. At 4/3, two experts are as wide as one dense swiglu."""
    scoring_func: Literal["softmax", "sigmoid"] = "softmax"
    """What turns the router's outputs into scores."""
    norm_topk_prob: bool = True
    """Divide the selected scores by their sum."""
    routed_scaling_factor: float = Field(1.0, gt=0)
    """A factor of the selected experts' weights."""
    load_balancing: Literal["none", "aux_loss", "bias"] = "none"
    """How experts are kept equally busy: a loss, or a bias that only selects."""
    aux_loss_coef: float = Field(0.01, gt=0)
    """The coefficient of that loss."""
    bias_update_rate: float = Field(0.001, gt=0)
    """The change of that bias after each step."""

    def build(self, layer_ctx: LayerContext) -> nn.Module:
        width, hidden, gated = (
            layer_ctx.d_model,
            self.hidden or round(self.expansion * layer_ctx.d_model),
            issubclass(dense_recipes()[self.expert], Gated),
        )
        if hidden < 1:
            raise ConfigError(
                f"ffn.expansion={self.expansion} rounds to no hidden unit at d_model={layer_ctx.d_model}: raise it"
            )
        if self.n_experts < self.top_k:
            raise ConfigError(f"ffn.n_experts={self.n_experts} is less than ffn.top_k={self.top_k}: lower ffn.top_k")
        self.check_groups()
        if self.top_k == 1 and self.norm_topk_prob:
            raise ConfigError(
                "ffn.top_k=1 with ffn.norm_topk_prob=true always gives a token's one expert the weight 1, so the router "
                "does not learn: set ffn.norm_topk_prob=false"
            )
        function = dense_recipes()[self.expert]().activation().function
        experts = (GatedExperts if gated else UngatedExperts)(self.n_experts, width, hidden, function)
        dense, n_shared = GatedMLP if gated else MLP, self.n_shared_experts
        # as the routed experts, computed by torch: no kernel is chosen for shared ones
        shared = dense(width, n_shared * hidden, Activation(OTHER, function)) if n_shared else None
        groups = ExpertGroups(self.n_groups, self.top_k_groups) if self.n_groups > 1 else None
        scoring_func, load_balancer = SCORING_FUNCTIONS[self.scoring_func], self.build_load_balancer()
        router = Router(
            width,
            self.n_experts,
            self.top_k,
            scoring_func,
            self.norm_topk_prob,
            self.routed_scaling_factor,
            load_balancer,
            groups,
        )
        return MixtureOfExperts(router, experts, shared)

    def parts(self) -> Iterator[Part]:
        """With the expert's recipe, since its activation may be the user's own."""
        yield from super().parts()
        yield dense_recipes()[self.expert]()

    def check_groups(self) -> None:
        if self.n_experts % self.n_groups:
            raise ConfigError(
                f"ffn.n_groups={self.n_groups} does not divide ffn.n_experts={self.n_experts}: choose a divisor"
            )
        if self.top_k_groups > self.n_groups:
            raise ConfigError(f"ffn.top_k_groups={self.top_k_groups} exceeds ffn.n_groups={self.n_groups}: lower it")
        n_candidates = self.n_experts // self.n_groups * self.top_k_groups
        if self.top_k > n_candidates:
            raise ConfigError(
                f"ffn.top_k={self.top_k} exceeds the {n_candidates} experts of ffn.top_k_groups={self.top_k_groups} "
                "groups: lower ffn.top_k, or raise ffn.top_k_groups"
            )

    def build_load_balancer(self) -> LoadBalancer:
        if self.load_balancing == "aux_loss":
            return AuxLossBalancer(self.aux_loss_coef)
        return BiasBalancer(self.n_experts, self.bias_update_rate) if self.load_balancing == "bias" else LoadBalancer()


class MixtureOfExperts(nn.Module):
    def __init__(self, router: Router, experts: "UngatedExperts | GatedExperts", shared: nn.Module | None) -> None:
        super().__init__()
        self.router, self.experts, self.shared = router, experts, shared

    def forward(self, x: Tensor, ctx: ForwardContext | None = None) -> Tensor:
        weights, selected = self.router(x.flatten(0, -2), ctx)  # (N, k) each
        k = selected.shape[-1]
        expert, order = selected.flatten().sort(stable=True)  # (P,) pairs, sorted by expert
        indices = torch.arange(self.router.n_experts, device=x.device)
        ends = torch.searchsorted(expert, indices, right=True)  # (X,) end of each expert's pairs
        y = self.experts(to_autocast_dtype(x).flatten(0, -2)[order // k], ends)  # (P, D)
        y = y[order.argsort()].view(*weights.shape, -1)
        y = (y * weights[..., None]).sum(1).to(y.dtype).view(x.shape)
        return y if self.shared is None else y + self.shared(x, ctx)


class UngatedExperts(nn.Module):
    """(P, D) -> (P, D), each row by its expert, as `MLP`."""

    def __init__(self, n_experts: int, d_model: int, hidden: int, activation: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.up = ExpertLinear(n_experts, d_model, hidden, "hidden")
        self.activation = activation
        self.down = ExpertLinear(n_experts, hidden, d_model, "output")

    def forward(self, x: Tensor, ends: Tensor) -> Tensor:
        return self.down(self.activation(self.up(x, ends)), ends)


class GatedExperts(nn.Module):
    """(P, D) -> (P, D), each row by its expert, as `GatedMLP`."""

    def __init__(self, n_experts: int, d_model: int, hidden: int, activation: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.gate = ExpertLinear(n_experts, d_model, hidden, "hidden")
        self.up = ExpertLinear(n_experts, d_model, hidden, "hidden")
        self.activation = activation
        self.down = ExpertLinear(n_experts, hidden, d_model, "output")

    def forward(self, x: Tensor, ends: Tensor) -> Tensor:
        return self.down(self.activation(self.gate(x, ends)) * self.up(x, ends), ends)


class ExpertLinear(nn.Module):
    """The linear layers of all experts, in one tensor."""

    def __init__(self, n_experts: int, d_in: int, d_out: int, role: Role) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(n_experts, d_out, d_in))
        self.role = role

    def forward(self, x: Tensor, ends: Tensor) -> Tensor:
        return grouped_linear(x, self.weight.to(x.dtype), ends)


def to_autocast_dtype(x: Tensor) -> Tensor:
    """Cast x as autocast would for a matmul; autocast does not know our custom operators."""
    if x.is_meta or not torch.is_autocast_enabled(x.device.type):
        return x
    return x.to(torch.get_autocast_dtype(x.device.type))


# Custom operators, since data-dependent sizes would break a compiled graph.


@torch.library.custom_op("partwise::grouped_linear", mutates_args=())
def grouped_linear(x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    """x (P, I) and weight (X, O, I) -> (P, O): rows before ends[0] by weight[0], rows before ends[1] by weight[1], ..."""
    y = x.new_empty(x.shape[0], weight.shape[1])
    for expert, (start, end) in enumerate(pairwise([0, *ends.tolist()])):
        if start < end:
            y[start:end] = torch.mm(padded_rows(x, start, end), weight[expert].T)[: end - start]
    return y


@torch.library.custom_op("partwise::grouped_outer", mutates_args=())
def grouped_outer(y: Tensor, x: Tensor, ends: Tensor) -> Tensor:
    """y (P, O) and x (P, I) -> (X, O, I): the sum of outer products over each expert's rows."""
    weight = x.new_empty(len(ends), y.shape[1], x.shape[1])
    for expert, (start, end) in enumerate(pairwise([0, *ends.tolist()])):
        # zero for an expert without rows
        torch.mm(padded_rows(y, start, end).T, padded_rows(x, start, end), out=weight[expert])
    return weight


def padded_rows(x: Tensor, start: int, end: int) -> Tensor:
    """Rows of x; on a CPU in half precision with rows of zeros, so that few numbers of rows occur.

    oneDNN generates the code of a matmul for each shape that it has not met, which takes longer than the matmul: 4 ms against
    0.2 ms for 512 rows.
    """
    rows = x[start:end]
    if x.device.type != "cpu" or x.dtype not in (torch.bfloat16, torch.float16):
        return rows
    return F.pad(rows, (0, 0, 0, padded_number(end - start) - (end - start)))


def padded_number(rows: int) -> int:
    """The next power of two up to 64, the next multiple of 64 beyond."""
    return -(-rows // 64) * 64 if rows > 64 else 1 << (rows - 1).bit_length() if rows else 0


@grouped_linear.register_fake
def _(x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    return x.new_empty(x.shape[0], weight.shape[1])


@grouped_outer.register_fake
def _(y: Tensor, x: Tensor, ends: Tensor) -> Tensor:
    return x.new_empty(ends.shape[0], y.shape[1], x.shape[1])


def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
    x, weight, ends = ctx.saved_tensors
    grad = grad.contiguous()
    needs_x, needs_weight, _ = ctx.needs_input_grad
    return (
        grouped_linear(grad, weight.transpose(1, 2), ends) if needs_x else None,
        grouped_outer(grad, x, ends) if needs_weight else None,
        None,
    )


grouped_linear.register_autograd(backward, setup_context=setup_context)


@register_flop_formula([torch.ops.partwise.grouped_linear, torch.ops.partwise.grouped_outer])
def grouped_linear_flops(
    first: tuple[int, ...], second: tuple[int, ...], *_: Any, out_shape: Any = None, **__: Any
) -> int:
    """Two operations per row, output and input, regardless of the row's expert."""
    # x and weight (.., O, I), or the gradient (P, O) and x (P, I)
    return 2 * first[0] * second[-1] * (second[-2] if len(second) == 3 else first[1])

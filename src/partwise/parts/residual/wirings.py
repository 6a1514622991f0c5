"""Residual wiring, `residual=`. Each `forward` below is the wiring diagram of its part."""

from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn

from partwise.config import ConfigError, part
from partwise.parts.contracts import Branch, ForwardContext, LayerContext, NewNorm, Residual, StackEnds
from partwise.parts.dropout import Dropout
from partwise.parts.operations import ResidualSpec, norm_specs
from partwise.parts.roles import TensorSpec


class ResidualOptions(Residual):
    """Options of every wiring: dropout on the output of each branch, and a norm after the last block."""

    norm_last: ClassVar[bool] = False  # whether a block ends with a norm
    dropout: float = Field(0.0, ge=0, lt=1)
    """Dropout rate on the output of each branch, before it is added."""
    final_norm: bool = True
    """A norm after the last block."""

    def build_ends(self, layer_ctx: LayerContext, new_norm: NewNorm) -> StackEnds:
        if not self.final_norm:
            return StackEnds()
        return FinalNorm(self.reject_scalar_norm(new_norm()) if self.norm_last else new_norm())

    def reject_scalar_norm(self, norm: nn.Module) -> nn.Module:
        """Reject a norm with a scalar weight, which the next norm would cancel."""
        weight = getattr(norm, "weight", None)
        if weight is not None and weight.dim() == 0:
            raise ConfigError(
                f"residual={self.name} applies a norm to a norm, which cancels the scalar weight of norms like scalenorm: "
                "choose a norm with a weight per element, or, if this is the final norm, residual.final_norm=false"
            )
        return norm


@part("pre")
class PreNorm(ResidualOptions):
    """x + dropout(branch(norm(x))), and a norm after the last block. Xiong et al. 2020, arXiv:2002.04745."""

    def build(self, layer_ctx: LayerContext, branches: list[str], new_norm: NewNorm) -> nn.Module:
        return PreNormWiring(branches, new_norm, self.dropout)


@part("none")
class NoResidual(ResidualOptions):
    """dropout(branch(norm(x))): `pre` without the residual stream of He et al. 2015, arXiv:1512.03385.

    Each branch replaces x, so tokens and gradients pass through every branch. Norms are those of `pre`.
    """

    def build(self, layer_ctx: LayerContext, branches: list[str], new_norm: NewNorm) -> nn.Module:
        return NoResidualWiring(branches, new_norm, self.dropout)


@part("post")
class PostNorm(ResidualOptions):
    """norm(x + dropout(branch(x))). Vaswani et al. 2017, arXiv:1706.03762."""

    norm_last: ClassVar[bool] = True
    final_norm: bool = False

    def build(self, layer_ctx: LayerContext, branches: list[str], new_norm: NewNorm) -> nn.Module:
        return PostNormWiring(branches, new_norm, self.dropout)


@part("sandwich")
class Sandwich(ResidualOptions):
    """x + post_norm(dropout(branch(norm(x)))). Ding et al. 2021, arXiv:2105.13290; Gemma 2, arXiv:2408.00118."""

    def build(self, layer_ctx: LayerContext, branches: list[str], new_norm: NewNorm) -> nn.Module:
        return SandwichWiring(branches, lambda: self.reject_scalar_norm(new_norm()), self.dropout)


@part("reordered")
class Reordered(ResidualOptions):
    """x + norm(dropout(branch(x))). Swin v2, arXiv:2111.09883; OLMo 2, arXiv:2501.00656."""

    def build(self, layer_ctx: LayerContext, branches: list[str], new_norm: NewNorm) -> nn.Module:
        return ReorderedWiring(branches, new_norm, self.dropout)


@part("parallel")
class Parallel(ResidualOptions):
    """x + dropout(attention(norm(x))) + dropout(ffn(norm(x))). Wang & Komatsuzaki 2021 (GPT-J); PaLM, arXiv:2204.02311.

    Cross-attention is a third term. Without `shared_norm`, every branch has its own norm: GPT-NeoX, arXiv:2204.06745.
    """

    shared_norm: bool = True
    """One norm for all branches of a block."""

    def build(self, layer_ctx: LayerContext, branches: list[str], new_norm: NewNorm) -> nn.Module:
        return ParallelWiring(branches, new_norm, self.dropout, self.shared_norm)


@part("rezero")
class ReZero(ResidualOptions):
    """x + a dropout(branch(x)), with a scalar a per block, initially 0; no norm. Bachlechner et al. 2020, arXiv:2003.04887.

    `norm=` is only used by `final_norm`.
    """

    final_norm: bool = False

    def build(self, layer_ctx: LayerContext, branches: list[str], new_norm: NewNorm) -> nn.Module:
        return ReZeroWiring(branches, self.dropout)


@part("layerscale")
class LayerScale(ResidualOptions):
    """x + gamma * dropout(branch(norm(x))), a vector gamma per branch. Touvron et al. 2021, arXiv:2103.17239.

    `init_value` initializes gamma. The default is the paper's: 0.1 up to 18 layers, 1e-5 up to 24, and 1e-6 beyond.
    """

    init_value: float | None = Field(None, ge=0, le=1)
    """The initial value of gamma. Default: the paper's for this number of layers."""

    def build(self, layer_ctx: LayerContext, branches: list[str], new_norm: NewNorm) -> nn.Module:
        default = 0.1 if layer_ctx.n_layers <= 18 else 1e-5 if layer_ctx.n_layers <= 24 else 1e-6
        init_value = default if self.init_value is None else self.init_value
        return LayerScaleWiring(branches, new_norm, self.dropout, layer_ctx.d_model, init_value)


@part("deepnorm")
class DeepNorm(ResidualOptions):
    """norm(alpha x + dropout(branch(x))), with initial weights scaled by beta. Wang et al. 2022, arXiv:2203.00555.

    Decoder-only with L layers: alpha = (2 L)^(1/4), beta = (8 L)^(-1/4). Encoder-decoder with N and L layers: in the
    decoder, alpha = (3 L)^(1/4), beta = (12 L)^(-1/4); in the encoder, alpha = 0.81 (N^4 L)^(1/16), beta =
    0.87 (N^4 L)^(-1/16). beta scales every matrix of a branch except query and key projections. The paper uses init=xavier.
    """

    norm_last: ClassVar[bool] = True
    final_norm: bool = False

    def build(self, layer_ctx: LayerContext, branches: list[str], new_norm: NewNorm) -> nn.Module:
        alpha, _ = deepnorm_constants(layer_ctx.n_layers, layer_ctx.other_layers, layer_ctx.causal)
        return DeepNormWiring(branches, new_norm, self.dropout, alpha)

    def gain(self, spec: TensorSpec) -> float:
        return deepnorm_constants(*spec.layers, spec.causal)[1] if spec.role in ("hidden", "output") else 1.0


def deepnorm_constants(layers: int, other_layers: int, causal: bool) -> tuple[float, float]:
    """DeepNorm's (alpha, beta) for a stack, given the depth of the other stack (0 without an encoder)."""
    if not other_layers:
        return (2 * layers) ** 0.25, (8 * layers) ** -0.25
    if causal:
        return (3 * layers) ** 0.25, (12 * layers) ** -0.25
    size = layers**4 * other_layers
    return 0.81 * size ** (1 / 16), 0.87 * size ** (-1 / 16)


class Wiring(nn.Module):
    """One norm and one dropout per branch, with the branch's name."""

    def __init__(self, branches: list[str], new_norm: NewNorm, dropout: float) -> None:
        super().__init__()
        self.norms, self.dropout = nn.ModuleDict({name: new_norm() for name in branches}), dropout
        self.dropouts = nn.ModuleDict({name: Dropout(dropout) for name in branches})


class PreNormWiring(Wiring):
    def forward(self, x: Tensor, ctx: ForwardContext, branches: list[Branch]) -> Tensor:
        for branch, norm, dropout in zip(branches, self.norms.values(), self.dropouts.values(), strict=True):
            x = x + dropout(branch(norm(x), ctx))
        return x

    def spec(self, norm_option: str) -> ResidualSpec:
        return ResidualSpec(kind="pre", norms=norm_specs(self.norms.values(), norm_option), dropout=self.dropout)


class NoResidualWiring(Wiring):
    def forward(self, x: Tensor, ctx: ForwardContext, branches: list[Branch]) -> Tensor:
        for branch, norm, dropout in zip(branches, self.norms.values(), self.dropouts.values(), strict=True):
            x = dropout(branch(norm(x), ctx))
        return x


class PostNormWiring(Wiring):
    def forward(self, x: Tensor, ctx: ForwardContext, branches: list[Branch]) -> Tensor:
        for branch, norm, dropout in zip(branches, self.norms.values(), self.dropouts.values(), strict=True):
            x = norm(x + dropout(branch(x, ctx)))
        return x


class SandwichWiring(Wiring):
    def __init__(self, branches: list[str], new_norm: NewNorm, dropout: float) -> None:
        super().__init__(branches, new_norm, dropout)
        self.post_norms = nn.ModuleDict({name: new_norm() for name in branches})

    def forward(self, x: Tensor, ctx: ForwardContext, branches: list[Branch]) -> Tensor:
        layers = zip(branches, self.norms.values(), self.dropouts.values(), self.post_norms.values(), strict=True)
        for branch, norm, dropout, post_norm in layers:
            x = x + post_norm(dropout(branch(norm(x), ctx)).to(x.dtype))
        return x


class ReorderedWiring(Wiring):
    def forward(self, x: Tensor, ctx: ForwardContext, branches: list[Branch]) -> Tensor:
        for branch, norm, dropout in zip(branches, self.norms.values(), self.dropouts.values(), strict=True):
            x = x + norm(dropout(branch(x, ctx)).to(x.dtype))
        return x


class ParallelWiring(nn.Module):
    def __init__(self, branches: list[str], new_norm: NewNorm, dropout: float, shared_norm: bool) -> None:
        super().__init__()
        self.norms = nn.ModuleDict({name: new_norm() for name in (["shared"] if shared_norm else branches)})
        self.dropouts = nn.ModuleDict({name: Dropout(dropout) for name in branches})
        self.branches_per_norm = len(branches) // len(self.norms)

    def forward(self, x: Tensor, ctx: ForwardContext, branches: list[Branch]) -> Tensor:
        inputs = [norm(x) for norm in self.norms.values()] * self.branches_per_norm
        for branch, branch_input, dropout in zip(branches, inputs, self.dropouts.values(), strict=True):
            x = x + dropout(branch(branch_input, ctx))
        return x


class ReZeroWiring(nn.Module):
    def __init__(self, branches: list[str], dropout: float) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.zeros(()))
        self.dropouts = nn.ModuleDict({name: Dropout(dropout) for name in branches})

    def forward(self, x: Tensor, ctx: ForwardContext, branches: list[Branch]) -> Tensor:
        for branch, dropout in zip(branches, self.dropouts.values(), strict=True):
            x = x + self.a * dropout(branch(x, ctx))
        return x


class LayerScaleWiring(Wiring):
    def __init__(self, branches: list[str], new_norm: NewNorm, dropout: float, width: int, init_value: float) -> None:
        super().__init__(branches, new_norm, dropout)
        self.gammas = nn.ParameterDict({name: nn.Parameter(torch.full((width,), init_value)) for name in branches})

    def forward(self, x: Tensor, ctx: ForwardContext, branches: list[Branch]) -> Tensor:
        layers = zip(branches, self.norms.values(), self.dropouts.values(), self.gammas.values(), strict=True)
        for branch, norm, dropout, gamma in layers:
            x = x + gamma * dropout(branch(norm(x), ctx))
        return x


class DeepNormWiring(Wiring):
    def __init__(self, branches: list[str], new_norm: NewNorm, dropout: float, alpha: float) -> None:
        super().__init__(branches, new_norm, dropout)
        self.alpha = alpha

    def forward(self, x: Tensor, ctx: ForwardContext, branches: list[Branch]) -> Tensor:
        for branch, norm, dropout in zip(branches, self.norms.values(), self.dropouts.values(), strict=True):
            x = norm(self.alpha * x + dropout(branch(x, ctx)))
        return x


class FinalNorm(StackEnds):
    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm = norm

    def leave(self, x: Tensor) -> Tensor:
        return self.norm(x)

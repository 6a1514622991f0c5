"""Residual wiring: what stands at `residual=`. Read the forwards as a plate of diagrams."""

from contextlib import AbstractContextManager, nullcontext
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn

from partwise.config import ConfigError, part
from partwise.parts.families import Branch, Flow, NewNorm, Residual, Site, StackEnds
from partwise.parts.layers import Dropout
from partwise.parts.roles import TensorSpec


class Wired(Residual):
    """Options of every wiring: dropout of what a branch gives, and a norm after the last block."""

    norm_last: ClassVar[bool] = False  # whether a block ends in a norm

    dropout: float = Field(0.0, ge=0, lt=1)
    final_norm: bool = True

    def build_ends(self, site: Site, new_norm: NewNorm) -> StackEnds:
        if not self.final_norm:
            return StackEnds()
        return FinalNorm(self.not_hidden(new_norm()) if self.norm_last else new_norm())

    def not_hidden(self, norm: nn.Module) -> nn.Module:
        """Refuse a norm that ends in one number, which the norm behind it takes out again."""
        weight = getattr(norm, "weight", None)
        if weight is not None and weight.dim() == 0:
            raise ConfigError(
                f"residual={self.name} with a norm behind a norm hides the one weight of a norm such as scalenorm: "
                "choose one with a weight per element, or where it is optional residual.final_norm=false"
            )
        return norm


@part("pre")
class PreNorm(Wired):
    """x + dropout(branch(norm(x))), and a norm after the last block. Xiong et al. 2020, arXiv:2002.04745."""

    def build(self, site: Site, branches: list[str], new_norm: NewNorm) -> nn.Module:
        return PreNormWiring(branches, new_norm, self.dropout)


@part("post")
class PostNorm(Wired):
    """norm(x + dropout(branch(x))). Vaswani et al. 2017, arXiv:1706.03762."""

    norm_last: ClassVar[bool] = True

    final_norm: bool = False

    def build(self, site: Site, branches: list[str], new_norm: NewNorm) -> nn.Module:
        return PostNormWiring(branches, new_norm, self.dropout)


@part("sandwich")
class Sandwich(Wired):
    """x + post_norm(dropout(branch(norm(x)))). Ding et al. 2021, arXiv:2105.13290; Gemma 2, arXiv:2408.00118."""

    def build(self, site: Site, branches: list[str], new_norm: NewNorm) -> nn.Module:
        return SandwichWiring(branches, lambda: self.not_hidden(new_norm()), self.dropout)


@part("reordered")
class Reordered(Wired):
    """x + norm(dropout(branch(x))). Swin v2, arXiv:2111.09883; OLMo 2, arXiv:2501.00656."""

    def build(self, site: Site, branches: list[str], new_norm: NewNorm) -> nn.Module:
        return ReorderedWiring(branches, new_norm, self.dropout)


@part("parallel")
class Parallel(Wired):
    """x + dropout(attention(norm(x))) + dropout(ffn(norm(x))). Wang & Komatsuzaki 2021 (GPT-J); PaLM, arXiv:2204.02311.

    Cross-attention is a third summand. Without `shared_norm` every branch has a norm of its own: GPT-NeoX,
    arXiv:2204.06745.
    """

    shared_norm: bool = True

    def build(self, site: Site, branches: list[str], new_norm: NewNorm) -> nn.Module:
        return ParallelWiring(branches, new_norm, self.dropout, self.shared_norm)


@part("rezero")
class ReZero(Wired):
    """x + a dropout(branch(x)), one a per block, 0 at the start; no norm. Bachlechner et al. 2020, arXiv:2003.04887.

    What stands at `norm=` is used by `final_norm` alone.
    """

    final_norm: bool = False

    def build(self, site: Site, branches: list[str], new_norm: NewNorm) -> nn.Module:
        return ReZeroWiring(branches, self.dropout)


@part("layerscale")
class LayerScale(Wired):
    """x + gamma * dropout(branch(norm(x))), a vector gamma per branch. Touvron et al. 2021, arXiv:2103.17239.

    `start` is the value of gamma before training. Where not given, the paper's: 0.1 up to 18 layers, 1e-5 up to 24, and
    1e-6 beyond.
    """

    start: float | None = Field(None, ge=0, le=1)

    def build(self, site: Site, branches: list[str], new_norm: NewNorm) -> nn.Module:
        start = self.start
        if start is None:
            start = 0.1 if site.n_layers <= 18 else 1e-5 if site.n_layers <= 24 else 1e-6
        return LayerScaleWiring(branches, new_norm, self.dropout, site.d_model, start)


@part("deepnorm")
class DeepNorm(Wired):
    """norm(alpha x + dropout(branch(x))), and a gain of beta on initial values. Wang et al. 2022, arXiv:2203.00555.

    With L layers alpha = (2 L)^(1/4) and beta = (8 L)^(-1/4); over a source alpha = (3 L)^(1/4) and beta = (12 L)^(-1/4),
    and in the encoder that reads it, of N layers under L, alpha = 0.81 (N^4 L)^(1/16) and beta = 0.87 (N^4 L)^(-1/16).
    beta scales every matrix of a branch but those that make queries and keys. The paper draws them by init=xavier.
    """

    norm_last: ClassVar[bool] = True

    final_norm: bool = False

    def build(self, site: Site, branches: list[str], new_norm: NewNorm) -> nn.Module:
        alpha, _ = constants_by_depth(site.n_layers, site.other_layers, site.causal)
        return DeepNormWiring(branches, new_norm, self.dropout, alpha)

    def gain(self, spec: TensorSpec) -> float:
        return constants_by_depth(*spec.layers, spec.causal)[1] if spec.role in ("hidden", "output") else 1.0


def constants_by_depth(layers: int, other_layers: int, causal: bool) -> tuple[float, float]:
    """DeepNorm's (alpha, beta) for a stack and the one beside it, 0 where there is none."""
    if not other_layers:
        return (2 * layers) ** 0.25, (8 * layers) ** -0.25
    if causal:
        return (3 * layers) ** 0.25, (12 * layers) ** -0.25
    size = layers**4 * other_layers
    return 0.81 * size ** (1 / 16), 0.87 * size ** (-1 / 16)


@part("hyper")
class Hyper(Wired):
    """Hyper-connections: `copies` n of the stream, H (n, D), mixed at every branch. Zhu et al. 2024, arXiv:2409.19606.

    branch k:  H' = A_r^T H + B^T dropout(branch(norm(A_m^T H))), with A_m (n, 1), A_r (n, n) and B (1, n).
    At the start A_r = 1, B = (1, ..., 1) and A_m picks copy k mod n: all copies are what `pre` has. `dynamic` adds
    s tanh(norm(H) W) to each of the three, with W = 0 and s = 0.01 at the start. The paper sums the last copies; here
    they are averaged: the same behind a norm that drops the scale, and the start is that of `pre` whatever stands there.
    """

    copies: int = Field(4, ge=1, le=64)
    dynamic: bool = False

    def build(self, site: Site, branches: list[str], new_norm: NewNorm) -> nn.Module:
        connections = {
            name: HyperConnection(
                self.copies,
                site.layer * len(branches) + place,
                DynamicWeights(site.d_model, self.copies, new_norm()) if self.dynamic else None,
            )
            for place, name in enumerate(branches)
        }
        return HyperWiring(branches, new_norm, self.dropout, connections)

    def build_ends(self, site: Site, new_norm: NewNorm) -> StackEnds:
        return HyperEnds(self.copies, new_norm() if self.final_norm else nn.Identity())


class Wiring(nn.Module):
    """One norm and one dropout per branch, named after it."""

    def __init__(self, branches: list[str], new_norm: NewNorm, dropout: float) -> None:
        super().__init__()
        self.norms = nn.ModuleDict({name: new_norm() for name in branches})
        self.dropouts = nn.ModuleDict({name: Dropout(dropout) for name in branches})


class PreNormWiring(Wiring):
    def forward(self, x: Tensor, flow: Flow, branches: list[Branch]) -> Tensor:
        for branch, norm, dropout in zip(branches, self.norms.values(), self.dropouts.values(), strict=True):
            x = x + dropout(branch(norm(x), flow))
        return x


class PostNormWiring(Wiring):
    def forward(self, x: Tensor, flow: Flow, branches: list[Branch]) -> Tensor:
        for branch, norm, dropout in zip(branches, self.norms.values(), self.dropouts.values(), strict=True):
            x = norm(x + dropout(branch(x, flow)))
        return x


class SandwichWiring(Wiring):
    def __init__(self, branches: list[str], new_norm: NewNorm, dropout: float) -> None:
        super().__init__(branches, new_norm, dropout)
        self.post_norms = nn.ModuleDict({name: new_norm() for name in branches})

    def forward(self, x: Tensor, flow: Flow, branches: list[Branch]) -> Tensor:
        layers = zip(branches, self.norms.values(), self.dropouts.values(), self.post_norms.values(), strict=True)
        for branch, norm, dropout, post_norm in layers:
            x = x + post_norm(dropout(branch(norm(x), flow)).to(x.dtype))
        return x


class ReorderedWiring(Wiring):
    def forward(self, x: Tensor, flow: Flow, branches: list[Branch]) -> Tensor:
        for branch, norm, dropout in zip(branches, self.norms.values(), self.dropouts.values(), strict=True):
            x = x + norm(dropout(branch(x, flow)).to(x.dtype))
        return x


class ParallelWiring(nn.Module):
    def __init__(self, branches: list[str], new_norm: NewNorm, dropout: float, shared_norm: bool) -> None:
        super().__init__()
        self.norms = nn.ModuleDict({name: new_norm() for name in (["shared"] if shared_norm else branches)})
        self.dropouts = nn.ModuleDict({name: Dropout(dropout) for name in branches})
        self.readers = len(branches) // len(self.norms)

    def forward(self, x: Tensor, flow: Flow, branches: list[Branch]) -> Tensor:
        inputs = [norm(x) for norm in self.norms.values()] * self.readers
        for branch, read, dropout in zip(branches, inputs, self.dropouts.values(), strict=True):
            x = x + dropout(branch(read, flow))
        return x


class ReZeroWiring(nn.Module):
    def __init__(self, branches: list[str], dropout: float) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.zeros(()))
        self.dropouts = nn.ModuleDict({name: Dropout(dropout) for name in branches})

    def forward(self, x: Tensor, flow: Flow, branches: list[Branch]) -> Tensor:
        for branch, dropout in zip(branches, self.dropouts.values(), strict=True):
            x = x + self.a * dropout(branch(x, flow))
        return x


class LayerScaleWiring(Wiring):
    def __init__(self, branches: list[str], new_norm: NewNorm, dropout: float, width: int, start: float) -> None:
        super().__init__(branches, new_norm, dropout)
        self.gammas = nn.ParameterDict({name: nn.Parameter(torch.full((width,), start)) for name in branches})

    def forward(self, x: Tensor, flow: Flow, branches: list[Branch]) -> Tensor:
        layers = zip(branches, self.norms.values(), self.dropouts.values(), self.gammas.values(), strict=True)
        for branch, norm, dropout, gamma in layers:
            x = x + gamma * dropout(branch(norm(x), flow))
        return x


class DeepNormWiring(Wiring):
    def __init__(self, branches: list[str], new_norm: NewNorm, dropout: float, alpha: float) -> None:
        super().__init__(branches, new_norm, dropout)
        self.alpha = alpha

    def forward(self, x: Tensor, flow: Flow, branches: list[Branch]) -> Tensor:
        for branch, norm, dropout in zip(branches, self.norms.values(), self.dropouts.values(), strict=True):
            x = norm(self.alpha * x + dropout(branch(x, flow)))
        return x


class HyperWiring(Wiring):
    """Between blocks the stream has n copies: (B, T, n, D). A branch sees (B, T, D)."""

    def __init__(
        self, branches: list[str], new_norm: NewNorm, dropout: float, connections: dict[str, "HyperConnection"]
    ) -> None:
        super().__init__(branches, new_norm, dropout)
        self.connections = nn.ModuleDict(connections)

    def forward(self, x: Tensor, flow: Flow, branches: list[Branch]) -> Tensor:
        layers = zip(branches, self.norms.values(), self.dropouts.values(), self.connections.values(), strict=True)
        for branch, norm, dropout, connection in layers:
            read, kept, beta = connection(x)  # (B, T, D), (B, T, n, D), (B, T, n, 1) or (n, 1)
            x = kept + beta * dropout(branch(norm(read), flow)).unsqueeze(-2)
        return x


class HyperConnection(nn.Module):
    """What a branch reads of the n copies, what the copies keep, and how much of its output each will take."""

    def __init__(self, copies: int, place: int, dynamic: "DynamicWeights | None") -> None:
        super().__init__()
        same = torch.eye(copies)
        # A_m and A_r are one tensor: a norm behind A_m hides its size, so that alone it could be without effect
        self.alpha = nn.Parameter(torch.cat([same[:, place % copies, None], same], dim=1))  # (n, 1 + n)
        self.beta = nn.Parameter(torch.ones(copies))
        self.dynamic = dynamic

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        alpha, beta = self.alpha, self.beta
        if self.dynamic is not None:
            more_alpha, more_beta = self.dynamic(x)
            alpha, beta = alpha + more_alpha, beta + more_beta
        with own_precision(x):
            mixed = torch.einsum("...nm,...nd->...md", alpha, x)  # (B, T, 1 + n, D)
        return mixed[..., 0, :], mixed[..., 1:, :], beta.unsqueeze(-1)


def own_precision(x: Tensor) -> AbstractContextManager[object]:
    """Autocast off: it would round the whole stream at every branch, where other wirings keep what they add to."""
    return nullcontext() if x.is_meta else torch.autocast(x.device.type, enabled=False)


class DynamicWeights(nn.Module):
    """s tanh(norm(H) W^T): (B, T, n, D) -> (B, T, n, 1 + n) added to alpha, and (B, T, n) added to beta."""

    def __init__(self, width: int, copies: int, norm: nn.Module) -> None:
        super().__init__()
        self.norm = norm
        self.weight = nn.Parameter(torch.zeros(2 + copies, width))  # beta's row stands last
        self.alpha_scale = nn.Parameter(torch.tensor(0.01))
        self.beta_scale = nn.Parameter(torch.tensor(0.01))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        weights = torch.tanh(nn.functional.linear(self.norm(x), self.weight))  # (B, T, n, 2 + n)
        return self.alpha_scale * weights[..., :-1], self.beta_scale * weights[..., -1]


class FinalNorm(StackEnds):
    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm = norm

    def leave(self, x: Tensor) -> Tensor:
        return self.norm(x)


class HyperEnds(StackEnds):
    def __init__(self, copies: int, norm: nn.Module) -> None:
        super().__init__()
        self.copies, self.norm = copies, norm

    def enter(self, x: Tensor) -> Tensor:
        return x.unsqueeze(-2).expand(*x.shape[:-1], self.copies, x.shape[-1])  # (B, T, n, D)

    def leave(self, x: Tensor) -> Tensor:
        return self.norm(x.mean(-2))

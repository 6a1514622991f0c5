"""Residual wiring: what stands at `residual=`. Read the forwards as a plate of diagrams."""

from collections.abc import Callable

from pydantic import Field
from torch import Tensor, nn

from partwise.config import part
from partwise.parts.families import Flow, Residual, StackEnds
from partwise.parts.layers import Dropout

NewNorm = Callable[[], nn.Module]


@part("pre")
class PreNorm(Residual):
    """x + dropout(branch(norm(x))), and a norm after the last block. Xiong et al. 2020, arXiv:2002.04745."""

    dropout: float = Field(0.0, ge=0, lt=1)
    final_norm: bool = True

    def build(self, branches: list[str], new_norm: NewNorm) -> nn.Module:
        return PreNormWiring(branches, new_norm, self.dropout)

    def build_ends(self, new_norm: NewNorm) -> StackEnds:
        return FinalNorm(new_norm()) if self.final_norm else StackEnds()


@part("post")
class PostNorm(Residual):
    """norm(x + dropout(branch(x))). Vaswani et al. 2017, arXiv:1706.03762."""

    dropout: float = Field(0.0, ge=0, lt=1)
    final_norm: bool = False

    def build(self, branches: list[str], new_norm: NewNorm) -> nn.Module:
        return PostNormWiring(branches, new_norm, self.dropout)

    def build_ends(self, new_norm: NewNorm) -> StackEnds:
        return FinalNorm(new_norm()) if self.final_norm else StackEnds()


class Wiring(nn.Module):
    """One norm and one dropout per branch, named after it."""

    def __init__(self, branches: list[str], new_norm: NewNorm, dropout: float) -> None:
        super().__init__()
        self.norms = nn.ModuleDict({name: new_norm() for name in branches})
        self.dropouts = nn.ModuleDict({name: Dropout(dropout) for name in branches})


class PreNormWiring(Wiring):
    def forward(self, x: Tensor, flow: Flow, branches: list[nn.Module]) -> Tensor:
        for branch, norm, dropout in zip(branches, self.norms.values(), self.dropouts.values(), strict=True):
            x = x + dropout(branch(norm(x), flow))
        return x


class PostNormWiring(Wiring):
    def forward(self, x: Tensor, flow: Flow, branches: list[nn.Module]) -> Tensor:
        for branch, norm, dropout in zip(branches, self.norms.values(), self.dropouts.values(), strict=True):
            x = norm(x + dropout(branch(x, flow)))
        return x


class FinalNorm(StackEnds):
    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm = norm

    def leave(self, x: Tensor) -> Tensor:
        return self.norm(x)

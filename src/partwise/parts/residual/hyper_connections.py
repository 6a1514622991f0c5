"""Hyper-connections: several residual streams, mixed at every branch."""

from contextlib import AbstractContextManager, nullcontext

import torch
from pydantic import Field
from torch import Tensor, nn

from partwise.config import part
from partwise.parts.contracts import Branch, ForwardContext, LayerContext, NewNorm, StackEnds
from partwise.parts.residual.wirings import ResidualOptions, Wiring


@part("hyper_connections")
class HyperConnections(ResidualOptions):
    """Hyper-connections: n = `copies` residual streams H (n, D), mixed at every branch. Zhu et al. 2024, arXiv:2409.19606.

    Branch k:  H' = A_r^T H + B^T dropout(branch(norm(A_m^T H))), with A_m (n, 1), A_r (n, n) and B (1, n).
    Initially A_r = 1, B = (1, ..., 1) and A_m selects stream k mod n, which equals `pre`. `dynamic` adds
    s tanh(norm(H) W) to each of the three, initially with W = 0 and s = 0.01. The paper sums the final streams; here they
    are averaged, which is the same before a scale-invariant norm, and initially equals `pre` even without one.
    """

    copies: int = Field(4, ge=1, le=64)
    """Residual streams, n."""
    dynamic: bool = False
    """Mixing weights that depend on the token."""

    def build(self, layer_ctx: LayerContext, branches: list[str], new_norm: NewNorm) -> nn.Module:
        connections = {
            name: HyperConnection(
                self.copies,
                layer_ctx.layer_index * len(branches) + index,
                DynamicWeights(layer_ctx.d_model, self.copies, new_norm()) if self.dynamic else None,
            )
            for index, name in enumerate(branches)
        }
        return HyperWiring(branches, new_norm, self.dropout, connections)

    def build_ends(self, layer_ctx: LayerContext, new_norm: NewNorm) -> StackEnds:
        return HyperEnds(self.copies, new_norm() if self.final_norm else nn.Identity())


class HyperWiring(Wiring):
    """Blocks pass on n residual streams, (B, T, n, D). The input of a branch is (B, T, D)."""

    def __init__(
        self, branches: list[str], new_norm: NewNorm, dropout: float, connections: dict[str, "HyperConnection"]
    ) -> None:
        super().__init__(branches, new_norm, dropout)
        self.connections = nn.ModuleDict(connections)

    def forward(self, x: Tensor, ctx: ForwardContext, branches: list[Branch]) -> Tensor:
        layers = zip(branches, self.norms.values(), self.dropouts.values(), self.connections.values(), strict=True)
        for branch, norm, dropout, connection in layers:
            branch_input, x, beta = connection(x)  # (B, T, D), (B, T, n, D), (B, T, n, 1) or (n, 1)
            x = x + beta * dropout(branch(norm(branch_input), ctx)).unsqueeze(-2)
        return x


class HyperConnection(nn.Module):
    """The input of a branch, the mixed streams, and the weights of the branch's output in each stream."""

    def __init__(self, copies: int, branch_index: int, dynamic: "DynamicWeights | None") -> None:
        super().__init__()
        identity = torch.eye(copies)
        # A_m and A_r are one tensor: the norm after A_m cancels its scale, so A_m alone could have no effect
        self.alpha = nn.Parameter(torch.cat([identity[:, branch_index % copies, None], identity], dim=1))  # (n, 1 + n)
        self.beta = nn.Parameter(torch.ones(copies))
        self.dynamic = dynamic

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        alpha, beta = self.alpha, self.beta
        if self.dynamic is not None:
            delta_alpha, delta_beta = self.dynamic(x)
            alpha, beta = alpha + delta_alpha, beta + delta_beta
        with no_autocast(x):
            mixed = torch.einsum("...nm,...nd->...md", alpha, x)  # (B, T, 1 + n, D)
        return mixed[..., 0, :], mixed[..., 1:, :], beta.unsqueeze(-1)


def no_autocast(x: Tensor) -> AbstractContextManager[object]:
    """Autocast would round the residual streams at every branch; other wirings keep their precision."""
    return nullcontext() if x.is_meta else torch.autocast(x.device.type, enabled=False)


class DynamicWeights(nn.Module):
    """s tanh(norm(H) W^T): (B, T, n, D) -> (B, T, n, 1 + n) added to alpha, and (B, T, n) added to beta."""

    def __init__(self, width: int, copies: int, norm: nn.Module) -> None:
        super().__init__()
        self.norm = norm
        self.weight = nn.Parameter(torch.zeros(2 + copies, width))  # the last row is beta's
        self.alpha_scale = nn.Parameter(torch.tensor(0.01))
        self.beta_scale = nn.Parameter(torch.tensor(0.01))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        weights = torch.tanh(nn.functional.linear(self.norm(x), self.weight))  # (B, T, n, 2 + n)
        return self.alpha_scale * weights[..., :-1], self.beta_scale * weights[..., -1]


class HyperEnds(StackEnds):
    def __init__(self, copies: int, norm: nn.Module) -> None:
        super().__init__()
        self.copies, self.norm = copies, norm

    def enter(self, x: Tensor) -> Tensor:
        return x.unsqueeze(-2).expand(*x.shape[:-1], self.copies, x.shape[-1])  # (B, T, n, D)

    def leave(self, x: Tensor) -> Tensor:
        return self.norm(x.mean(-2))

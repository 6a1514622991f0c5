"""One layer of a stack: what mixes positions and what works on each alone, wired around the residual stream."""

from torch import Tensor, nn

from partwise.parts.families import Flow


class Block(nn.Module):
    def __init__(self, layers: dict[str, nn.Module], residual: nn.Module) -> None:
        super().__init__()
        self.mixing, self.attention, self.ffn = layers["mixing"], layers["attention"], layers["ffn"]
        self.cross = layers.get("cross")
        self.residual = residual

    def forward(self, x: Tensor, flow: Flow) -> Tensor:  # (B, T, D) -> (B, T, D)
        branches = (
            [self.mix_and_attend, self.ffn] if self.cross is None else [self.mix_and_attend, self.cross, self.ffn]
        )
        return self.residual(x, flow, branches)

    def mix_and_attend(self, x: Tensor, flow: Flow) -> Tensor:
        return self.attention(self.mixing(x, flow), flow)

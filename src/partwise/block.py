"""One block of a stack: its layers, and the wiring that leads through them."""

from torch import Tensor, nn

from partwise.fused import FusedBlock, fuse
from partwise.parts.families import Flow


class Block(nn.Module):
    """(B, T, D) -> (B, T, D): mixing and attention, attention over a source where there is one, and a feed-forward layer."""

    def __init__(self, layers: dict[str, nn.Module], residual: nn.Module) -> None:
        super().__init__()
        self.mixing, self.attention, self.ffn = layers["mixing"], layers["attention"], layers["ffn"]
        self.cross = layers.get("cross")
        self.residual = residual
        self.fused: FusedBlock | None = None

    def use_path(self, path: str) -> None:
        """'layers', one after the other, or 'kernel', all in one pass where there is one for them."""
        self.fused = fuse(self) if path == "kernel" else None

    def forward(self, x: Tensor, flow: Flow) -> Tensor:  # (B, T, D) -> (B, T, D)
        if self.fused is not None and self.fused.fits(x, flow):
            return self.fused(x, flow)
        branches = (
            [self.mix_and_attend, self.ffn] if self.cross is None else [self.mix_and_attend, self.cross, self.ffn]
        )
        return self.residual(x, flow, branches)

    def mix_and_attend(self, x: Tensor, flow: Flow) -> Tensor:
        return self.attention(self.mixing(x, flow), flow)

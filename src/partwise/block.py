"""One block of a stack: its layers, and the wiring that leads through them."""

from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn

from partwise.fused import FusedBlock, fuse, hooks_of, through
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
            return through([self.fused], x, flow)
        branches = (
            [self.mix_and_attend, self.ffn] if self.cross is None else [self.mix_and_attend, self.cross, self.ffn]
        )
        return self.residual(x, flow, branches)

    def mix_and_attend(self, x: Tensor, flow: Flow) -> Tensor:
        return self.attention(self.mixing(x, flow), flow)


def through_blocks(blocks: Iterable[Any], x: Tensor, flow: Flow) -> Tensor:
    """(B, T, D) -> (B, T, D), one block after the other; neighbours that are one pass each, and alike, in one together."""
    together: list[FusedBlock] = []
    for block in blocks:
        fused = one_pass(block, x, flow)
        if together and (fused is None or fused.spec != together[0].spec):
            x, together = through(together, x, flow), []
        if fused is None:
            x = block(x, flow)
        else:
            together.append(fused)
    return through(together, x, flow) if together else x


def one_pass(block: Any, x: Tensor, flow: Flow) -> FusedBlock | None:
    """What stands for a block that need not be called itself: as nobody watches it, or has put something in its place."""
    itself = type(block) is Block and "forward" not in vars(block) and not any(hooks_of(block))
    return block.fused if itself and block.fused is not None and block.fused.fits(x, flow) else None

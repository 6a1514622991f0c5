"""One block of a stack: its layers, and the wiring that leads through them."""

from collections.abc import Iterable
from itertools import groupby
from typing import Any

from torch import Tensor, nn

from partwise.fused import FusedBlock, fuse, through, watched
from partwise.kernels.block import Spec
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

    def spec(block: Any) -> Spec | None:
        whole = (
            isinstance(block, Block) and block.fused is not None and block.fused.fits(x, flow) and not watched([block])
        )
        return block.fused.spec if whole else None

    for alike, neighbours in groupby(blocks, spec):
        if alike:
            x = through([block.fused for block in neighbours], x, flow)
        else:
            for block in neighbours:
                x = block(x, flow)
    return x

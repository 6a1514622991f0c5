"""One block of a stack, and the forward pass over several blocks."""

from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn

from partwise.model.compiled_block import CompiledBlock, compile_block, hooks_of, run_compiled_blocks
from partwise.parts.contracts import ForwardContext


class Block(nn.Module):
    """(B, T, D) -> (B, T, D): short convolution and attention, optional cross-attention, and feed-forward layer."""

    def __init__(self, layers: dict[str, nn.Module], residual: nn.Module) -> None:
        super().__init__()
        self.mixing, self.attention, self.ffn = layers["mixing"], layers["attention"], layers["ffn"]
        self.cross = layers.get("cross")
        self.residual = residual
        self.compiled: CompiledBlock | None = None

    def use_backend(self, backend: str) -> None:
        """'eager', layer by layer, or 'cpp', the whole block in one C++ call if supported."""
        self.compiled = compile_block(self) if backend == "cpp" else None

    def forward(self, x: Tensor, ctx: ForwardContext) -> Tensor:  # (B, T, D) -> (B, T, D)
        if self.compiled is not None and self.compiled.supports(x, ctx):
            return run_compiled_blocks([self.compiled], x, ctx)
        branches = (
            [self.mix_and_attend, self.ffn] if self.cross is None else [self.mix_and_attend, self.cross, self.ffn]
        )
        return self.residual(x, ctx, branches)

    def mix_and_attend(self, x: Tensor, ctx: ForwardContext) -> Tensor:
        return self.attention(self.mixing(x, ctx), ctx)


def run_blocks(blocks: Iterable[Any], x: Tensor, ctx: ForwardContext) -> Tensor:
    """(B, T, D) -> (B, T, D) through all blocks; consecutive compiled blocks with equal specs run in one call."""
    pending: list[CompiledBlock] = []
    for block in blocks:
        compiled = compiled_block_of(block, x, ctx)
        if pending and (compiled is None or compiled.spec != pending[0].spec):
            x, pending = run_compiled_blocks(pending, x, ctx), []
        if compiled is None:
            x = block(x, ctx)
        else:
            pending.append(compiled)
    return run_compiled_blocks(pending, x, ctx) if pending else x


def compiled_block_of(block: Any, x: Tensor, ctx: ForwardContext) -> CompiledBlock | None:
    """The compiled block, or None if it is unsupported, or if hooks or a patched forward require calling the module."""
    unmodified = type(block) is Block and "forward" not in vars(block) and not any(hooks_of(block))
    return block.compiled if unmodified and block.compiled is not None and block.compiled.supports(x, ctx) else None

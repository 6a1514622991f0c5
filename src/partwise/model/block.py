"""One block of a stack, and the forward pass over several blocks."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from partwise.parts.contracts import ForwardContext
from partwise.parts.operations import Operation


class Block(Operation):
    """(B, T, D) -> (B, T, D): short convolution and attention, optional cross-attention, and feed-forward layer.

    A backend of blocks also has a `group`, and a function `run` of consecutive backends of equal groups.
    """

    checkpointed: Callable[["Block", Tensor, ForwardContext], Tensor] | None = None
    """How to compute the block if gradients are needed, in place of a call; see `activation_checkpointing`."""

    def __init__(self, layers: dict[str, nn.Module], residual: nn.Module) -> None:
        super().__init__()
        self.mixing, self.attention, self.ffn = layers["mixing"], layers["attention"], layers["ffn"]
        self.cross = layers.get("cross")
        self.residual = residual

    def forward(self, x: Tensor, ctx: ForwardContext) -> Tensor:  # (B, T, D) -> (B, T, D)
        return (self.backend_for(x, ctx) or self.eager)(x, ctx)

    def eager(self, x: Tensor, ctx: ForwardContext) -> Tensor:
        """Layer by layer, each by its own backend."""
        branches = (
            [self.mix_and_attend, self.ffn] if self.cross is None else [self.mix_and_attend, self.cross, self.ffn]
        )
        return self.residual(x, ctx, branches)

    def mix_and_attend(self, x: Tensor, ctx: ForwardContext) -> Tensor:
        return self.attention(self.mixing(x, ctx), ctx)


def run_blocks(blocks: Iterable[Any], x: Tensor, ctx: ForwardContext) -> Tensor:
    """(B, T, D) -> (B, T, D) through all blocks; consecutive ones whose backends have equal groups run in one call."""
    pending: list[Any] = []
    for block in blocks:
        checkpointed = block.checkpointed if torch.is_grad_enabled() and ctx.caches is None else None
        backend = None if checkpointed else block_backend(block, x, ctx)
        if pending and (backend is None or backend.group != pending[0].group):
            x, pending = pending[0].run(pending, x, ctx), []
        if checkpointed:
            x = checkpointed(block, x, ctx)
        elif backend is None:
            x = block(x, ctx)
        else:
            pending.append(backend)
    return pending[0].run(pending, x, ctx) if pending else x


def block_backend(block: Any, x: Tensor, ctx: ForwardContext) -> Any:
    """The backend that takes this call, or None; a hook or a patched forward requires calling the block."""
    unmodified = type(block) is Block and "forward" not in vars(block) and not any(hooks_of(block))
    return block.backend_for(x, ctx) if unmodified else None


def hooks_of(module: nn.Module) -> tuple[dict[int, Any], ...]:
    """The dictionaries of the module's hooks, which also show hooks registered later; a hook requires calling the module."""
    return module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks

"""Activation checkpointing: a block's activations are computed again in the backward pass instead of kept.

Chen et al. 2016, arXiv:1604.06174. Only the input of each block is kept.
"""

from dataclasses import replace
from typing import Any

from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from partwise.model.block import Block
from partwise.parts.contracts import ForwardContext


def checkpoint_activations(model: nn.Module) -> None:
    """Recompute the activations of every block in the backward pass."""
    for module in model.modules():
        if isinstance(module, Block):
            module.checkpointed = run_checkpointed


def run_checkpointed(block: Block, x: Tensor, ctx: ForwardContext) -> Tensor:
    """(B, T, D) -> (B, T, D) of a block; its dropout drops the same elements again, since it counts them."""
    passes = 0
    # a bias that is trained is computed within each block, in both of its passes: one shared by blocks belongs to none
    trained = any(parameter.requires_grad for parameter in ctx.positions.parameters())

    def compute(x: Tensor) -> tuple[Any, ...]:
        nonlocal passes
        own = replace(ctx, aux_losses=[], masks={} if trained else ctx.masks, recomputing=passes > 0)
        passes += 1
        y = block(x, own)
        return y, own.first_values, *own.aux_losses

    y, ctx.first_values, *losses = checkpoint(compute, x, use_reentrant=False, preserve_rng_state=False)
    ctx.aux_losses.extend(losses)
    return y

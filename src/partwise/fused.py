"""Blocks as one compiled pass, where all their parts are among those that the kernel knows."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from partwise.kernels import block as kernel
from partwise.kernels.block import Spec, Weights
from partwise.parts.attention import MultiHeadAttention
from partwise.parts.families import Flow, PositionLayer
from partwise.parts.layers import Dropout
from partwise.parts.memories import Places
from partwise.parts.mixing import Unmixed
from partwise.parts.mlp import GatedMLP, Perceptron
from partwise.parts.norms import RootMeanSquare
from partwise.parts.positions import InterleavedRotary, Rotary
from partwise.parts.residual import PreNormWiring


class FusedBlock:
    """The layers of a block, read by the kernel instead of called. They stay the block's own."""

    def __init__(self, block: Any, spec: Spec) -> None:
        self.block, self.attention, self.ffn = block, block.attention, block.ffn
        self.matrices = (block.attention.qkv, block.attention.out, block.ffn.matrix(), block.ffn.down)
        self.norms = list(block.residual.norms.values())
        self.spec = spec
        inside: list[nn.Module] = [module for module in block.modules() if module is not block]
        self.drops = any(isinstance(module, Dropout) and module.p > 0 for module in inside)
        self.hooks = [hooks for module in inside for hooks in hooks_of(module)]

    def fits(self, x: Tensor, flow: Flow) -> bool:
        """Whether this is a pass that the kernel knows, of which nobody watches the layers."""
        if not takes(x, flow) or (self.drops and self.attention.training) or any(self.hooks):
            return False
        # nothing stands in their place by now
        same = self.block.attention is self.attention and self.block.ffn is self.ffn
        exact = all(layer.weight.dtype == torch.float32 for layer in self.matrices)
        return same and exact and (flow.states is None or self.remembers(x, flow))

    def remembers(self, x: Tensor, flow: Flow) -> bool:
        """Whether keys and values are all that is remembered of this pass, and lie as the kernel writes them."""
        state, (B, T, _) = flow.state(self.attention), x.shape
        if torch.is_grad_enabled() or not isinstance(state, Places):
            return False
        return state.length == flow.past and all(
            kept.dtype == torch.float32
            and kept.is_contiguous()
            and kept.shape[0] == B
            and flow.past + T <= kept.shape[2]
            for kept in state.buffers
        )

    def trains(self, positions: PositionLayer) -> bool:
        """Whether passes in training fit, if rows of the batch are as many as threads."""
        return known(positions) and not self.drops

    def weights(self, turns: tuple[Tensor | None, Tensor | None]) -> Weights:
        before, behind = self.norms
        qkv, out, up, down = self.matrices
        return Weights(
            *(before.weight, before.bias, qkv.weight, qkv.bias, out.weight, out.bias),
            *(behind.weight, behind.bias, up.weight, up.bias, down.weight, down.bias),
            *turns,
        )


def through(blocks: Sequence[FusedBlock], x: Tensor, flow: Flow) -> Tensor:
    """(B, T, D) -> (B, T, D), through blocks that fit and have one spec."""
    turns = flow.positions.cos_sin(x) if isinstance(flow.positions, Rotary) else (None, None)
    spec = blocks[0].spec._replace(interleaved=isinstance(flow.positions, InterleavedRotary))
    weights = [block.weights(turns) for block in blocks]
    if flow.states is None:
        return kernel.blocks(x, weights, spec)
    remembered = [flow.state(block.attention).grow(x.shape[1]) for block in blocks]
    if flow.past:
        return kernel.following(x, weights, spec, remembered, flow.past)
    return kernel.asking(x, weights, spec, remembered)


def takes(x: Tensor, flow: Flow) -> bool:
    """Whether the kernel knows such a pass: over whole rows from their start, or of a few tokens behind others."""
    if torch.compiler.is_compiling():
        return False
    few = x.shape[1] < kernel.FEW and x.shape[0] * x.shape[1] >= kernel.MANY
    alone = flow.segments is None and flow.causal and (flow.past == 0 or few)
    if not (alone and x.is_cpu and x.dtype == torch.float32 and x.numel() and known(flow.positions)):
        return False
    if torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu") != torch.bfloat16:
        return False
    return kernel.fills(x.shape[0])


def hooks_of(module: nn.Module) -> tuple[dict[int, Any], ...]:
    """Where those are kept who watch the module, which must then be called itself: now, and all who come later."""
    return module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks


def known(positions: PositionLayer) -> bool:
    """Whether the kernel knows what these positions do within a block."""
    kind = type(positions)
    turned = kind in (Rotary, InterleavedRotary)
    return kind.on_scores is PositionLayer.on_scores and (turned or kind.on_heads is PositionLayer.on_heads)


def fuse(block: Any) -> FusedBlock | None:
    """The block as one pass, if there is one for its parts and widths and it is the faster way."""
    spec = recipe(block.attention, block.ffn, block.residual) if type(block.mixing) is Unmixed else None
    if spec is None or block.cross is not None or not kernel.fits(block.attention.qkv.weight.shape[1], spec):
        return None
    return FusedBlock(block, spec)


def recipe(attention: nn.Module, ffn: nn.Module, residual: nn.Module) -> Spec | None:
    """What the kernel has to compute; None where it does not know one of the parts."""
    if type(attention) is not MultiHeadAttention or not isinstance(ffn, Perceptron) or ffn.kernel is None:
        return None
    changes = (attention.window, attention.value_residual, attention.gate)
    normed = not all(isinstance(norm, nn.Identity) for norm in (attention.q_norm, attention.k_norm))
    changed = normed or attention.scores.only_products or any(change is not None for change in changes)
    if changed or not attention.fused or type(residual) is not PreNormWiring:
        return None
    norms: list[Any] = list(residual.norms.values())
    kinds = {type(norm) for norm in norms}
    if kinds not in ({nn.LayerNorm}, {RootMeanSquare}):
        return None
    return Spec(
        n_heads=attention.qkv.sizes["q"] // attention.width,
        n_kv_heads=attention.n_kv_heads,
        width=attention.width,
        hidden=ffn.down.weight.shape[1],
        gated=isinstance(ffn, GatedMLP),
        activation=ffn.kernel,
        centred=kinds == {nn.LayerNorm},
        interleaved=False,
        eps=(norms[0].eps, norms[1].eps),
        scale=attention.scores.scale,
    )

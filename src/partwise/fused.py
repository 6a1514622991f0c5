"""A block as one compiled pass, where all its parts are among those that the kernel knows."""

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
        self.attention, self.ffn = block.attention, block.ffn
        self.norms = list(block.residual.norms.values())
        self.spec, self.turning = spec, spec._replace(interleaved=True)
        self.inside: list[nn.Module] = [module for module in block.modules() if module is not block]
        self.drops = any(isinstance(module, Dropout) and module.p > 0 for module in self.inside)

    def fits(self, x: Tensor, flow: Flow) -> bool:
        """Whether this is a pass over whole rows from their start, of which nobody watches the layers."""
        alone = flow.segments is None and flow.causal and flow.past == 0
        alone = alone and (flow.states is None or self.remembers(flow))
        if not (alone and x.is_cpu and x.dtype == torch.float32 and x.numel() and known(flow.positions)):
            return False
        if torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu") != torch.bfloat16:
            return False
        if torch.compiler.is_compiling() or (self.drops and self.attention.training):
            return False
        return kernel.fills(x.shape[0]) and not any(map(watched, self.inside))

    def remembers(self, flow: Flow) -> bool:
        """Whether this is a question's pass, after which keys and values are all that is remembered of it."""
        return not torch.is_grad_enabled() and isinstance(flow.state(self.attention), Places)

    def trains(self, positions: PositionLayer) -> bool:
        """Whether passes in training fit, if rows of the batch are as many as threads."""
        return known(positions) and not self.drops

    def __call__(self, x: Tensor, flow: Flow) -> Tensor:
        turns = flow.positions.cos_sin(x) if isinstance(flow.positions, Rotary) else (None, None)
        spec = self.turning if isinstance(flow.positions, InterleavedRotary) else self.spec
        before, behind = self.norms
        qkv, out, up, down = self.attention.qkv, self.attention.out, self.ffn.matrix(), self.ffn.down
        weights = Weights(
            *(before.weight, before.bias, qkv.weight, qkv.bias, out.weight, out.bias),
            *(behind.weight, behind.bias, up.weight, up.bias, down.weight, down.bias),
            *turns,
        )
        if flow.states is None:
            return kernel.block(x, weights, spec)
        y, packed = kernel.block_and_packed(x, weights, spec)
        heads = packed.unflatten(2, (-1, spec.width)).transpose(1, 2)  # (B, H + 2 K, T, E)
        flow.state(self.attention).append(*heads[:, spec.n_heads :].chunk(2, dim=1))
        return y


def watched(layer: nn.Module) -> bool:
    """Whether something is called before or behind the layer, which must then be called itself."""
    hooks = (layer._forward_hooks, layer._forward_pre_hooks, layer._backward_hooks, layer._backward_pre_hooks)
    return any(hooks)


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

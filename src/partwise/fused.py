"""A block as one compiled pass, where all its parts are among those that the kernel knows."""

import torch
from torch import Tensor, nn

from partwise.kernels import block as kernel
from partwise.kernels.block import Spec, Weights
from partwise.parts.attention import MultiHeadAttention
from partwise.parts.families import Flow, PositionLayer
from partwise.parts.layers import Dropout
from partwise.parts.mixing import Unmixed
from partwise.parts.mlp import GatedMLP, Perceptron
from partwise.parts.norms import RootMeanSquare
from partwise.parts.positions import InterleavedRotary, Rotary
from partwise.parts.residual import PreNormWiring


class FusedBlock:
    """The layers of a block, read by the kernel instead of called. They stay the block's own."""

    def __init__(self, block: nn.Module, spec: Spec, positions: PositionLayer) -> None:
        self.block, self.spec, self.positions = block, spec, positions
        self.inside = [module for module in block.modules() if module is not block]
        self.drops = any(isinstance(module, Dropout) and module.p > 0 for module in self.inside)

    def fits(self, x: Tensor, flow: Flow) -> bool:
        """Whether this pass is one over whole rows from their start, of which nobody watches the layers."""
        alone = flow.states is None and flow.segments is None and flow.causal and flow.past == 0
        if not (alone and x.is_cpu and x.dtype == torch.float32) or torch.compiler.is_compiling():
            return False
        if self.drops and self.block.training:
            return False
        return kernel.fills(x.shape[0]) and not any(
            module._forward_hooks or module._forward_pre_hooks for module in self.inside
        )

    def __call__(self, x: Tensor) -> Tensor:
        return kernel.block(x, self.weights(x), self.spec)

    def weights(self, x: Tensor) -> Weights:
        block = self.block
        before, behind = block.residual.norms.values()
        up, down = block.ffn.matrix(), block.ffn.down
        qkv, out = block.attention.qkv, block.attention.out
        turns = self.positions.cos_sin(x) if isinstance(self.positions, Rotary) else (None, None)
        return Weights(
            *(before.weight, before.bias, qkv.weight, qkv.bias, out.weight, out.bias),
            *(behind.weight, behind.bias, up.weight, up.bias, down.weight, down.bias),
            *turns,
        )


def fuse(block: nn.Module, positions: PositionLayer) -> FusedBlock | None:
    """The block as one pass, if there is one for its parts and widths and it is the faster way."""
    spec = recipe(block, positions)
    if spec is None or not kernel.fits(block.attention.qkv.weight.shape[1], spec):
        return None
    return FusedBlock(block, spec, positions)


def recipe(block: nn.Module, positions: PositionLayer) -> Spec | None:
    """What the kernel has to compute; None where it does not know one of the parts."""
    attention, ffn, residual = block.attention, block.ffn, block.residual
    if type(residual) is not PreNormWiring or type(block.mixing) is not Unmixed or block.cross is not None:
        return None
    if type(attention) is not MultiHeadAttention or not isinstance(ffn, Perceptron) or ffn.kernel is None:
        return None
    changed = (attention.window, attention.value_residual, attention.gate)
    normed = not all(isinstance(norm, nn.Identity) for norm in (attention.q_norm, attention.k_norm))
    if not attention.fused or any(part is not None for part in changed) or normed or attention.scores.only_products:
        return None
    turned = type(positions) in (Rotary, InterleavedRotary)
    hooks = type(positions)
    plain = hooks.on_heads is PositionLayer.on_heads or turned
    norms = list(residual.norms.values())
    centred = [type(norm) is nn.LayerNorm for norm in norms]
    known = all(type(norm) in (nn.LayerNorm, RootMeanSquare) for norm in norms) and len(set(centred)) == 1
    if not plain or hooks.on_scores is not PositionLayer.on_scores or not known:
        return None
    heads = attention.qkv.sizes["q"] // attention.width
    return Spec(
        n_heads=heads,
        n_kv_heads=attention.n_kv_heads,
        width=attention.width,
        hidden=ffn.down.weight.shape[1],
        gated=isinstance(ffn, GatedMLP),
        activation=ffn.kernel,
        centred=centred[0],
        interleaved=type(positions) is InterleavedRotary,
        eps=(norms[0].eps, norms[1].eps),
        scale=attention.scores.scale,
    )

"""Blocks computed by one C++ call, if the kernel supports all their parts."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from partwise.kernels import block as kernel
from partwise.kernels.block import BlockSpec, BlockWeights
from partwise.parts.attention.multihead import MultiHeadAttention
from partwise.parts.caches import KVCache
from partwise.parts.contracts import ForwardContext, PositionLayer
from partwise.parts.feed_forward.mlp import GatedMLP, MLPBase
from partwise.parts.layers import Dropout
from partwise.parts.norms import RMSNormLayer
from partwise.parts.positions.rotary import InterleavedRotary, Rotary
from partwise.parts.residual import PreNormWiring
from partwise.parts.short_conv import IdentityShortConv


class CompiledBlock:
    """A block that the kernel computes from the weights of its layers, without calling them."""

    def __init__(self, block: Any, spec: BlockSpec) -> None:
        self.block, self.attention, self.ffn = block, block.attention, block.ffn
        self.matrices = (block.attention.qkv, block.attention.out, block.ffn.input_projection(), block.ffn.down)
        self.norms = list(block.residual.norms.values())
        self.spec = spec
        submodules: list[nn.Module] = [module for module in block.modules() if module is not block]
        self.has_dropout = any(isinstance(module, Dropout) and module.p > 0 for module in submodules)
        self.hooks = [hooks for module in submodules for hooks in hooks_of(module)]

    def supports(self, x: Tensor, ctx: ForwardContext) -> bool:
        """Whether the kernel supports this forward pass, and no hook requires calling the layers."""
        if not supports_forward_pass(x, ctx) or (self.has_dropout and self.attention.training) or any(self.hooks):
            return False
        unmodified = self.block.attention is self.attention and self.block.ffn is self.ffn
        float32 = all(layer.weight.dtype == torch.float32 for layer in self.matrices)
        return unmodified and float32 and (ctx.caches is None or self.supports_cache(x, ctx))

    def supports_cache(self, x: Tensor, ctx: ForwardContext) -> bool:
        """Whether the cache is a KVCache with the layout that the kernel writes."""
        cache, (B, T, _) = ctx.cache(self.attention), x.shape
        if torch.is_grad_enabled() or not isinstance(cache, KVCache):
            return False
        return cache.length == ctx.past_length and all(
            buffer.dtype == torch.float32
            and buffer.is_contiguous()
            and buffer.shape[0] == B
            and ctx.past_length + T <= buffer.shape[2]
            for buffer in cache.buffers
        )

    def supports_training(self, positions: PositionLayer) -> bool:
        """Whether the kernel supports training, given a supported batch size."""
        return supports_positions(positions) and not self.has_dropout

    def weights(self, cos_sin: tuple[Tensor | None, Tensor | None]) -> BlockWeights:
        attention_norm, ffn_norm = self.norms
        qkv, out, up, down = self.matrices
        return BlockWeights(
            *(attention_norm.weight, attention_norm.bias, qkv.weight, qkv.bias, out.weight, out.bias),
            *(ffn_norm.weight, ffn_norm.bias, up.weight, up.bias, down.weight, down.bias),
            *cos_sin,
        )


def run_compiled_blocks(blocks: Sequence[CompiledBlock], x: Tensor, ctx: ForwardContext) -> Tensor:
    """(B, T, D) -> (B, T, D), through blocks that support this pass and have equal specs."""
    cos_sin = ctx.positions.cos_sin(x) if isinstance(ctx.positions, Rotary) else (None, None)
    spec = blocks[0].spec._replace(interleaved=isinstance(ctx.positions, InterleavedRotary))
    weights = [block.weights(cos_sin) for block in blocks]
    if ctx.caches is None:
        return kernel.forward_blocks(x, weights, spec)
    caches = [ctx.cache(block.attention).reserve(x.shape[1]) for block in blocks]
    if ctx.past_length:
        return kernel.decode(x, weights, spec, caches, ctx.past_length)
    return kernel.prefill(x, weights, spec, caches)


def supports_forward_pass(x: Tensor, ctx: ForwardContext) -> bool:
    """Whether the kernel supports such a pass: over rows from their start, or over a few tokens after cached ones."""
    if torch.compiler.is_compiling():
        return False
    decoding = x.shape[1] <= kernel.MAX_DECODE_LENGTH and x.shape[0] * x.shape[1] >= kernel.MIN_DECODE_TOKENS
    causal = ctx.document_ids is None and ctx.causal and (ctx.past_length == 0 or decoding)
    if not (causal and x.is_cpu and x.dtype == torch.float32 and x.numel() and supports_positions(ctx.positions)):
        return False
    if torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu") != torch.bfloat16:
        return False
    return kernel.supports_batch_size(x.shape[0])


def hooks_of(module: nn.Module) -> tuple[dict[int, Any], ...]:
    """The module's hook dictionaries, by reference, so that hooks registered later are seen too.

    With any hook, the module must be called.
    """
    return module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks


def supports_positions(positions: PositionLayer) -> bool:
    """Whether the kernel supports these positions: rotary ones, or those without effect within a block."""
    kind = type(positions)
    rotary = kind in (Rotary, InterleavedRotary)
    return kind.on_scores is PositionLayer.on_scores and (rotary or kind.on_heads is PositionLayer.on_heads)


def compile_block(block: Any) -> CompiledBlock | None:
    """The compiled block, or None if the kernel does not support its parts and widths, or is slower."""
    spec = block_spec(block.attention, block.ffn, block.residual) if type(block.mixing) is IdentityShortConv else None
    if spec is None or block.cross is not None or not kernel.supports_block(block.attention.qkv.weight.shape[1], spec):
        return None
    return CompiledBlock(block, spec)


def block_spec(attention: nn.Module, ffn: nn.Module, residual: nn.Module) -> BlockSpec | None:
    """The kernel's description of a block, or None if it does not support one of the parts."""
    if type(attention) is not MultiHeadAttention or not isinstance(ffn, MLPBase) or ffn.kernel_activation is None:
        return None
    options = (attention.window, attention.value_residual, attention.gate)
    qk_norm = not all(isinstance(norm, nn.Identity) for norm in (attention.q_norm, attention.k_norm))
    unsupported = qk_norm or attention.scores.eager_only or any(option is not None for option in options)
    if unsupported or not attention.fused_qkv or type(residual) is not PreNormWiring:
        return None
    norms: list[Any] = list(residual.norms.values())
    norm_types = {type(norm) for norm in norms}
    if norm_types not in ({nn.LayerNorm}, {RMSNormLayer}):
        return None
    return BlockSpec(
        n_heads=attention.qkv.sizes["q"] // attention.head_dim,
        n_kv_heads=attention.n_kv_heads,
        head_dim=attention.head_dim,
        hidden=ffn.down.weight.shape[1],
        gated=isinstance(ffn, GatedMLP),
        activation=ffn.kernel_activation,
        centered=norm_types == {nn.LayerNorm},
        interleaved=False,
        eps=(norms[0].eps, norms[1].eps),
        scale=attention.scores.scale,
    )

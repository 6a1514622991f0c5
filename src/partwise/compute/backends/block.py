"""The backend of whole blocks: `train.block_backend`."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from partwise.compute.backends import NO_KERNELS, Backend, backend, known_activation, token_shift
from partwise.compute.runtime import Runtime
from partwise.kernels import block as kernel
from partwise.kernels.block import BlockDropout, BlockOptions, BlockWeights
from partwise.model.block import Block, hooks_of
from partwise.parts.caches import KVCache
from partwise.parts.contracts import ForwardContext
from partwise.parts.dropout import Dropout
from partwise.parts.operations import (
    AttentionSpec,
    BlockSpec,
    MLPSpec,
    MultiHeadSpec,
    NormSpec,
    OperationSpec,
    PositionsSpec,
    ResidualSpec,
    Rule,
    nested,
    unsupported_option,
)
from partwise.parts.positions.rotary import Rotary

MAX_AVX2_WIDTH = 256
"""The largest d_model at which the kernel is as fast as its layers, in float32 on a CPU with AVX2 but not AVX-512.

The layers reach 0.80 to 0.87 times the kernel's rate at 192, 0.83 to 0.94 times at 256, and 0.97 to 1.06 times at 384 (CPU
seconds of one core of an AMD EPYC of the Zen 4 generation limited to AVX2, torch 2.13, `python benchmarks/block_width.py`).
"""


@backend
class CppBlockBackend(Backend):
    """Consecutive blocks in one C++ call, from the weights of their layers, which are not called."""

    kind, name = "block", "cpp"

    def unsupported(self, spec: OperationSpec, runtime: Runtime) -> str | None:
        if not runtime.kernels:
            return NO_KERNELS
        reason = unsupported_option(spec, BLOCK)
        if reason is not None:
            return reason
        assert isinstance(spec, BlockSpec) and isinstance(spec.attention, MultiHeadSpec)
        return kernel.unsupported_width(spec.attention.d_model, block_options(spec))

    def slower(self, spec: OperationSpec, runtime: Runtime) -> str | None:
        assert isinstance(spec, BlockSpec) and isinstance(spec.attention, MultiHeadSpec)
        width = spec.attention.d_model
        if (
            runtime.precision == "float32"
            and width > MAX_AVX2_WIDTH
            and torch.backends.cpu.get_cpu_capability() == "AVX2"
        ):
            return f"without AVX-512, torch's matmuls are faster at d_model={width} (above {MAX_AVX2_WIDTH})"
        return None

    def bind(self, module: Block, spec: BlockSpec) -> "CppBlock":  # type: ignore[override]
        return CppBlock(module, block_options(spec))


def equal_norms(norms: tuple[OperationSpec, ...]) -> str | None:
    for norm in norms:
        reason = unsupported_option(
            norm, {"kind": ("layernorm", "rmsnorm"), "width": True, "eps": True, "weight": True, "bias": True}
        )
        if reason is not None:
            return reason
    return None if len({norm.kind for norm in norms}) == 1 else "a block with different norms is not supported"  # type: ignore[attr-defined]


def qk_norm(norm: OperationSpec | None) -> str | None:
    return None if norm is None else nested(NormSpec, kind=("rmsnorm",), width=True, eps=True, weight=True)(norm)


BLOCK: dict[str, Rule] = {
    "shares_values": lambda shares: "attention.value_residual is not supported" if shares else None,
    "attention": nested(
        MultiHeadSpec,
        **dict.fromkeys(("d_model", "n_heads", "n_kv_heads", "bias", "out_bias"), True),
        fused_qkv=(True,),
        q_norm=qk_norm,
        k_norm=qk_norm,
        core=nested(AttentionSpec, head_dim=True, v_head_dim=True, scale=True, mask=("causal",), dropout=True),
    ),
    "ffn": nested(
        MLPSpec,
        **dict.fromkeys(("d_model", "hidden", "gated", "bias", "hidden_dropout", "output_dropout"), True),
        activation=known_activation,
    ),
    "residual": nested(ResidualSpec, kind=True, norms=equal_norms, dropout=True),
    "positions": nested(PositionsSpec, rotation=True),
    "short_conv": token_shift,
    "causal": lambda causal: None if causal else "only causal blocks are supported",
}
"""The options of a block that the kernel supports; unlisted options must be neutral."""


def block_options(spec: BlockSpec) -> BlockOptions:
    """The kernel's options of a supported block."""
    attention, ffn, residual = spec.attention, spec.ffn, spec.residual
    assert isinstance(attention, MultiHeadSpec) and isinstance(ffn, MLPSpec) and isinstance(residual, ResidualSpec)
    norms = [norm for norm in residual.norms if isinstance(norm, NormSpec)]
    q_norm, k_norm = (norm if isinstance(norm, NormSpec) else None for norm in (attention.q_norm, attention.k_norm))
    return BlockOptions(
        n_heads=attention.n_heads,
        n_kv_heads=attention.n_kv_heads,
        head_dim=attention.core.head_dim,
        hidden=ffn.hidden,
        gated=ffn.gated,
        activation=ffn.activation,
        centered=norms[0].kind == "layernorm",
        interleaved=spec.positions == PositionsSpec(rotation="interleaved"),
        eps=(norms[0].eps, norms[1].eps),
        scale=attention.core.scale,
        qk_norm=(q_norm.width if q_norm else 0, k_norm.width if k_norm else 0),
        qk_eps=(q_norm.eps if q_norm else 0.0, k_norm.eps if k_norm else 0.0),
        token_shift=spec.short_conv is not None,
    )


class CppBlock:
    """A block that the kernel computes from the weights of its layers."""

    def __init__(self, block: Any, options: BlockOptions) -> None:
        self.block, self.mixing, self.attention, self.ffn = block, block.mixing, block.attention, block.ffn
        self.matrices = (block.attention.qkv, block.attention.out, block.ffn.input_projection(), block.ffn.down)
        self.norms = list(block.residual.norms.values())
        self.group = options
        """Consecutive blocks of equal options are computed in one call."""
        submodules: list[nn.Module] = [module for module in block.modules() if module is not block]
        residual: list[Dropout] = list(block.residual.dropouts.values())
        self.dropouts = (block.attention.scores.dropout, *residual, block.ffn.hidden_dropout, block.ffn.output_dropout)
        self.hooks = [hooks for module in submodules for hooks in hooks_of(module)]

    def takes(self, x: Tensor, ctx: ForwardContext) -> bool:
        """Whether the kernel supports this forward pass, and no hook requires calling the layers."""
        if not supports_forward_pass(x, ctx) or any(self.hooks):
            return False
        block = self.block
        unmodified = block.attention is self.attention and block.ffn is self.ffn and block.mixing is self.mixing
        float32 = all(layer.weight.dtype == torch.float32 for layer in self.matrices)
        return unmodified and float32 and (ctx.caches is None or self.supports_cache(x, ctx))

    def __call__(self, x: Tensor, ctx: ForwardContext) -> Tensor:
        return self.run([self], x, ctx)

    def supports_cache(self, x: Tensor, ctx: ForwardContext) -> bool:
        """Whether the only cache is a KVCache with the layout that the kernel writes."""
        cache, (B, T, _) = ctx.cache(self.attention), x.shape
        if torch.is_grad_enabled() or self.group.token_shift or self.drops() or not isinstance(cache, KVCache):
            return False
        return cache.length == ctx.past_length and all(
            buffer.dtype == torch.float32
            and buffer.is_contiguous()
            and buffer.shape[0] == B
            and ctx.past_length + T <= buffer.shape[2]
            for buffer in cache.buffers
        )

    @staticmethod
    def run(blocks: Sequence["CppBlock"], x: Tensor, ctx: ForwardContext) -> Tensor:
        """(B, T, D) -> (B, T, D), through blocks of one group that take this call."""
        cos_sin = ctx.positions.cos_sin(x) if isinstance(ctx.positions, Rotary) else (None, None)
        options, weights = blocks[0].group, [block.weights(cos_sin) for block in blocks]
        if ctx.caches is None:
            dropouts = [block.dropout() for block in blocks] if any(block.drops() for block in blocks) else None
            return kernel.forward_blocks(x, weights, options, dropouts)
        caches = [ctx.cache(block.attention).reserve(x.shape[1]) for block in blocks]
        if ctx.past_length:
            return kernel.decode(x, weights, options, caches, ctx.past_length)
        return kernel.prefill(x, weights, options, caches)

    def drops(self) -> bool:
        return any(dropout.active for dropout in self.dropouts)

    def dropout(self) -> BlockDropout:
        return BlockDropout(*(dropout.key() if dropout.active else None for dropout in self.dropouts))

    def weights(self, cos_sin: tuple[Tensor | None, Tensor | None]) -> BlockWeights:
        attention_norm, ffn_norm = self.norms
        qkv, out, up, down = self.matrices
        return BlockWeights(
            *(attention_norm.weight, attention_norm.bias, qkv.weight, qkv.bias, out.weight, out.bias),
            *(ffn_norm.weight, ffn_norm.bias, up.weight, up.bias, down.weight, down.bias),
            *(getattr(self.attention.q_norm, "weight", None), getattr(self.attention.k_norm, "weight", None)),
            getattr(self.block.mixing, "mu", None),
            *cos_sin,
        )


def supports_forward_pass(x: Tensor, ctx: ForwardContext) -> bool:
    """Whether the kernel supports such a pass: over rows from their start, or over a few tokens after cached ones."""
    if torch.compiler.is_compiling():
        return False
    decoding = x.shape[1] <= kernel.MAX_DECODE_LENGTH and x.shape[0] * x.shape[1] >= kernel.MIN_DECODE_TOKENS
    causal = ctx.document_ids is None and ctx.causal and (ctx.past_length == 0 or decoding)
    if kernel.library() is None:  # such as a model that was pickled on another machine
        return False
    if not (causal and x.is_cpu and x.dtype == torch.float32 and x.numel()):
        return False
    if torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu") != torch.bfloat16:
        return False
    return kernel.supports_batch_size(x.shape[0])

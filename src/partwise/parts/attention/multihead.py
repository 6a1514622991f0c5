"""Multi-head attention, `attention=multihead`: self-attention and cross-attention."""

import math
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from partwise.config import ConfigError, part
from partwise.parts.attention.core import AttentionCore
from partwise.parts.caches import CrossAttentionCache, KVCache, SlidingWindowCache
from partwise.parts.contracts import Attention, AttentionLayer, ForwardContext, HeadLayout, LayerContext, PositionLayer
from partwise.parts.layers import FusedLinear, GroupRMSNorm, linear
from partwise.parts.operations import AttentionSpec, MaskKind, MultiHeadSpec, spec_of


class HeadOptions(Attention):
    """Options of attention with groups of query heads that share keys and values."""

    n_heads: int = Field(4, gt=0, le=2**16)
    """Heads: attention maps that a layer computes side by side."""
    n_kv_heads: int | None = Field(None, gt=0, le=2**16)
    """Heads of keys and values; fewer than `n_heads` is grouped-query attention, 1 multi-query. Default: `n_heads`."""
    head_dim: int | None = Field(None, gt=0, le=2**16)
    """Numbers per head in queries, keys and values. Default: d_model / n_heads."""

    def heads(self, d_model: int) -> HeadLayout:
        if self.head_dim is None and d_model % self.n_heads:
            raise ConfigError(
                f"attention.n_heads={self.n_heads} does not divide d_model={d_model}: "
                "choose a divisor, or set attention.head_dim"
            )
        return HeadLayout.grouped(self.n_heads, self.n_kv_heads, self.head_dim or d_model // self.n_heads)


@part("multihead")
class MultiHead(HeadOptions):
    """out(concat_h softmax(q_h k_h^T scale + mask) v_h). Vaswani et al. 2017, arXiv:1706.03762.

    With `n_kv_heads` < `n_heads`, groups of query heads share keys and values: grouped-query attention (Ainslie et al.
    2023, arXiv:2305.13245), or with n_kv_heads=1 multi-query attention (Shazeer 2019, arXiv:1911.02150). `window` limits a
    query to itself and the window - 1 positions before it (Beltagy et al. 2020, arXiv:2004.05150); `softcap` c maps
    scores s to c tanh(s / c) (Bello et al. 2016, arXiv:1611.09940; Gemma 2, arXiv:2408.00118); `sinks` add one learned
    score per head, of a key without a value (Miller 2023; gpt-oss, arXiv:2508.10925). `qk_norm` is an RMSNorm of queries
    and keys, per head (Dehghani et al. 2023, arXiv:2302.05442; Qwen3) or over all heads (OLMo 2, arXiv:2501.00656).
    `gate` multiplies the output of the heads by sigmoid(gate(x)), per head or per element (Qiu et al. 2025,
    arXiv:2505.06708). `value_residual` mixes the first layer's values into v, initially with weights of one half (Zhou et
    al. 2024, arXiv:2410.17897).
    """

    shares_first_values: ClassVar[bool] = True

    bias: bool = False
    """A bias in the projections of queries, keys and values."""
    out_bias: bool = False
    """A bias in the output projection."""
    fused_qkv: bool = True
    """Compute queries, keys and values with one matrix product."""
    scale: float | None = Field(None, gt=0)
    """The factor of q k^T before the softmax. Default: 1 / sqrt(head_dim)."""
    dropout: float = Field(0.0, ge=0, lt=1)
    """Dropout rate on the attention weights."""
    window: int | None = Field(None, gt=1)
    """Tokens that a query sees, itself included; 2 at least. Default: all before it."""
    softcap: float | None = Field(None, gt=0)
    """c: scores s become c tanh(s / c). Default: no cap."""
    sinks: bool = False
    """One learned score per head, of a key without a value: a head can attend to nothing."""
    qk_norm: Literal["none", "head", "full"] = "none"
    """An RMSNorm of queries and keys, per head or over all heads."""
    qk_norm_affine: bool = True
    """A learned weight in that norm."""
    qk_norm_eps: float = Field(1e-6, gt=0)
    """Epsilon of that norm."""
    gate: Literal["none", "head", "element"] = "none"
    """Multiply the output of the heads by sigmoid(gate(x)), per head or per element."""
    value_residual: bool = False
    """Mix the values of the first layer into those of the others."""

    def build(self, layer_ctx: LayerContext) -> AttentionLayer:
        heads = self.heads(layer_ctx.d_model)
        mixes = self.value_residual and layer_ctx.layer_index > 0
        if mixes and (layer_ctx.first_layer_heads is None or layer_ctx.first_layer_heads[1:] != heads[1:]):
            raise ConfigError(
                "attention.value_residual=true needs values of the same shape in the first and later layers: "
                "use the same n_kv_heads and head_dim in every layer"
            )
        value_residual = ValueResidual() if mixes else None
        return MultiHeadAttention(
            layer_ctx.d_model,
            heads,
            self.bias,
            self.fused_qkv,
            self.window,
            value_residual,
            **self.layer_options(layer_ctx, heads),
        )

    def build_cross(self, layer_ctx: LayerContext) -> AttentionLayer:
        """Without `window` and `value_residual`, which apply only to self-attention."""
        heads = self.heads(layer_ctx.d_model)
        return CrossAttention(layer_ctx.d_model, heads, self.bias, **self.layer_options(layer_ctx, heads))

    def layer_options(self, layer_ctx: LayerContext, heads: HeadLayout) -> dict[str, Any]:
        """The arguments that self-attention and cross-attention share."""
        inner = heads.n_heads * heads.head_dim
        widths = {"none": None, "head": (heads.head_dim,) * 2, "full": (inner, heads.n_kv_heads * heads.head_dim)}[
            self.qk_norm
        ]
        if widths and min(widths) < 2:
            raise ConfigError(
                f"attention.qk_norm={self.qk_norm} reduces vectors of {min(widths)} dimension to their sign: raise head_dim"
            )
        gates = {"none": 0, "head": heads.n_heads, "element": inner}[self.gate]
        return {
            "norms": [GroupRMSNorm(w, self.qk_norm_eps, self.qk_norm_affine) for w in widths] if widths else [],
            "scores": AttentionCore(
                heads.head_dim,
                self.scale or layer_ctx.score_scale or 1 / math.sqrt(heads.head_dim),
                self.softcap,
                heads.n_heads if self.sinks else 0,
                self.dropout,
            ),
            "gate": linear(layer_ctx.d_model, gates, False, "hidden") if gates else None,
            "out": linear(inner, layer_ctx.d_model, self.out_bias, "output"),
        }


class ValueResidual(nn.Module):
    """own v + first v_1, both weights initialized to one half."""

    def __init__(self) -> None:
        super().__init__()
        self.own = nn.Parameter(torch.tensor(0.5))
        self.first = nn.Parameter(torch.tensor(0.5))

    def forward(self, v: Tensor, first: Tensor) -> Tensor:
        return self.own * v + self.first * first


class AttentionBase(AttentionLayer):
    """Everything but the projections of queries, keys and values."""

    def __init__(
        self, heads: HeadLayout, norms: list[nn.Module], scores: AttentionCore, gate: nn.Module | None, out: nn.Module
    ) -> None:
        super().__init__()
        self.head_dim, self.n_kv_heads = heads.head_dim, heads.n_kv_heads
        self.q_norm, self.k_norm = norms or [nn.Identity(), nn.Identity()]
        self.scores, self.gate, self.out = scores, gate, out

    def split_heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)  # (B, T, H * E) -> (B, H, T, E)

    def project_output(self, x: Tensor, y: Tensor) -> Tensor:
        y = y.transpose(1, 2)  # (B, T, H, E)
        if self.gate is not None:
            gates = self.gate(x).sigmoid().unflatten(-1, (y.shape[2], -1))  # (B, T, H, 1 or E)
            y = y * gates
        return self.out(y.flatten(2))  # (B, T, H * E) -> (B, T, D)


class MultiHeadAttention(AttentionBase):
    def __init__(
        self,
        d_model: int,
        heads: HeadLayout,
        bias: bool,
        fused_qkv: bool,
        window: int | None,
        value_residual: ValueResidual | None,
        **layer_options: Any,
    ) -> None:
        super().__init__(heads, **layer_options)
        sizes = {"q": heads.n_heads * heads.head_dim} | dict.fromkeys("kv", heads.n_kv_heads * heads.head_dim)
        self.fused_qkv, self.window, self.value_residual = fused_qkv, window, value_residual
        if fused_qkv:
            self.qkv = FusedLinear(d_model, sizes, bias, {"q": "score", "k": "score", "v": "hidden"})
            self.qkv.register_load_hook(self, "qkv")
        else:
            self.q = linear(d_model, sizes["q"], bias, "score")
            self.k = linear(d_model, sizes["k"], bias, "score")
            self.v = linear(d_model, sizes["v"], bias, "hidden")

    def forward(self, x: Tensor, ctx: ForwardContext) -> Tensor:
        q, k, v = self.qkv(x) if self.fused_qkv else (self.q(x), self.k(x), self.v(x))
        q = ctx.positions.on_heads(self.split_heads(self.q_norm(q)), ctx.position_ids)  # (B, H, T, E)
        k = ctx.positions.on_heads(self.split_heads(self.k_norm(k)), ctx.position_ids)  # (B, K, T, E)
        v = self.split_heads(v)
        if ctx.first_values is None:
            ctx.first_values = v
        if self.value_residual is not None:
            v = self.value_residual(v, ctx.first_values)
        cache = ctx.cache(self)
        if cache is not None:
            k, v = cache.append(k, v)  # (B, K, S, E)
        y = self.scores(q, k, v, ctx.mask(x, k.shape[2], self.window))
        return self.project_output(x, y)

    def mask_kind(self, plain: MaskKind, n_tokens: int) -> MaskKind:
        return "bias" if self.window is not None and self.window < n_tokens else plain

    def spec(self, core: AttentionSpec) -> MultiHeadSpec:
        out: Any = self.out
        return MultiHeadSpec(
            d_model=out.out_features,
            n_heads=out.in_features // self.head_dim,
            n_kv_heads=self.n_kv_heads,
            core=core,
            fused_qkv=self.fused_qkv,
            bias=(self.qkv if self.fused_qkv else self.q).bias is not None,
            out_bias=out.bias is not None,
            window=self.window,
            q_norm=None if isinstance(self.q_norm, nn.Identity) else spec_of(self.q_norm, "attention.qk_norm"),
            k_norm=None if isinstance(self.k_norm, nn.Identity) else spec_of(self.k_norm, "attention.qk_norm"),
            gate=self.gate is not None,
            value_residual=self.value_residual is not None,
        )

    def new_cache(self, batch: int, max_length: int, like: Tensor) -> KVCache | SlidingWindowCache:
        if self.window is not None and self.window <= max_length:
            return SlidingWindowCache(batch, self.n_kv_heads, self.window - 1, self.head_dim, like)
        return KVCache(batch, max_length, [(self.n_kv_heads, self.head_dim)] * 2, like)

    def parameters_without_gradient(self, positions: PositionLayer) -> set[str]:
        return set() if positions.rotates_heads else key_bias_without_gradient(self.k_norm, self.scores)


class CrossAttention(AttentionBase):
    """Queries from x; keys and values from the encoder's output, computed once and cached."""

    def __init__(self, d_model: int, heads: HeadLayout, bias: bool, **layer_options: Any) -> None:
        super().__init__(heads, **layer_options)
        self.q = linear(d_model, heads.n_heads * heads.head_dim, bias, "score")
        sizes = dict.fromkeys("kv", heads.n_kv_heads * heads.head_dim)
        self.kv = FusedLinear(d_model, sizes, bias, {"k": "score", "v": "hidden"})
        self.kv.register_load_hook(self, "kv")

    def forward(self, x: Tensor, ctx: ForwardContext) -> Tensor:
        assert ctx.memory is not None
        q = self.split_heads(self.q_norm(self.q(x)))  # (B, H, T, E)
        cache = ctx.cache(self)
        k, v = self.kv_heads(ctx.memory) if cache is None else cache.get_or_compute(lambda: self.kv_heads(ctx.memory))
        return self.project_output(x, self.scores(q, k, v, ctx.cross_attention_mask(x)))

    def kv_heads(self, memory: Tensor) -> tuple[Tensor, Tensor]:
        k, v = self.kv(memory)
        return self.split_heads(self.k_norm(k)), self.split_heads(v)  # (B, K, M, E)

    def new_cache(self, batch: int, max_length: int, like: Tensor) -> CrossAttentionCache:
        return CrossAttentionCache()

    def parameters_without_gradient(self, positions: PositionLayer) -> set[str]:
        return key_bias_without_gradient(self.k_norm, self.scores)


def key_bias_without_gradient(k_norm: nn.Module, scores: AttentionCore) -> set[str]:
    """The key bias, if it has no effect: it adds a constant to all scores of a query, which softmax cancels.

    It has an effect if keys are rotated or normalized, scores are capped, or there is a sink.
    """
    plain = isinstance(k_norm, nn.Identity) and scores.softcap is None and scores.sinks is None
    return {"k.bias"} if plain else set()

"""Differential attention, `attention=differential`."""

import math

import torch
from pydantic import Field
from torch import Tensor, nn

from partwise.config import ConfigError, part
from partwise.parts.attention.core import AttentionCore
from partwise.parts.caches import KVCache
from partwise.parts.contracts import Attention, AttentionLayer, ForwardContext, HeadLayout, LayerContext
from partwise.parts.layers import FusedLinear, GroupRMSNorm, linear


@part("differential")
class Differential(Attention):
    """out(concat_h (1 - lambda_0) norm((softmax(q1_h k1_h^T scale) - lambda softmax(q2_h k2_h^T scale)) v_h)).

    lambda = exp(a1 . b1) - exp(a2 . b2) + lambda_0 with four learned vectors, and lambda_0 = 0.8 - 0.6 exp(-0.3 l) in layer
    l = 0, 1, .... The norm is an RMSNorm per head. Ye et al. 2024, arXiv:2410.05258. A head has two queries and two keys
    of dimension `head_dim` and one value of dimension 2 head_dim, so a layer with half as many heads has as many
    parameters as a multihead layer. The paper samples the four vectors with std 0.1; here they are initialized to +-0.1
    such that lambda = lambda_0.
    """

    n_heads: int = Field(2, gt=0, le=2**16)
    """Heads, each with two attention maps."""
    n_kv_heads: int | None = Field(None, gt=0, le=2**16)
    """Heads of keys and values. Default: `n_heads`."""
    head_dim: int | None = Field(None, gt=0, le=2**16)
    """Numbers in a query or key. Default: d_model / n_heads / 2."""
    norm_affine: bool = True
    """A learned weight in the norm of each head."""
    eps: float = Field(1e-5, gt=0)
    """Epsilon of that norm."""
    scale: float | None = Field(None, gt=0)
    """The factor of the scores before the softmax. Default: 1 / sqrt(head_dim)."""
    dropout: float = Field(0.0, ge=0, lt=1)
    """Dropout rate on the attention weights, separately for the two maps."""

    def heads(self, d_model: int) -> HeadLayout:
        if self.head_dim is None and d_model % (2 * self.n_heads):
            raise ConfigError(
                f"attention.n_heads={self.n_heads}, with two queries per head, does not divide d_model={d_model}: "
                "choose a divisor of d_model / 2, or set attention.head_dim"
            )
        return HeadLayout.grouped(self.n_heads, self.n_kv_heads, self.head_dim or d_model // self.n_heads // 2)

    def build(self, layer_ctx: LayerContext) -> AttentionLayer:
        heads = self.heads(layer_ctx.d_model)
        scale = self.scale or layer_ctx.score_scale or 1 / math.sqrt(heads.head_dim)
        norm = GroupRMSNorm(2 * heads.head_dim, self.eps, self.norm_affine)
        return DifferentialAttention(
            layer_ctx.d_model,
            heads,
            DifferentialLambda(heads.head_dim, layer_ctx.layer_index),
            norm,
            AttentionCore(heads.head_dim, scale, dropout=self.dropout, v_head_dim=2 * heads.head_dim),
        )


class DifferentialLambda(nn.Module):
    """lambda: the weight of the second map, which is subtracted."""

    def __init__(self, head_dim: int, layer_index: int) -> None:
        super().__init__()
        self.lambda_init = 0.8 - 0.6 * math.exp(-0.3 * layer_index)
        # four zero vectors would have no gradient, and two equal vectors would remain equal
        constant, alternating = torch.full((head_dim,), 0.1), torch.tensor([0.1, -0.1]).repeat(head_dim)[:head_dim]
        self.q1, self.k1 = nn.Parameter(constant), nn.Parameter(alternating)
        self.q2, self.k2 = nn.Parameter(constant.clone()), nn.Parameter(alternating.clone())

    def forward(self) -> Tensor:
        return (self.q1 * self.k1).sum().exp() - (self.q2 * self.k2).sum().exp() + self.lambda_init


class DifferentialAttention(AttentionLayer):
    def __init__(
        self, d_model: int, heads: HeadLayout, weighing: DifferentialLambda, norm: nn.Module, scores: AttentionCore
    ) -> None:
        super().__init__()
        self.heads, self.weighing, self.norm, self.scores = heads, weighing, norm, scores
        queries, keys = 2 * heads.n_heads * heads.head_dim, 2 * heads.n_kv_heads * heads.head_dim
        sizes = {"q": queries, "k": keys, "v": keys}
        self.qkv = FusedLinear(d_model, sizes, False, {"q": "score", "k": "score", "v": "hidden"})
        self.qkv.register_load_hook(self, "qkv")
        self.out = linear(queries, d_model, False, "output")

    def forward(self, x: Tensor, ctx: ForwardContext) -> Tensor:
        q, k, v = self.qkv(x)
        q = ctx.positions.on_heads(self.split_heads(q, 2 * self.heads.n_heads), ctx.position_ids)  # (B, 2H, T, E)
        k = ctx.positions.on_heads(self.split_heads(k, 2 * self.heads.n_kv_heads), ctx.position_ids)  # (B, 2K, T, E)
        v = self.split_heads(v, self.heads.n_kv_heads)  # (B, K, T, 2E)
        cache = ctx.cache(self)
        if cache is not None:
            k, v = cache.append(k, v)  # (B, 2K, S, E), (B, K, S, 2E)
        mask = ctx.mask(x, k.shape[2])
        first, second = (
            self.scores(q[:, i::2], k[:, i::2], v, mask) for i in (0, 1)
        )  # the two maps of a head alternate
        y = (1 - self.weighing.lambda_init) * self.norm(first - self.weighing() * second)  # (B, H, T, 2E)
        return self.out(y.transpose(1, 2).flatten(2))  # (B, T, H * 2E) -> (B, T, D)

    def split_heads(self, x: Tensor, n_heads: int) -> Tensor:
        return x.unflatten(-1, (n_heads, -1)).transpose(1, 2)

    def new_cache(self, batch: int, max_length: int, like: Tensor) -> KVCache:
        n_kv_heads, head_dim = self.heads.n_kv_heads, self.heads.head_dim
        return KVCache(batch, max_length, [(2 * n_kv_heads, head_dim), (n_kv_heads, 2 * head_dim)], like)

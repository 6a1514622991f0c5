"""Attention: what stands at `attention=`."""

import math
from collections.abc import Callable

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from partwise.config import ConfigError, part
from partwise.parts.families import Attention, AttentionLayer, Flow, Site
from partwise.parts.layers import Dropout, FusedLinear, linear


@part("multihead")
class MultiHead(Attention):
    """out(concat_h softmax(q_h k_h^T scale + mask) v_h). Vaswani et al. 2017, arXiv:1706.03762.

    `n_kv_heads` below `n_heads` shares keys and values among groups of query heads: grouped-query (Ainslie et al. 2023,
    arXiv:2305.13245), at 1 multi-query attention (Shazeer 2019, arXiv:1911.02150).
    """

    n_heads: int = Field(4, gt=0, le=2**16)
    n_kv_heads: int | None = Field(None, gt=0, le=2**16)  # as many as n_heads where not given
    head_dim: int | None = Field(None, gt=0, le=2**16)  # d_model / n_heads where not given
    bias: bool = False  # of the query, key and value projections
    out_bias: bool = False
    fused: bool = True  # queries, keys and values by one matrix product
    scale: float | None = Field(None, gt=0)  # 1 / sqrt(head_dim) where not given
    dropout: float = Field(0.0, ge=0, lt=1)  # on the attention weights

    def head_width(self, d_model: int) -> int:
        if self.head_dim is None and d_model % self.n_heads:
            raise ConfigError(
                f"attention.n_heads={self.n_heads} does not divide d_model={d_model}: "
                "choose a divisor, or give attention.head_dim"
            )
        return self.head_dim or d_model // self.n_heads

    def build(self, site: Site) -> AttentionLayer:
        n_kv_heads = self.n_kv_heads or self.n_heads
        if self.n_heads % n_kv_heads:
            raise ConfigError(
                f"attention.n_kv_heads={n_kv_heads} does not divide attention.n_heads={self.n_heads}: choose a divisor"
            )
        width = self.head_width(site.d_model)
        scale = self.scale or 1 / math.sqrt(width)
        return MultiHeadAttention(
            site, self.n_heads, n_kv_heads, width, self.bias, self.out_bias, self.fused, scale, self.dropout
        )


class KeyValues:
    """The keys and values of all positions so far, in buffers that are allocated once."""

    def __init__(self, batch: int, heads: int, length: int, width: int, like: Tensor) -> None:
        self.buffer = like.new_empty(2, batch, heads, length, width)
        self.length = 0

    def append(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """(B, K, T, E) new keys and values -> (B, K, S, E) all of them."""
        start, self.length = self.length, self.length + k.shape[2]
        self.buffer[0, :, :, start : self.length] = k
        self.buffer[1, :, :, start : self.length] = v
        return self.buffer[0, :, :, : self.length], self.buffer[1, :, :, : self.length]

    def select(self, rows: Tensor) -> None:
        """Keep these rows of the batch, in this order."""
        self.buffer = self.buffer[:, rows]

    def truncate(self, length: int) -> None:
        """Forget every position from `length` on."""
        self.length = min(self.length, length)


class MultiHeadAttention(AttentionLayer):
    def __init__(
        self,
        site: Site,
        n_heads: int,
        n_kv_heads: int,
        head_width: int,
        bias: bool,
        out_bias: bool,
        fused: bool,
        scale: float,
        dropout: float,
    ) -> None:
        super().__init__()
        self.layer, self.head_width, self.n_kv_heads, self.scale = site.layer, head_width, n_kv_heads, scale
        sizes = {"q": n_heads * head_width, "k": n_kv_heads * head_width, "v": n_kv_heads * head_width}
        self.fused = fused
        if fused:
            self.qkv = FusedLinear(site.d_model, sizes, bias)
            self.qkv.join(self, "qkv")
        else:
            self.q = linear(site.d_model, sizes["q"], bias, "hidden")
            self.k = linear(site.d_model, sizes["k"], bias, "hidden")
            self.v = linear(site.d_model, sizes["v"], bias, "hidden")
        self.dropout = Dropout(dropout)
        self.attend: Attend = attend_fused if dropout == 0 else attend_by_products
        self.out = linear(sizes["q"], site.d_model, out_bias, "output")

    def forward(self, x: Tensor, flow: Flow) -> Tensor:
        q, k, v = self.qkv(x) if self.fused else (self.q(x), self.k(x), self.v(x))
        q = flow.positions.on_heads(self.heads(q), flow.ids)  # (B, H, T, E)
        k = flow.positions.on_heads(self.heads(k), flow.ids)  # (B, K, T, E)
        v = self.heads(v)
        if flow.states is not None:
            k, v = flow.states[self.layer].append(k, v)  # (B, K, S, E)
        y = self.attend(q, k, v, flow.mask, self.scale, self.dropout)
        return self.out(y.transpose(1, 2).flatten(2))  # (B, T, H * E) -> (B, T, D)

    def heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, self.head_width)).transpose(1, 2)  # (B, T, H * E) -> (B, H, T, E)

    def new_state(self, batch: int, length: int, like: Tensor) -> KeyValues:
        return KeyValues(batch, self.n_kv_heads, length, self.head_width, like)

    def use_path(self, path: str) -> None:
        """Choose how scores are computed; weights that are dropped out exist on one path only."""
        self.attend = ATTENTION_PATHS[path] if self.dropout.p == 0 else attend_by_products


Attend = Callable[[Tensor, Tensor, Tensor, Tensor | None, float, Dropout], Tensor]
"""(B, H, T, E) queries, (B, K, S, E) keys and values, a (T, S) mask -> (B, H, T, E)."""


def attend_by_products(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float, dropout: Dropout) -> Tensor:
    """The equation itself, as two batched matrix products: the faster path for narrow heads in bfloat16 on a CPU."""
    B, H, T, E = q.shape
    groups = H // k.shape[1]
    if mask is None:  # a single query: those of a group stand side by side, and no key is repeated
        q, k, v = q.reshape(-1, groups, E), k.flatten(0, 1), v.flatten(0, 1)
        scores = torch.bmm(q, k.transpose(1, 2)) * scale  # (B * K, H / K, S)
    else:
        if groups > 1:
            k, v = k.repeat_interleave(groups, dim=1), v.repeat_interleave(groups, dim=1)
        q, k, v = q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1)
        scores = torch.baddbmm(mask.to(q.dtype), q, k.transpose(1, 2), alpha=scale)  # (B * H, T, S)
    return torch.bmm(dropout(scores.softmax(dim=-1)), v).view(B, H, T, E)


FEW_QUERIES = 64
"""Up to so many queries over a cache, plain products beat torch's kernel on a CPU (measured with 1 and 19 of them)."""


def attend_fused(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float, dropout: Dropout) -> Tensor:
    """torch's scaled_dot_product_attention: the faster path in float32 and on an accelerator."""
    # the causal shortcut aligns its triangle top-left, so it stands only where there are as many queries as keys
    causal = mask is not None and q.shape[2] == k.shape[2]
    if q.is_cpu and not causal and q.shape[2] <= FEW_QUERIES:
        return attend_by_products(q, k, v, mask, scale, dropout)
    grouped = q.shape[1] != k.shape[1]
    bias = None if causal or mask is None else mask.to(q.dtype)
    return F.scaled_dot_product_attention(q, k, v, bias, is_causal=causal, scale=scale, enable_gqa=grouped)


ATTENTION_PATHS: dict[str, Attend] = {"products": attend_by_products, "fused": attend_fused}

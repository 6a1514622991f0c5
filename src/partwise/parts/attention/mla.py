"""Multi-head latent attention (MLA): keys and values are projected from one cached latent vector per position."""

import math

import torch
from pydantic import Field
from torch import Tensor

from partwise.config import ConfigError, part
from partwise.parts.attention.core import AttentionCore
from partwise.parts.attention.mask import AttentionMask
from partwise.parts.caches import KVCache
from partwise.parts.contracts import Attention, AttentionLayer, ForwardContext, HeadLayout, LayerContext
from partwise.parts.layers import FusedLinear, GroupRMSNorm, linear


@part("mla")
class MLA(Attention):
    """out(concat_h softmax((q_h k_h^T + q'_h k'^T) scale) v_h), k_h = K_h c, v_h = V_h c, c = norm(down(x)).

    DeepSeek-AI 2024 (DeepSeek-V2), arXiv:2405.04434. The latent c has dimension `kv_lora_rank`. RoPE rotates only q'_h and
    k', of dimension `rope_head_dim`; all heads share k'. With other positions, they are not rotated. With `q_lora_rank`,
    queries are projected from a normalized latent, too. Generation caches c and k'. For few queries, K_h is absorbed into
    q_h and V_h into the output, which is equivalent and avoids recomputing all keys and values.
    """

    n_heads: int = Field(4, gt=0, le=2**16)
    """Heads: attention maps that a layer computes side by side."""
    head_dim: int | None = Field(None, gt=0, le=2**16)
    """Numbers per head in the queries and keys without positions. Default: d_model / n_heads."""
    rope_head_dim: int | None = Field(None, gt=0, le=2**16)
    """Numbers per head that RoPE rotates. Default: head_dim / 2."""
    v_head_dim: int | None = Field(None, gt=0, le=2**16)
    """Numbers per head in the values. Default: head_dim."""
    # default: 4 head_dim; normalization would reduce a single dimension to its sign
    kv_lora_rank: int | None = Field(None, gt=1, le=2**20)
    """Width of the latent from which keys and values follow, which is all that is cached. Default: 4 head_dim."""
    q_lora_rank: int | None = Field(None, gt=1, le=2**20)
    """Width of a latent from which queries follow. Default: they are projected from x."""
    eps: float = Field(1e-6, gt=0)
    """Epsilon of the norms."""
    scale: float | None = Field(None, gt=0)
    """The factor of the scores before the softmax. Default: 1 / sqrt(head_dim + rope_head_dim)."""
    dropout: float = Field(0.0, ge=0, lt=1)
    """Dropout rate on the attention weights."""

    def heads(self, d_model: int) -> HeadLayout:
        """The dimensions that RoPE rotates."""
        nope_head_dim = self.nope_head_dim(d_model)
        rope_head_dim = self.rope_head_dim or max(2, nope_head_dim // 4 * 2)
        if rope_head_dim % 2:
            raise ConfigError(
                f"attention.rope_head_dim={rope_head_dim} is odd, but RoPE rotates pairs: choose an even number"
            )
        return HeadLayout(self.n_heads, self.n_heads, rope_head_dim)

    def nope_head_dim(self, d_model: int) -> int:
        if self.head_dim is None and d_model % self.n_heads:
            raise ConfigError(
                f"attention.n_heads={self.n_heads} does not divide d_model={d_model}: "
                "choose a divisor, or set attention.head_dim"
            )
        return self.head_dim or d_model // self.n_heads

    def qk_head_dim(self, d_model: int) -> int:
        return self.nope_head_dim(d_model) + self.heads(d_model).head_dim

    def build(self, layer_ctx: LayerContext) -> AttentionLayer:
        nope_head_dim, rope_head_dim = self.nope_head_dim(layer_ctx.d_model), self.heads(layer_ctx.d_model).head_dim
        scale = self.scale or layer_ctx.score_scale or 1 / math.sqrt(nope_head_dim + rope_head_dim)
        return MultiHeadLatentAttention(
            layer_ctx.d_model,
            self.n_heads,
            (nope_head_dim, rope_head_dim, self.v_head_dim or nope_head_dim),
            self.kv_lora_rank or 4 * nope_head_dim,
            self.q_lora_rank,
            self.eps,
            AttentionCore(
                nope_head_dim + rope_head_dim,
                scale,
                dropout=self.dropout,
                v_head_dim=self.v_head_dim or nope_head_dim,
            ),
        )


class MultiHeadLatentAttention(AttentionLayer):
    def __init__(
        self,
        d_model: int,
        n_heads: int,
        head_dims: tuple[int, int, int],  # queries and keys without RoPE, with RoPE; values
        kv_lora_rank: int,
        q_lora_rank: int | None,
        eps: float,
        scores: AttentionCore,
    ) -> None:
        super().__init__()
        self.n_heads, self.head_dims, self.kv_lora_rank, self.scores = n_heads, head_dims, kv_lora_rank, scores
        nope_head_dim, rope_head_dim, v_head_dim = head_dims
        q_size = n_heads * (nope_head_dim + rope_head_dim)
        q_down = {"q": q_size} if q_lora_rank is None else {"q_down": q_lora_rank}
        self.down = FusedLinear(
            d_model,
            q_down | {"kv_down": kv_lora_rank, "k_rope": rope_head_dim},
            False,
            {"q": "score", "q_down": "hidden", "kv_down": "hidden", "k_rope": "score"},
        )
        self.down.register_load_hook(self, "down")
        self.q_norm = None if q_lora_rank is None else GroupRMSNorm(q_lora_rank, eps, affine=True)
        if q_lora_rank is not None:
            self.q = linear(q_lora_rank, q_size, False, "score")
        self.kv_norm = GroupRMSNorm(kv_lora_rank, eps, affine=True)
        kv_sizes = {"k": n_heads * nope_head_dim, "v": n_heads * v_head_dim}
        self.up = FusedLinear(kv_lora_rank, kv_sizes, False, {"k": "score", "v": "hidden"})
        self.up.register_load_hook(self, "up")
        self.out = linear(n_heads * v_head_dim, d_model, False, "output")

    def forward(self, x: Tensor, ctx: ForwardContext) -> Tensor:
        q, c, k_rope = self.down(x)
        if self.q_norm is not None:
            q = self.q(self.q_norm(q))
        q, q_rope = self.split_heads(q).split(self.head_dims[:2], dim=-1)  # (B, H, T, E) each
        q_rope = ctx.positions.on_heads(q_rope, ctx.position_ids)
        k_rope = ctx.positions.on_heads(k_rope.unsqueeze(1), ctx.position_ids)  # (B, 1, T, E), shared by all heads
        latents = torch.cat((self.kv_norm(c).unsqueeze(1), k_rope), dim=-1)  # (B, 1, T, rank + E)
        cache = ctx.cache(self)
        if cache is not None:
            (latents,) = cache.append(latents)  # (B, 1, S, rank + E)
        mask = ctx.mask(x, latents.shape[2])
        absorb = cache is not None and self.absorbing_is_cheaper(x.shape[1], latents.shape[2])
        y = (self.absorbed if absorb else self.expanded)(q, q_rope, latents, mask)  # (B, H, T, W)
        return self.out(y.transpose(1, 2).flatten(2))  # (B, T, H * W) -> (B, T, D)

    def expanded(self, q: Tensor, q_rope: Tensor, latents: Tensor, mask: AttentionMask) -> Tensor:
        """The equation, with the keys and values of every head."""
        c, k_rope = latents.split((self.kv_lora_rank, self.head_dims[1]), dim=-1)
        k, v = map(self.split_heads, self.up(c.squeeze(1)))
        k = torch.cat((k, k_rope.expand(-1, self.n_heads, -1, -1)), dim=-1)
        return self.scores(torch.cat((q, q_rope), dim=-1), k, v, mask)

    def absorbed(self, q: Tensor, q_rope: Tensor, latents: Tensor, mask: AttentionMask) -> Tensor:
        """q_h (K_h c) = (q_h K_h) c, and sum_s w_s (V_h c_s) = V_h (sum_s w_s c_s)."""
        keys, values = (
            piece.unflatten(0, (self.n_heads, -1)) for piece in self.up.weight.split([*self.up.sizes.values()])
        )
        q = torch.cat((q @ keys, q_rope), dim=-1)  # (B, H, T, rank + E)
        y = self.scores(q, latents, latents[..., : self.kv_lora_rank], mask)  # (B, H, T, rank)
        return y @ values.transpose(1, 2)

    def absorbing_is_cheaper(self, n_queries: int, n_keys: int) -> bool:
        """Whether it needs fewer multiplications: no projection of all positions, but larger dot products and sums."""
        nope_head_dim, _, v_head_dim = self.head_dims
        dims, rank = nope_head_dim + v_head_dim, self.kv_lora_rank
        return n_queries * (rank * dims + n_keys * (2 * rank - dims)) < n_keys * rank * dims

    def split_heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.n_heads, -1)).transpose(1, 2)  # (B, T, H * E) -> (B, H, T, E)

    def new_cache(self, batch: int, max_length: int, like: Tensor) -> KVCache:
        return KVCache(batch, max_length, [(1, self.kv_lora_rank + self.head_dims[1])], like)

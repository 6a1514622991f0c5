"""Differential attention: what stands at `attention=differential`."""

import math

import torch
from pydantic import Field
from torch import Tensor, nn

from partwise.config import ConfigError, part
from partwise.parts.families import Attention, AttentionLayer, Flow, Heads, Site
from partwise.parts.layers import FusedLinear, GroupRMSNorm, linear
from partwise.parts.memories import Places
from partwise.parts.scores import Scores


@part("differential")
class Differential(Attention):
    """out(concat_h (1 - lambda_0) norm((softmax(q1_h k1_h^T scale) - lambda softmax(q2_h k2_h^T scale)) v_h)).

    lambda = exp(a1 . b1) - exp(a2 . b2) + lambda_0 with four learned vectors, and lambda_0 = 0.8 - 0.6 exp(-0.3 l) in layer
    l, counted from 0. The norm is the root mean square of each head. Ye et al. 2024, arXiv:2410.05258. A head has two
    queries and two keys of width `head_dim`, and one value twice as wide: half as many heads make as many parameters as
    a multihead layer has. The paper draws the four vectors with deviation 0.1; here they start at +-0.1 such that lambda
    starts at lambda_0.
    """

    n_heads: int = Field(2, gt=0, le=2**16)
    n_kv_heads: int | None = Field(None, gt=0, le=2**16)  # as many as n_heads where not given
    head_dim: int | None = Field(None, gt=0, le=2**16)  # of a query or key; d_model / n_heads / 2 where not given
    norm_affine: bool = True
    eps: float = Field(1e-5, gt=0)  # of the norm
    scale: float | None = Field(None, gt=0)  # 1 / sqrt(head_dim) where not given
    dropout: float = Field(0.0, ge=0, lt=1)  # on the attention weights, of both maps apart

    def heads(self, d_model: int) -> Heads:
        if self.head_dim is None and d_model % (2 * self.n_heads):
            raise ConfigError(
                f"attention.n_heads={self.n_heads} of two queries each do not divide d_model={d_model}: "
                "choose a divisor of its half, or give attention.head_dim"
            )
        return Heads.in_groups(self.n_heads, self.n_kv_heads, self.head_dim or d_model // self.n_heads // 2)

    def build(self, site: Site) -> AttentionLayer:
        heads = self.heads(site.d_model)
        scale = self.scale or site.score_scale or 1 / math.sqrt(heads.width)
        norm = GroupRMSNorm(2 * heads.width, self.eps, self.norm_affine)
        return DifferentialAttention(
            site.d_model, heads, Weighing(heads.width, site.layer), norm, Scores(scale, None, 0, self.dropout)
        )


class Weighing(nn.Module):
    """lambda: how much of the second map is taken away."""

    def __init__(self, width: int, layer: int) -> None:
        super().__init__()
        self.start = 0.8 - 0.6 * math.exp(-0.3 * layer)
        # where all four are zero no gradient would ever move them, and where two are equal they would stay so
        level, swing = torch.full((width,), 0.1), torch.tensor([0.1, -0.1]).repeat(width)[:width]
        self.q1, self.k1 = nn.Parameter(level), nn.Parameter(swing)
        self.q2, self.k2 = nn.Parameter(level.clone()), nn.Parameter(swing.clone())

    def forward(self) -> Tensor:
        return (self.q1 * self.k1).sum().exp() - (self.q2 * self.k2).sum().exp() + self.start


class DifferentialAttention(AttentionLayer):
    def __init__(self, d_model: int, heads: Heads, weighing: Weighing, norm: nn.Module, scores: Scores) -> None:
        super().__init__()
        self.heads, self.weighing, self.norm, self.scores = heads, weighing, norm, scores
        queries, keys = 2 * heads.n_heads * heads.width, 2 * heads.n_kv_heads * heads.width
        sizes = {"q": queries, "k": keys, "v": keys}
        self.qkv = FusedLinear(d_model, sizes, False, {"q": "score", "k": "score", "v": "hidden"})
        self.qkv.join(self, "qkv")
        self.out = linear(queries, d_model, False, "output")

    def forward(self, x: Tensor, flow: Flow) -> Tensor:
        q, k, v = self.qkv(x)
        q = flow.positions.on_heads(self.split(q, 2 * self.heads.n_heads), flow.ids)  # (B, 2H, T, E)
        k = flow.positions.on_heads(self.split(k, 2 * self.heads.n_kv_heads), flow.ids)  # (B, 2K, T, E)
        v = self.split(v, self.heads.n_kv_heads)  # (B, K, T, 2E)
        state = flow.state(self)
        if state is not None:
            k, v = state.append(k, v)  # (B, 2K, S, E), (B, K, S, 2E)
        sight = flow.sight(x, k.shape[2])
        first, second = (self.scores(q[:, i::2], k[:, i::2], v, sight) for i in (0, 1))  # a head's maps side by side
        y = (1 - self.weighing.start) * self.norm(first - self.weighing() * second)  # (B, H, T, 2E)
        return self.out(y.transpose(1, 2).flatten(2))  # (B, T, H * 2E) -> (B, T, D)

    def split(self, x: Tensor, heads: int) -> Tensor:
        return x.unflatten(-1, (heads, -1)).transpose(1, 2)

    def new_state(self, batch: int, length: int, like: Tensor) -> Places:
        keys, width = self.heads.n_kv_heads, self.heads.width
        return Places(batch, length, [(2 * keys, width), (keys, 2 * width)], like)

    def use_path(self, path: str) -> None:
        self.scores.use_path(path)

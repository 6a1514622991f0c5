"""Attention: what stands at `attention=`."""

import math
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from partwise.config import ConfigError, part
from partwise.parts.families import Attention, AttentionLayer, Flow, Heads, PositionLayer, Site
from partwise.parts.layers import FusedLinear, GroupRMSNorm, linear
from partwise.parts.memories import Places, Static, Window
from partwise.parts.scores import Scores


class WithHeads(Attention):
    """Options of every attention with query heads that share keys and values in groups."""

    n_heads: int = Field(4, gt=0, le=2**16)
    n_kv_heads: int | None = Field(None, gt=0, le=2**16)  # as many as n_heads where not given
    head_dim: int | None = Field(None, gt=0, le=2**16)  # d_model / n_heads where not given

    def heads(self, d_model: int) -> Heads:
        if self.head_dim is None and d_model % self.n_heads:
            raise ConfigError(
                f"attention.n_heads={self.n_heads} does not divide d_model={d_model}: "
                "choose a divisor, or give attention.head_dim"
            )
        return Heads.in_groups(self.n_heads, self.n_kv_heads, self.head_dim or d_model // self.n_heads)


@part("multihead")
class MultiHead(WithHeads):
    """out(concat_h softmax(q_h k_h^T scale + mask) v_h). Vaswani et al. 2017, arXiv:1706.03762.

    `n_kv_heads` below `n_heads` shares keys and values among groups of query heads: grouped-query (Ainslie et al. 2023,
    arXiv:2305.13245), at 1 multi-query attention (Shazeer 2019, arXiv:1911.02150). Changes of the scores s:
    `window` lets a query see itself and the window - 1 places before it (Beltagy et al. 2020, arXiv:2004.05150);
    `softcap` c makes them c tanh(s / c) (Bello et al. 2016, arXiv:1611.09940; Gemma 2, arXiv:2408.00118); `sinks` add one
    learned score per head that takes weight and gives nothing (Miller 2023; gpt-oss, arXiv:2508.10925). `qk_norm`
    normalises queries and keys by their root mean square, per head (Dehghani et al. 2023, arXiv:2302.05442; Qwen3) or over
    all heads (OLMo 2, arXiv:2501.00656). `gate` multiplies what the heads give by sigmoid(gate(x)), per head or per element
    (Qiu et al. 2025, arXiv:2505.06708). `value_residual` mixes the first layer's values into v, half and half at the start
    (Zhou et al. 2024, arXiv:2410.17897).
    """

    hands_values_on: ClassVar[bool] = True

    bias: bool = False  # of the query, key and value projections
    out_bias: bool = False
    fused: bool = True  # queries, keys and values by one matrix product
    scale: float | None = Field(None, gt=0)  # 1 / sqrt(head_dim) where not given
    dropout: float = Field(0.0, ge=0, lt=1)  # on the attention weights
    window: int | None = Field(None, gt=1)  # at 1 a query would see itself alone, and nothing could be attended to
    softcap: float | None = Field(None, gt=0)
    sinks: bool = False
    qk_norm: Literal["none", "head", "full"] = "none"
    qk_norm_affine: bool = True
    qk_norm_eps: float = Field(1e-6, gt=0)
    gate: Literal["none", "head", "element"] = "none"
    value_residual: bool = False

    def build(self, site: Site) -> AttentionLayer:
        heads = self.heads(site.d_model)
        mixes = self.value_residual and site.layer > 0
        if mixes and (site.first is None or site.first[1:] != heads[1:]):
            raise ConfigError(
                "attention.value_residual=true needs the first layer's values in heads like a later layer's: "
                "give every layer the same n_kv_heads and head_dim"
            )
        residual = ValueResidual() if mixes else None
        return MultiHeadAttention(
            site.d_model, heads, self.bias, self.fused, self.window, residual, **self.furniture(site, heads)
        )

    def build_cross(self, site: Site) -> AttentionLayer:
        """Without `window` and `value_residual`, which are about the places of one row."""
        heads = self.heads(site.d_model)
        return CrossAttention(site.d_model, heads, self.bias, **self.furniture(site, heads))

    def furniture(self, site: Site, heads: Heads) -> dict[str, Any]:
        """What stands around queries, keys and values, in self- and cross-attention alike."""
        inner = heads.n_heads * heads.width
        widths = {"none": None, "head": (heads.width,) * 2, "full": (inner, heads.n_kv_heads * heads.width)}[
            self.qk_norm
        ]
        if widths and min(widths) < 2:
            raise ConfigError(
                f"attention.qk_norm={self.qk_norm} leaves but the sign of {min(widths)} number: widen the heads"
            )
        gates = {"none": 0, "head": heads.n_heads, "element": inner}[self.gate]
        return {
            "norms": [GroupRMSNorm(w, self.qk_norm_eps, self.qk_norm_affine) for w in widths] if widths else [],
            "scores": Scores(
                self.scale or site.score_scale or 1 / math.sqrt(heads.width),
                self.softcap,
                heads.n_heads if self.sinks else 0,
                self.dropout,
            ),
            "gate": linear(site.d_model, gates, False, "hidden") if gates else None,
            "out": linear(inner, site.d_model, self.out_bias, "output"),
        }


class ValueResidual(nn.Module):
    """own v + first v_1: both begin at one half."""

    def __init__(self) -> None:
        super().__init__()
        self.own = nn.Parameter(torch.tensor(0.5))
        self.first = nn.Parameter(torch.tensor(0.5))

    def forward(self, v: Tensor, first: Tensor) -> Tensor:
        return self.own * v + self.first * first


class HeadedAttention(AttentionLayer):
    """What self- and cross-attention share: everything but where keys and values come from."""

    def __init__(
        self, heads: Heads, norms: list[nn.Module], scores: Scores, gate: nn.Module | None, out: nn.Module
    ) -> None:
        super().__init__()
        self.width, self.n_kv_heads = heads.width, heads.n_kv_heads
        self.q_norm, self.k_norm = norms or [nn.Identity(), nn.Identity()]
        self.scores, self.gate, self.out = scores, gate, out

    def split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, self.width)).transpose(1, 2)  # (B, T, H * E) -> (B, H, T, E)

    def finish(self, x: Tensor, y: Tensor) -> Tensor:
        y = y.transpose(1, 2)  # (B, T, H, E)
        if self.gate is not None:
            gates = self.gate(x).sigmoid().unflatten(-1, (y.shape[2], -1))  # (B, T, H, 1 or E)
            y = y * gates
        return self.out(y.flatten(2))  # (B, T, H * E) -> (B, T, D)

    def use_path(self, path: str) -> None:
        self.scores.use_path(path)


class MultiHeadAttention(HeadedAttention):
    def __init__(
        self,
        d_model: int,
        heads: Heads,
        bias: bool,
        fused: bool,
        window: int | None,
        value_residual: ValueResidual | None,
        **furniture: Any,
    ) -> None:
        super().__init__(heads, **furniture)
        sizes = {"q": heads.n_heads * heads.width} | dict.fromkeys("kv", heads.n_kv_heads * heads.width)
        self.fused, self.window, self.value_residual = fused, window, value_residual
        if fused:
            self.qkv = FusedLinear(d_model, sizes, bias, {"q": "score", "k": "score", "v": "hidden"})
            self.qkv.join(self, "qkv")
        else:
            self.q = linear(d_model, sizes["q"], bias, "score")
            self.k = linear(d_model, sizes["k"], bias, "score")
            self.v = linear(d_model, sizes["v"], bias, "hidden")

    def forward(self, x: Tensor, flow: Flow) -> Tensor:
        q, k, v = self.qkv(x) if self.fused else (self.q(x), self.k(x), self.v(x))
        q = flow.positions.on_heads(self.split(self.q_norm(q)), flow.ids)  # (B, H, T, E)
        k = flow.positions.on_heads(self.split(self.k_norm(k)), flow.ids)  # (B, K, T, E)
        v = self.split(v)
        if flow.first_values is None:
            flow.first_values = v
        if self.value_residual is not None:
            v = self.value_residual(v, flow.first_values)
        state = flow.state(self)
        if state is not None:
            k, v = state.append(k, v)  # (B, K, S, E)
        y = self.scores(q, k, v, flow.sight(x, k.shape[2], self.window))
        return self.finish(x, y)

    def new_state(self, batch: int, length: int, like: Tensor) -> Places | Window:
        if self.window is not None and self.window <= length:
            return Window(batch, self.n_kv_heads, self.window - 1, self.width, like)
        return Places(batch, length, [(self.n_kv_heads, self.width)] * 2, like)

    def nulls(self, positions: PositionLayer) -> set[str]:
        return set() if positions.turns_heads else null_key_bias(self.k_norm, self.scores)


class CrossAttention(HeadedAttention):
    """Queries from x, keys and values from the encoder's output: made once, then kept."""

    def __init__(self, d_model: int, heads: Heads, bias: bool, **furniture: Any) -> None:
        super().__init__(heads, **furniture)
        self.q = linear(d_model, heads.n_heads * heads.width, bias, "score")
        sizes = dict.fromkeys("kv", heads.n_kv_heads * heads.width)
        self.kv = FusedLinear(d_model, sizes, bias, {"k": "score", "v": "hidden"})
        self.kv.join(self, "kv")

    def forward(self, x: Tensor, flow: Flow) -> Tensor:
        assert flow.memory is not None
        q = self.split(self.q_norm(self.q(x)))  # (B, H, T, E)
        state = flow.state(self)
        k, v = self.keys_values(flow.memory) if state is None else state.once(lambda: self.keys_values(flow.memory))
        return self.finish(x, self.scores(q, k, v, flow.memory_sight(x)))

    def keys_values(self, memory: Tensor) -> tuple[Tensor, Tensor]:
        k, v = self.kv(memory)
        return self.split(self.k_norm(k)), self.split(v)  # (B, K, M, E)

    def new_state(self, batch: int, length: int, like: Tensor) -> Static:
        return Static()

    def nulls(self, positions: PositionLayer) -> set[str]:
        return null_key_bias(self.k_norm, self.scores)


def null_key_bias(k_norm: nn.Module, scores: Scores) -> set[str]:
    """A constant added to every key moves all scores of a query alike, which no softmax shows.

    It does where keys are turned by their position or normalised, scores capped, or a sink is not moved with them.
    """
    plain = isinstance(k_norm, nn.Identity) and scores.softcap is None and scores.sinks is None
    return {"k.bias"} if plain else set()

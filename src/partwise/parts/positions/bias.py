"""Relative position biases: terms of the attention scores by the distance of query and key."""

import torch
from pydantic import Field
from torch import Tensor, nn

from partwise.config import ConfigError, part
from partwise.parts.contracts import LayerContext, PositionLayer, Positions
from partwise.parts.roles import Role


@part("alibi")
class ALiBi(Positions):
    """Scores minus m_h |i - j|, m_h = 2^(-8h/H), h from 1. Press et al. 2021, arXiv:2108.12409.

    If the number of heads is not a power of two: the slopes of the next lower power n, then every second slope of 2n.
    """

    def build(self, layer_ctx: LayerContext) -> PositionLayer:
        return LinearBias(alibi_slopes(layer_ctx.heads.n_heads))


def alibi_slopes(n_heads: int) -> list[float]:
    """One slope per head: the decrease of its scores per position."""
    lower = 2 ** (n_heads.bit_length() - 1)

    def powers(n: int) -> list[float]:
        return [2 ** (-8 * (head + 1) / n) for head in range(n)]

    return powers(lower) + powers(2 * lower)[: 2 * (n_heads - lower) : 2]


@part("t5")
class T5(Positions):
    """Scores plus P[bucket(i - j)] of each head, P learned and shared by the layers. Raffel et al. 2019, arXiv:1910.10683.

    The first half of the buckets hold one distance each; the others grow by a constant factor up to `max_distance`, and
    the last one also holds all larger distances. An encoder uses half of the buckets for each direction. T5 itself does
    not scale scores: attention.scale=1.
    """

    buckets: int = Field(32, ge=4, le=1024)
    """Ranges of distances that have a learned bias each."""
    max_distance: int = Field(128, gt=1, le=2**16)
    """The distance from which on all share the last bucket."""

    def build(self, layer_ctx: LayerContext) -> PositionLayer:
        if self.buckets % 2:
            raise ConfigError(
                f"positions.buckets={self.buckets} cannot be split between two directions: choose an even number"
            )
        if self.max_distance <= self.buckets // 2:
            raise ConfigError(
                f"positions.max_distance={self.max_distance} must exceed {self.buckets // 2}, the number of one-distance "
                "buckets: raise it, or lower positions.buckets"
            )
        if layer_ctx.causal:
            after, before = [0] * self.max_distance, distance_buckets(self.buckets, self.max_distance)
        else:
            before = distance_buckets(self.buckets // 2, self.max_distance)
            after = [self.buckets // 2 + bucket for bucket in before[1:]]
        return BucketBias(layer_ctx.heads.n_heads, self.buckets, after[::-1] + before)


def distance_buckets(buckets: int, max_distance: int) -> list[int]:
    """The bucket of each distance 0 ... max_distance."""
    single = buckets // 2  # number of one-distance buckets
    result, bucket = [*range(single)], single
    for distance in range(single, max_distance + 1):
        # distance >= single (max_distance / single)^(k / n), in integers, since logarithms would round at bucket edges
        while bucket + 1 < buckets and distance ** (buckets - single) * single ** (bucket + 1 - single) >= (
            single ** (buckets - single) * max_distance ** (bucket + 1 - single)
        ):
            bucket += 1
        result.append(bucket)
    return result


class LinearBias(PositionLayer):
    def __init__(self, slopes: list[float]) -> None:
        super().__init__()
        self.slopes = slopes
        self.tables: dict[tuple[torch.device, torch.dtype], Tensor] = {}  # no buffer, as in AngleTable

    def on_scores(self, queries: Tensor, keys: Tensor, like: Tensor) -> Tensor:
        key = (like.device, torch.promote_types(like.dtype, torch.float32))
        if key not in self.tables:
            self.tables[key] = torch.tensor(self.slopes, dtype=torch.float64, device="cpu").to(*key)
        return -self.tables[key][:, None, None] * (queries[:, None] - keys).abs()  # (H, T, S)


class BucketBias(PositionLayer):
    """`buckets_by_distance` lists buckets from the farthest key after a query to the farthest key before it."""

    role: Role = "table"

    def __init__(self, n_heads: int, n_buckets: int, buckets_by_distance: list[int]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(n_buckets, n_heads))
        self.buckets_by_distance, self.max_distance = buckets_by_distance, len(buckets_by_distance) // 2
        self.tables: dict[torch.device, Tensor] = {}

    def on_scores(self, queries: Tensor, keys: Tensor, like: Tensor) -> Tensor:
        if like.device not in self.tables:
            self.tables[like.device] = torch.tensor(self.buckets_by_distance, device="cpu").to(like.device)
        index = (queries[:, None] - keys).clamp(-self.max_distance, self.max_distance) + self.max_distance
        buckets = self.tables[like.device][index]  # (T, S)
        return nn.functional.embedding(buckets, self.weight).permute(2, 0, 1)

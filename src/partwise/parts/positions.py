"""Positions: what stands at `positions=`."""

import math

import torch
from pydantic import Field
from torch import Tensor, nn

from partwise.config import ConfigError, part
from partwise.parts.families import PositionLayer, Positions, Role, Site


@part("none")
class NoPositions(Positions):
    """No position information but the causal mask. Haviv et al. 2022, arXiv:2203.16634."""

    def build(self, site: Site) -> PositionLayer:
        return PositionLayer()


@part("learned")
class Learned(Positions):
    """x_t + P[t], P learned. Radford et al. 2018 (GPT)."""

    def build(self, site: Site) -> PositionLayer:
        return LearnedTable(site.max_len, site.d_model)


@part("sinusoidal")
class Sinusoidal(Positions):
    """x_t + [sin(t w_0), cos(t w_0), sin(t w_1), ...], w_i = base^(-2i/D). Vaswani et al. 2017, arXiv:1706.03762."""

    base: float = Field(10000.0, gt=1)

    def build(self, site: Site) -> PositionLayer:
        if site.d_model % 2:
            raise ConfigError(f"positions=sinusoidal needs an even width, d_model={site.d_model}: choose an even one")
        return SinusoidalTable(site.max_len, site.d_model, self.base)


@part("rope")
class Rope(Positions):
    """Each pair (i, i + E/2) of a head is turned by the angle t theta^(-2i/E). Su et al. 2021, arXiv:2104.09864."""

    theta: float = Field(10000.0, gt=1)

    def build(self, site: Site) -> PositionLayer:
        if site.head_dim % 2:
            raise ConfigError(
                f"positions=rope needs an even head width, found {site.head_dim}: change attention.n_heads or .head_dim"
            )
        return Rotary(site.max_len, site.head_dim, self.theta)


class LearnedTable(PositionLayer):
    role: Role = "table"

    def __init__(self, max_len: int, d_model: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(max_len, d_model))

    def at_input(self, x: Tensor, ids: Tensor) -> Tensor:
        return x + self.weight[ids]


class AngleTable(PositionLayer):
    """cos and sin of t w_i, computed in float64 and never kept below float32: bfloat16 angles collapse above 256."""

    def __init__(self, max_len: int, width: int, base: float) -> None:
        super().__init__()
        self.max_len, self.width, self.base = max_len, width, base
        # not buffers: `.bfloat16()` and `.double()` would round them; each dtype gets its own copy of the exact table
        self.tables: dict[tuple[torch.device, torch.dtype], tuple[Tensor, Tensor]] = {}

    def cos_sin(self, like: Tensor) -> tuple[Tensor, Tensor]:
        """Two (max_len, width / 2) tables on the device of `like`, in its precision or float32, the finer of both."""
        key = (like.device, torch.promote_types(like.dtype, torch.float32))
        if key not in self.tables:
            steps = torch.arange(0, self.width, 2, dtype=torch.float64, device="cpu")
            frequencies = torch.exp(steps * (-math.log(self.base) / self.width))
            angles = torch.outer(torch.arange(self.max_len, dtype=torch.float64, device="cpu"), frequencies)
            self.tables[key] = angles.cos().to(*key), angles.sin().to(*key)
        return self.tables[key]


class SinusoidalTable(AngleTable):
    def at_input(self, x: Tensor, ids: Tensor) -> Tensor:
        cos, sin = self.cos_sin(x)
        waves = torch.stack((sin[ids], cos[ids]), dim=-1).flatten(-2)  # sines on even columns, cosines on odd ones
        return (x + waves).to(x.dtype)


class Rotary(AngleTable):
    def on_heads(self, heads: Tensor, ids: Tensor) -> Tensor:
        cos, sin = self.cos_sin(heads)
        cos, sin = cos[ids], sin[ids]
        first, second = heads.chunk(2, dim=-1)
        return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(heads.dtype)

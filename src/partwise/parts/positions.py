"""Positions: what stands at `positions=`; those that add to scores stand in `relative.py`."""

import math
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from partwise.config import ConfigError, part
from partwise.parts.families import PositionLayer, Positions, Site
from partwise.parts.roles import Role


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
        return SinusoidalTable(site.max_len, plain_frequencies(self.base, site.d_model))


class WithTurns(Positions):
    """Options of every kind of rotary positions, whose frequencies w_i differ: each pair of a head is turned by t w_i.

    `fraction` turns the first part of each head only (GPT-NeoX, arXiv:2204.06745). `layout` says which dimensions are a
    pair: 'half' takes (i, i + E/2), as Llama does, 'interleaved' takes (2i, 2i + 1), as the paper and GPT-J do.
    """

    theta: float = Field(10000.0, gt=1)
    fraction: float = Field(1.0, gt=0, le=1)
    layout: Literal["half", "interleaved"] = "half"

    def build(self, site: Site) -> PositionLayer:
        width = int(self.fraction * site.heads.width + 1e-9)  # 0.7 of 180 is 125.99... in binary
        if self.fraction < 1 and (width % 2 or not width):
            raise ConfigError(
                f"positions.fraction={self.fraction} turns {width} of the {site.heads.width} dimensions of a head: "
                "choose one that turns an even number, at least 2"
            )
        if width % 2 or not width:
            raise ConfigError(
                f"positions={self.name} needs an even head width, found {width}: change attention.n_heads or .head_dim"
            )
        kind = Rotary if self.layout == "half" else InterleavedRotary
        return kind(site.max_len, self.frequencies(width), self.magnitude())

    def frequencies(self, width: int) -> list[float]:
        """w_i of each pair, slower from one to the next."""
        return plain_frequencies(self.theta, width)

    def magnitude(self) -> float:
        """What the turned dimensions are multiplied by."""
        return 1.0


def plain_frequencies(base: float, width: int) -> list[float]:
    return [base ** (-i / width) for i in range(0, width, 2)]


def blend(frequency: float, kept: float, factor: float) -> float:
    """The share `kept` of a frequency as it is, the rest of it `factor` times slower."""
    return frequency * (kept + (1 - kept) / factor)


@part("rope")
class Rope(WithTurns):
    """Each pair of a head is turned by the angle t theta^(-2i/E). Su et al. 2021, arXiv:2104.09864."""


@part("rope_linear")
class LinearRope(WithTurns):
    """w_i = theta^(-2i/E) / factor: positions are interpolated. Chen et al. 2023, arXiv:2306.15595."""

    factor: float = Field(ge=1)

    def frequencies(self, width: int) -> list[float]:
        return [frequency / self.factor for frequency in plain_frequencies(self.theta, width)]


@part("rope_ntk")
class NTKRope(WithTurns):
    """w_i = (theta factor^(E/(E-2)))^(-2i/E), NTK-aware and static. Peng et al. 2023, arXiv:2309.00071.

    The slowest pair is slowed by the factor, the fastest stays (bloc97 2023).
    """

    factor: float = Field(ge=1)

    def frequencies(self, width: int) -> list[float]:
        if width < 4:
            raise ConfigError("positions=rope_ntk needs two pairs to spread its factor over: turn 4 or more of a head")
        # factor^(-2i/(E-2)) apart from theta's power, as their product before the root may overflow
        powers = [*plain_frequencies(self.factor, width - 2), 1 / self.factor]
        return [w * power for w, power in zip(plain_frequencies(self.theta, width), powers, strict=True)]


@part("rope_yarn")
class YarnRope(WithTurns):
    """w_i = theta^(-2i/E) (g_i + (1 - g_i) / factor), g_i falling from 1 to 0. Peng et al. 2023, arXiv:2309.00071.

    A pair that turns beta_fast times or more within `original_length` keeps its frequency, one that turns beta_slow times
    or fewer is interpolated. Between them g falls linearly with i, as in the authors' code (the paper lets it fall with
    the number of turns), and `truncate` widens that range to whole pairs. Queries and keys are multiplied by `mscale`,
    where they are turned: 0.1 ln(factor) + 1 where not given.
    """

    factor: float = Field(ge=1)
    original_length: int = Field(gt=0, le=2**24)
    beta_fast: float = Field(32.0, gt=0)
    beta_slow: float = Field(1.0, gt=0)
    truncate: bool = True
    mscale: float | None = Field(None, gt=0)

    def frequencies(self, width: int) -> list[float]:
        if self.beta_fast <= self.beta_slow:
            raise ConfigError(
                f"positions.beta_fast={self.beta_fast:g} is not above positions.beta_slow={self.beta_slow:g}: raise it"
            )
        low, high = self.pair_of(self.beta_fast, width), self.pair_of(self.beta_slow, width)
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, width - 1)
        # an end beyond all pairs leaves no range: compared first, and never divided by
        shares = [0.0 if i >= high else 1.0 if i <= low else (high - i) / (high - low) for i in range(width // 2)]
        return [blend(w, g, self.factor) for w, g in zip(plain_frequencies(self.theta, width), shares, strict=True)]

    def pair_of(self, turns: float, width: int) -> float:
        """The i, between pairs, at which theta^(-2i/E) makes so many turns within the original length."""
        slower = math.log(self.original_length) - math.log(2 * math.pi) - math.log(turns)  # than the first pair
        return width * slower / (2 * math.log(self.theta))

    def magnitude(self) -> float:
        return 0.1 * math.log(self.factor) + 1 if self.mscale is None else self.mscale


@part("rope_llama3")
class Llama3Rope(WithTurns):
    """w_i = theta^(-2i/E) (g_i + (1 - g_i) / factor). Llama 3.1; Grattafiori et al. 2024, arXiv:2407.21783.

    g_i = (r_i - low) / (high - low) within 0 and 1, where r_i is how often the pair turns within `original_length`, and low
    and high are `low_freq_factor` and `high_freq_factor`.
    """

    factor: float = Field(ge=1)
    original_length: int = Field(gt=0, le=2**24)
    low_freq_factor: float = Field(1.0, gt=0)
    high_freq_factor: float = Field(4.0, gt=0)

    def frequencies(self, width: int) -> list[float]:
        low, high = self.low_freq_factor, self.high_freq_factor
        if high <= low:
            raise ConfigError(
                f"positions.high_freq_factor={high:g} is not above positions.low_freq_factor={low:g}: raise it"
            )
        plain = plain_frequencies(self.theta, width)
        turns = [self.original_length * frequency / (2 * math.pi) for frequency in plain]
        shares = [min(max((turn - low) / (high - low), 0.0), 1.0) for turn in turns]
        return [blend(w, g, self.factor) for w, g in zip(plain, shares, strict=True)]


class LearnedTable(PositionLayer):
    role: Role = "table"

    def __init__(self, max_len: int, d_model: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(max_len, d_model))

    def at_input(self, x: Tensor, ids: Tensor) -> Tensor:
        return x + self.weight[ids]


class AngleTable(PositionLayer):
    """cos and sin of t w_i, computed in float64 and never kept below float32: bfloat16 angles collapse above 256."""

    def __init__(self, max_len: int, frequencies: list[float], magnitude: float = 1.0) -> None:
        super().__init__()
        self.max_len, self.frequencies, self.magnitude = max_len, frequencies, magnitude
        # not buffers: `.bfloat16()` and `.double()` would round them; each dtype gets its own copy of the exact table
        self.tables: dict[tuple[torch.device, torch.dtype], tuple[Tensor, Tensor]] = {}

    def cos_sin(self, like: Tensor) -> tuple[Tensor, Tensor]:
        """Two (max_len, pairs) tables on the device of `like`, in its precision or float32, the finer of both."""
        key = (like.device, torch.promote_types(like.dtype, torch.float32))
        if key not in self.tables:
            with torch.inference_mode(False):  # training may need what evaluation made
                frequencies = torch.tensor(self.frequencies, dtype=torch.float64, device="cpu")
                angles = torch.outer(torch.arange(self.max_len, dtype=torch.float64, device="cpu"), frequencies)
                self.tables[key] = (self.magnitude * angles.cos()).to(*key), (self.magnitude * angles.sin()).to(*key)
        return self.tables[key]


class SinusoidalTable(AngleTable):
    def at_input(self, x: Tensor, ids: Tensor) -> Tensor:
        cos, sin = self.cos_sin(x)
        waves = torch.stack((sin[ids], cos[ids]), dim=-1).flatten(-2)  # sines on even columns, cosines on odd ones
        return (x + waves).to(x.dtype)


class Rotary(AngleTable):
    """Pairs (i, i + half of the turned width); what stands behind them in a head passes as it is."""

    turns_heads = True

    def on_heads(self, heads: Tensor, ids: Tensor) -> Tensor:
        cos, sin = self.cos_sin(heads)
        ids = ids.unsqueeze(1) if ids.dim() == 2 else ids  # rows that count their positions apart
        cos, sin = cos[ids], sin[ids]  # (T, pairs) or (B, 1, T, pairs)
        width = 2 * len(self.frequencies)
        first, second = self.split(heads[..., :width])
        turned = self.join(first * cos - second * sin, second * cos + first * sin).to(heads.dtype)
        return turned if width == heads.shape[-1] else torch.cat((turned, heads[..., width:]), dim=-1)

    def split(self, heads: Tensor) -> tuple[Tensor, Tensor]:
        first, second = heads.chunk(2, dim=-1)
        return first, second

    def join(self, first: Tensor, second: Tensor) -> Tensor:
        return torch.cat((first, second), dim=-1)


class InterleavedRotary(Rotary):
    """Pairs (2i, 2i + 1)."""

    def split(self, heads: Tensor) -> tuple[Tensor, Tensor]:
        return heads[..., 0::2], heads[..., 1::2]

    def join(self, first: Tensor, second: Tensor) -> Tensor:
        return torch.stack((first, second), dim=-1).flatten(-2)

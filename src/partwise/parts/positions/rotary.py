"""Rotary position embeddings (RoPE) and their scaled variants."""

import math
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from partwise.config import ConfigError, part
from partwise.parts.contracts import LayerContext, PositionLayer, Positions
from partwise.parts.operations import PositionsSpec
from partwise.parts.positions.angles import AngleTable, inverse_frequencies


class RopeOptions(Positions):
    """Options of all RoPE variants, which rotate each pair of dimensions in a head by t w_i and differ in w_i.

    `partial_rotary_factor` is the fraction of each head, from its start, that is rotated (GPT-NeoX, arXiv:2204.06745).
    `layout` pairs dimensions (i, i + E/2) ('half', as Llama) or (2i, 2i + 1) ('interleaved', as the paper and GPT-J).
    """

    theta: float = Field(10000.0, gt=1)
    """The base of the frequencies: the larger, the slower the slowest rotation."""
    partial_rotary_factor: float = Field(1.0, gt=0, le=1)
    """The fraction of each head's numbers that are rotated."""
    layout: Literal["half", "interleaved"] = "half"
    """Which numbers form a pair: i and i + E/2 (`half`), or 2i and 2i + 1 (`interleaved`)."""

    def build(self, layer_ctx: LayerContext) -> PositionLayer:
        width = int(self.partial_rotary_factor * layer_ctx.heads.head_dim + 1e-9)  # 0.7 * 180 is 125.99... in binary
        if self.partial_rotary_factor < 1 and (width % 2 or not width):
            raise ConfigError(
                f"positions.partial_rotary_factor={self.partial_rotary_factor} rotates {width} of the "
                f"{layer_ctx.heads.head_dim} dimensions of a head: must rotate an even number, at least 2"
            )
        if width % 2 or not width:
            raise ConfigError(
                f"positions={self.name} needs an even head dimension, not {width}: change attention.n_heads "
                "or attention.head_dim"
            )
        layer_type = Rotary if self.layout == "half" else InterleavedRotary
        return layer_type(layer_ctx.context_length, self.frequencies(width), self.attention_scaling())

    def frequencies(self, width: int) -> list[float]:
        """w_i of each pair, in descending order."""
        return inverse_frequencies(self.theta, width)

    def attention_scaling(self) -> float:
        """The factor of the rotated dimensions of queries and keys."""
        return 1.0


def interpolate(frequency: float, g: float, factor: float) -> float:
    """The mean of a frequency, weighted g, and frequency / factor, weighted 1 - g."""
    return frequency * (g + (1 - g) / factor)


@part("rope")
class Rope(RopeOptions):
    """w_i = theta^(-2i/E). Su et al. 2021, arXiv:2104.09864."""


@part("rope_linear")
class LinearRope(RopeOptions):
    """w_i = theta^(-2i/E) / factor: position interpolation. Chen et al. 2023, arXiv:2306.15595."""

    factor: float = Field(ge=1)
    """How many times longer the context becomes."""

    def frequencies(self, width: int) -> list[float]:
        return [frequency / self.factor for frequency in inverse_frequencies(self.theta, width)]


@part("rope_ntk")
class NTKRope(RopeOptions):
    """w_i = (theta factor^(E/(E-2)))^(-2i/E), NTK-aware and static. Peng et al. 2023, arXiv:2309.00071.

    The lowest frequency is divided by the factor, the highest is unchanged (bloc97 2023).
    """

    factor: float = Field(ge=1)
    """How many times longer the context becomes."""

    def frequencies(self, width: int) -> list[float]:
        if width < 4:
            raise ConfigError(f"positions=rope_ntk rotates {width} dimensions of a head: must be at least 4, two pairs")
        # factor^(-2i/(E-2)) separately from theta^(-2i/E): the base theta factor^(E/(E-2)) may overflow
        powers = [*inverse_frequencies(self.factor, width - 2), 1 / self.factor]
        return [w * power for w, power in zip(inverse_frequencies(self.theta, width), powers, strict=True)]


@part("rope_yarn")
class YarnRope(RopeOptions):
    """w_i = theta^(-2i/E) (g_i + (1 - g_i) / factor), g_i falling from 1 to 0. Peng et al. 2023, arXiv:2309.00071.

    Pairs that rotate beta_fast times or more within `original_context_length` keep their frequency (g = 1); those that
    rotate beta_slow times or less are interpolated (g = 0). In between, g falls linearly with i, as in the authors' code
    (in the paper, with the number of rotations); `truncate` rounds the ends of that range outward to integers. `mscale`
    multiplies the rotated dimensions of queries and keys (default: 0.1 ln(factor) + 1).
    """

    factor: float = Field(ge=1)
    """How many times longer the context becomes."""
    original_context_length: int = Field(gt=0, le=2**24)
    """The context that the weights were trained with, in tokens."""
    beta_fast: float = Field(32.0, gt=0)
    """Pairs with at least so many rotations within the original context keep their frequency."""
    beta_slow: float = Field(1.0, gt=0)
    """Pairs with at most so many rotations within the original context are interpolated."""
    truncate: bool = True
    """Round the ends of the range in between outward to integers."""
    mscale: float | None = Field(None, gt=0)
    """The factor of the rotated numbers of queries and keys. Default: 0.1 ln(factor) + 1."""

    def frequencies(self, width: int) -> list[float]:
        if self.beta_fast <= self.beta_slow:
            raise ConfigError(
                f"positions.beta_fast={self.beta_fast:g} does not exceed "
                f"positions.beta_slow={self.beta_slow:g}: raise positions.beta_fast"
            )
        low, high = self.pair_index(self.beta_fast, width), self.pair_index(self.beta_slow, width)
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, width - 1)
        # high - low may be zero if an end is beyond all pairs; the comparisons come first, so it never divides
        weights = [0.0 if i >= high else 1.0 if i <= low else (high - i) / (high - low) for i in range(width // 2)]
        return [
            interpolate(w, g, self.factor) for w, g in zip(inverse_frequencies(self.theta, width), weights, strict=True)
        ]

    def pair_index(self, rotations: float, width: int) -> float:
        """The real-valued i at which theta^(-2i/E) rotates that many times within the original context length."""
        log_ratio = math.log(self.original_context_length) - math.log(2 * math.pi) - math.log(rotations)
        return width * log_ratio / (2 * math.log(self.theta))

    def attention_scaling(self) -> float:
        return 0.1 * math.log(self.factor) + 1 if self.mscale is None else self.mscale


@part("rope_llama3")
class Llama3Rope(RopeOptions):
    """w_i = theta^(-2i/E) (g_i + (1 - g_i) / factor). Llama 3.1; Grattafiori et al. 2024, arXiv:2407.21783.

    g_i = (r_i - low) / (high - low), clamped to [0, 1], where r_i is the number of rotations within
    `original_context_length`, and low and high are `low_freq_factor` and `high_freq_factor`.
    """

    factor: float = Field(ge=1)
    """How many times longer the context becomes."""
    original_context_length: int = Field(gt=0, le=2**24)
    """The context that the weights were trained with, in tokens."""
    low_freq_factor: float = Field(1.0, gt=0)
    """Pairs with fewer rotations within the original context are interpolated."""
    high_freq_factor: float = Field(4.0, gt=0)
    """Pairs with more rotations within the original context keep their frequency."""

    def frequencies(self, width: int) -> list[float]:
        low, high = self.low_freq_factor, self.high_freq_factor
        if high <= low:
            raise ConfigError(
                f"positions.high_freq_factor={high:g} does not exceed "
                f"positions.low_freq_factor={low:g}: raise positions.high_freq_factor"
            )
        plain = inverse_frequencies(self.theta, width)
        rotations = [self.original_context_length * frequency / (2 * math.pi) for frequency in plain]
        weights = [min(max((r - low) / (high - low), 0.0), 1.0) for r in rotations]
        return [interpolate(w, g, self.factor) for w, g in zip(plain, weights, strict=True)]


SCALINGS: dict[str, type[RopeOptions]] = {"linear": LinearRope, "ntk": NTKRope, "yarn": YarnRope}


def scaled_rope(positions: Positions, scaling: str, trained_length: int, length: int) -> RopeOptions:
    """RoPE as trained on `trained_length` tokens, scaled by length / trained_length. Raises ConfigError."""
    if scaling not in SCALINGS:
        raise ConfigError(f"scaling={scaling!r}: choose {', '.join(SCALINGS)}")
    if not isinstance(positions, Rope):
        raise ConfigError(
            f"scaling={scaling!r} applies to positions=rope, not positions={positions.name}: leave it out"
        )
    kind = SCALINGS[scaling]
    options: dict[str, Any] = {name: getattr(positions, name) for name in RopeOptions.model_fields}
    options["factor"] = length / trained_length
    if kind is YarnRope:
        options["original_context_length"] = trained_length
    return kind.from_dict(options, prefix="positions")


class Rotary(AngleTable):
    """Rotates pairs (i, i + half of the rotated width); the remaining dimensions of a head pass through unchanged."""

    rotates_heads = True

    def on_heads(self, heads: Tensor, position_ids: Tensor) -> Tensor:
        cos, sin = self.cos_sin(heads)
        position_ids = position_ids.unsqueeze(1) if position_ids.dim() == 2 else position_ids
        cos, sin = cos[position_ids], sin[position_ids]  # (T, pairs) or (B, 1, T, pairs)
        width = 2 * len(self.frequencies)
        first, second = self.split_pairs(heads[..., :width])
        rotated = self.join_pairs(first * cos - second * sin, second * cos + first * sin).to(heads.dtype)
        return rotated if width == heads.shape[-1] else torch.cat((rotated, heads[..., width:]), dim=-1)

    def spec(self) -> PositionsSpec:
        return PositionsSpec(rotation="half")

    def split_pairs(self, heads: Tensor) -> tuple[Tensor, Tensor]:
        first, second = heads.chunk(2, dim=-1)
        return first, second

    def join_pairs(self, first: Tensor, second: Tensor) -> Tensor:
        return torch.cat((first, second), dim=-1)


class InterleavedRotary(Rotary):
    """Rotates pairs (2i, 2i + 1)."""

    def spec(self) -> PositionsSpec:
        return PositionsSpec(rotation="interleaved")

    def split_pairs(self, heads: Tensor) -> tuple[Tensor, Tensor]:
        return heads[..., 0::2], heads[..., 1::2]

    def join_pairs(self, first: Tensor, second: Tensor) -> Tensor:
        return torch.stack((first, second), dim=-1).flatten(-2)

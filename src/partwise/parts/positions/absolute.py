"""Absolute position embeddings, added to token embeddings: learned, sinusoidal, none."""

from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn

from partwise.config import ConfigError, part
from partwise.parts.contracts import LayerContext, PositionLayer, Positions
from partwise.parts.positions.angles import AngleTable, inverse_frequencies
from partwise.parts.roles import Role


@part("none")
class NoPositions(Positions):
    """No position information except the causal mask. Haviv et al. 2022, arXiv:2203.16634."""

    def build(self, layer_ctx: LayerContext) -> PositionLayer:
        return PositionLayer()


@part("learned")
class Learned(Positions):
    """x_t + P[t], P learned. Radford et al. 2018 (GPT)."""

    has_parameter_per_position: ClassVar[bool] = True

    def build(self, layer_ctx: LayerContext) -> PositionLayer:
        return LearnedTable(layer_ctx.context_length, layer_ctx.d_model)


@part("sinusoidal")
class Sinusoidal(Positions):
    """x_t + [sin(t w_0), cos(t w_0), sin(t w_1), ...], w_i = base^(-2i/D). Vaswani et al. 2017, arXiv:1706.03762."""

    base: float = Field(10000.0, gt=1)
    """The base of the frequencies: the larger, the slower the slowest wave."""

    def build(self, layer_ctx: LayerContext) -> PositionLayer:
        if layer_ctx.d_model % 2:
            raise ConfigError(f"positions=sinusoidal needs an even d_model, not {layer_ctx.d_model}: change d_model")
        return SinusoidalTable(layer_ctx.context_length, inverse_frequencies(self.base, layer_ctx.d_model))


class LearnedTable(PositionLayer):
    role: Role = "table"

    def __init__(self, context_length: int, d_model: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(context_length, d_model))

    def extra_repr(self) -> str:
        return f"{self.weight.shape[0]}, {self.weight.shape[1]}"

    def at_input(self, x: Tensor, position_ids: Tensor) -> Tensor:
        return x + self.weight[position_ids]


class SinusoidalTable(AngleTable):
    def at_input(self, x: Tensor, position_ids: Tensor) -> Tensor:
        cos, sin = self.cos_sin(x)
        waves = torch.stack((sin[position_ids], cos[position_ids]), dim=-1).flatten(
            -2
        )  # sin in even columns, cos in odd
        return (x + waves).to(x.dtype)

"""Short convolutions before attention, `short_conv=`."""

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from partwise.config import part
from partwise.parts.caches import LookbackLayer
from partwise.parts.contracts import ForwardContext, LayerContext, ShortConv
from partwise.parts.operations import ShortConvSpec


@part("none")
class NoShortConv(ShortConv):
    """x: only attention mixes tokens."""

    def build(self, layer_ctx: LayerContext) -> nn.Module:
        return IdentityShortConv()


@part("token_shift")
class TokenShift(ShortConv):
    """x_t mu + x_{t-1} (1 - mu), a vector mu; x_{-1} = 0. Token shift: Peng et al. 2023 (RWKV), arXiv:2305.13048.

    Initialized as the paper's keys: mu_i = (i / D)^(1 - l/L) for channel i = 0 ... D-1 of layer l = 0 ... L-1, so most
    channels look back in early layers, and few in late ones. Encoders, too, shift only backward.
    """

    def build(self, layer_ctx: LayerContext) -> nn.Module:
        power = 1 - layer_ctx.layer_index / layer_ctx.n_layers
        # not torch.arange: on the meta device, it spends a second importing torch's compiler
        return TokenShiftLayer(torch.tensor([(i / layer_ctx.d_model) ** power for i in range(layer_ctx.d_model)]))


@part("conv")
class CausalConv(ShortConv):
    """x_t + act(sum_k w_k x_{t-k}), k = 0 ... kernel_size-1, with vectors w_k: a causal depthwise convolution.

    As in Canon layers (Allen-Zhu 2025, arXiv:2512.17351) and, without `residual`, act(sum_k w_k x_{t-k}) as in Primer (So
    et al. 2021, arXiv:2109.08668) and H3 (Fu et al. 2022, arXiv:2212.14052). Initialized as the identity: all w_k =
    0, or without `residual`, w_0 = 1 and the others 0 (with an activation, act(x)). It is causal in encoders, too.
    """

    kernel_size: int = Field(4, ge=2, le=128)
    """Tokens that the convolution sees, the present one included."""
    activation: Literal["none", "silu"] = "none"
    """The function act of the convolution's output."""
    residual: bool = True
    """Add the convolution to its input instead of replacing it."""

    def build(self, layer_ctx: LayerContext) -> nn.Module:
        activation = {"none": nn.Identity, "silu": nn.SiLU}[self.activation]()
        return CausalConvLayer(layer_ctx.d_model, self.kernel_size, activation, self.residual)


class IdentityShortConv(nn.Module):
    def forward(self, x: Tensor, ctx: ForwardContext) -> Tensor:
        return x


class TokenShiftLayer(LookbackLayer):
    def __init__(self, mu: Tensor) -> None:
        super().__init__(lookback=1, width=len(mu))
        self.mu = nn.Parameter(mu)

    def forward(self, x: Tensor, ctx: ForwardContext) -> Tensor:
        (previous,) = self.previous_inputs(x, ctx)
        return x * self.mu + previous * (1 - self.mu)

    def spec(self) -> ShortConvSpec:
        return ShortConvSpec(kind="token_shift")


class CausalConvLayer(LookbackLayer):
    def __init__(self, d_model: int, kernel_size: int, activation: nn.Module, residual: bool) -> None:
        super().__init__(kernel_size - 1, d_model)
        self.taps = nn.Parameter(torch.zeros(kernel_size, d_model))  # w_0, w_1, ...
        if not residual:
            nn.init.ones_(self.taps[0])
        self.activation, self.residual = activation, residual

    def forward(self, x: Tensor, ctx: ForwardContext) -> Tensor:
        y = x * self.taps[0]
        for tap, previous in zip(self.taps[1:], self.previous_inputs(x, ctx), strict=True):
            y = y + tap * previous
        y = self.activation(y)
        return x + y if self.residual else y

"""Mixing of neighbouring tokens before attention: what stands at `mixing=`."""

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from partwise.config import part
from partwise.parts.families import Flow, Mixing, Site
from partwise.parts.memories import LookingBack


@part("none")
class NoMixing(Mixing):
    """x: attention alone mixes tokens."""

    def build(self, site: Site) -> nn.Module:
        return Unmixed()


@part("shift")
class Shift(Mixing):
    """x_t mu + x_{t-1} (1 - mu), a vector mu; x_{-1} = 0. Token shift: Peng et al. 2023 (RWKV), arXiv:2305.13048.

    The paper's start for keys: mu_i = (i / D)^(1 - l/L) for channel i = 0 ... D-1 of layer l = 0 ... L-1, so that early
    layers look back with most channels and late ones with few. In an encoder, too, tokens look back alone.
    """

    def build(self, site: Site) -> nn.Module:
        power = 1 - site.layer / site.n_layers
        # not torch.arange: where a model is only counted (device "meta"), that imports torch's compiler, for a second
        return TokenShift(torch.tensor([(i / site.d_model) ** power for i in range(site.d_model)]))


@part("conv")
class Convolution(Mixing):
    """x_t + act(sum_k w_k x_{t-k}), k = 0 ... width-1, with vectors w_k: a causal depthwise convolution.

    As in Canon layers (Allen-Zhu 2025, arXiv:2512.17351) and, without `residual`, act(sum_k w_k x_{t-k}) as in Primer (So
    et al. 2021, arXiv:2109.08668) and H3 (Fu et al. 2022, arXiv:2212.14052). It starts as the identity: all w_k = 0, or
    without `residual` w_0 = 1 and the others 0, which an activation then makes act(x). In an encoder, too, it looks back
    alone.
    """

    width: int = Field(4, ge=2, le=128)
    activation: Literal["none", "silu"] = "none"
    residual: bool = True

    def build(self, site: Site) -> nn.Module:
        activation = {"none": nn.Identity, "silu": nn.SiLU}[self.activation]()
        return CausalConvolution(site.d_model, self.width, activation, self.residual)


class Unmixed(nn.Module):
    def forward(self, x: Tensor, flow: Flow) -> Tensor:
        return x


class TokenShift(LookingBack):
    def __init__(self, mu: Tensor) -> None:
        super().__init__(reach=1, width=len(mu))
        self.mu = nn.Parameter(mu)

    def forward(self, x: Tensor, flow: Flow) -> Tensor:
        (previous,) = self.earlier(x, flow)
        return x * self.mu + previous * (1 - self.mu)


class CausalConvolution(LookingBack):
    def __init__(self, d_model: int, width: int, activation: nn.Module, residual: bool) -> None:
        super().__init__(width - 1, d_model)
        self.taps = nn.Parameter(torch.zeros(width, d_model))  # of each place, the own one first
        if not residual:
            nn.init.ones_(self.taps[0])
        self.activation, self.residual = activation, residual

    def forward(self, x: Tensor, flow: Flow) -> Tensor:
        y = x * self.taps[0]
        for tap, before in zip(self.taps[1:], self.earlier(x, flow), strict=True):
            y = y + tap * before
        y = self.activation(y)
        return x + y if self.residual else y

"""Mixing of neighbouring tokens before attention: what stands at `mixing=`."""

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from partwise.config import ConfigError, part
from partwise.parts.families import Flow, Mixing, Remembering, Site


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
        channels = torch.arange(site.d_model, dtype=torch.float64) / site.d_model
        return TokenShift((channels ** (1 - site.layer / site.n_layers)).float())


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


class LookingBack(Remembering):
    """A layer that sees the inputs of the `reach` places before its own, as far as its document goes."""

    def __init__(self, reach: int, width: int) -> None:
        super().__init__()
        self.reach, self.width = reach, width

    def earlier(self, x: Tensor, flow: Flow) -> list[Tensor]:
        """(B, T, D) -> x_{t-1}, ..., x_{t-reach}, each (B, T, D), zero where that is no token of the same document."""
        T, state = x.shape[1], flow.state(self)
        whole = x if state is None else state.append(x)
        whole = F.pad(whole, (0, 0, self.reach + T - whole.shape[1], 0))  # (B, reach + T, D)
        slices = [slice(self.reach - k, self.reach - k + T) for k in range(1, self.reach + 1)]
        if flow.segments is None:
            return [whole[:, places] for places in slices]
        known = flow.segments[:, max(0, flow.past - self.reach) :]
        known = F.pad(known, (self.reach + T - known.shape[1], 0))  # (B, reach + T); x is zero where this is filled up
        own = known[:, self.reach :]
        return [whole[:, places].masked_fill((known[:, places] != own).unsqueeze(-1), 0) for places in slices]

    def new_state(self, batch: int, length: int, like: Tensor) -> "Tail":
        return Tail(batch, self.reach, self.width, like)


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


class Tail:
    """The last inputs of a layer that looks back, as many as a later place may see."""

    def __init__(self, batch: int, reach: int, width: int, like: Tensor) -> None:
        self.kept = like.new_empty(batch, 0, width)
        self.reach, self.length = reach, 0

    def append(self, x: Tensor) -> Tensor:
        """(B, T, D) new inputs -> (B, up to reach + T, D) with those kept before them."""
        whole = torch.cat([self.kept.to(x.dtype), x], dim=1)
        self.length += x.shape[1]
        self.kept = whole[:, max(0, whole.shape[1] - self.reach) :].clone()  # a slice would keep the whole alive
        return whole

    def select(self, rows: Tensor) -> None:
        self.kept = self.kept[rows]

    def left(self, length: int) -> int:
        """How many of the inputs kept stand before `length`."""
        return max(0, self.kept.shape[1] - (self.length - length))

    def check(self, length: int) -> None:
        if length < self.length and self.left(length) < min(length, self.reach):
            raise ConfigError(
                f"the states cannot go back to length {length}: mixing kept its last inputs alone; start anew"
            )

    def truncate(self, length: int) -> None:
        self.check(length)
        if length < self.length:
            self.kept, self.length = self.kept[:, : self.left(length)], length

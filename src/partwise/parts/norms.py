"""Normalization layers, `norm=`."""

import math

import torch
from pydantic import Field
from torch import Tensor, nn

from partwise.config import ConfigError, part
from partwise.parts.contracts import Norm
from partwise.parts.layers import rms_norm
from partwise.parts.operations import NormSpec


@part("layernorm")
class LayerNorm(Norm):
    """(x - mean(x)) / sqrt(var(x) + eps) * weight + bias. Ba et al. 2016, arXiv:1607.06450."""

    eps: float = Field(1e-5, gt=0)
    """Epsilon, added to the variance."""
    affine: bool = True
    """Learn a weight, and a bias unless `bias=false`."""
    bias: bool = True
    """Learn a bias."""

    def build(self, width: int) -> nn.Module:
        return nn.LayerNorm(width, eps=self.eps, elementwise_affine=self.affine, bias=self.bias)


@part("rmsnorm")
class RMSNorm(Norm):
    """x / sqrt(mean(x^2) + eps) * weight (+ bias). Zhang & Sennrich 2019, arXiv:1910.07467.

    `unit_offset` multiplies by 1 + weight, with weight initialized to 0 (Gemma, arXiv:2403.08295); weight decay then pulls
    the factor to 1.
    """

    eps: float = Field(1e-6, gt=0)
    """Epsilon, added to the mean square."""
    affine: bool = True
    """Learn a weight."""
    bias: bool = False
    """Learn a bias."""
    unit_offset: bool = False
    """Multiply by 1 + weight, with the weight initialized to 0."""

    def build(self, width: int) -> nn.Module:
        if self.unit_offset and not self.affine:
            raise ConfigError("norm.unit_offset=true needs a weight: set norm.affine=true")
        if self.unit_offset:
            return UnitOffsetRMSNormLayer(width, self.eps, self.bias)
        return RMSNormLayer(width, self.eps, self.affine, self.bias)


@part("scalenorm")
class ScaleNorm(Norm):
    """weight x / max(|x|, eps), with a scalar weight initialized to sqrt(D). Nguyen & Salazar 2019, arXiv:1910.05895."""

    eps: float = Field(1e-5, gt=0)
    """The smallest length that is divided by."""

    def build(self, width: int) -> nn.Module:
        return L2NormLayer(self.eps, torch.full((), math.sqrt(width)))


@part("l2")
class L2(Norm):
    """x / max(|x|, eps) (* weight): vectors of length 1. Loshchilov et al. 2024 (nGPT), arXiv:2410.01131.

    The output is sqrt(D) times shorter than that of `rmsnorm`.
    """

    eps: float = Field(1e-5, gt=0)
    """The smallest length that is divided by."""
    affine: bool = False
    """Learn a weight."""

    def build(self, width: int) -> nn.Module:
        return L2NormLayer(self.eps, torch.ones(width) if self.affine else None)


@part("dyt")
class DynamicTanh(Norm):
    """tanh(alpha x) * weight + bias, with a learned scalar alpha and no statistics. Zhu et al. 2025, arXiv:2503.10622."""

    alpha: float = Field(0.5, gt=0)
    """The initial value of alpha."""
    affine: bool = True
    """Learn a weight, and a bias unless `bias=false`."""
    bias: bool = True
    """Learn a bias."""

    def build(self, width: int) -> nn.Module:
        return DynamicTanhLayer(width, self.alpha, self.affine, self.bias)


@part("none")
class NoNorm(Norm):
    """x: no normalization."""

    def build(self, width: int) -> nn.Module:
        return nn.Identity()


class RMSNormLayer(nn.Module):
    def __init__(self, width: int, eps: float, affine: bool, bias: bool) -> None:
        super().__init__()
        self.width, self.eps = width, eps
        self.weight = nn.Parameter(torch.ones(width)) if affine else None
        self.bias = nn.Parameter(torch.zeros(width)) if affine and bias else None

    def extra_repr(self) -> str:
        return f"{self.width}, eps={self.eps}"

    def forward(self, x: Tensor) -> Tensor:
        x = rms_norm(x, self.weight, self.eps)
        return x if self.bias is None else x + self.bias

    def spec(self) -> NormSpec:
        has_weight, has_bias = self.weight is not None, self.bias is not None
        return NormSpec(kind="rmsnorm", width=self.width, eps=self.eps, weight=has_weight, bias=has_bias)


class UnitOffsetRMSNormLayer(nn.Module):
    def __init__(self, width: int, eps: float, bias: bool) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.zeros(width))
        self.bias = nn.Parameter(torch.zeros(width)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        # 1 + weight in float32 at least: in bfloat16, the sum would lose most of a small weight
        dtype = torch.promote_types(x.dtype, torch.float32)
        y = rms_norm(x.to(dtype), 1 + self.weight.to(dtype), self.eps).to(x.dtype)
        return y if self.bias is None else y + self.bias

    def spec(self) -> NormSpec:
        return NormSpec(
            kind="rmsnorm",
            width=len(self.weight),
            eps=self.eps,
            weight=True,
            bias=self.bias is not None,
            unit_offset=True,
        )


class L2NormLayer(nn.Module):
    """x / max(|x|, eps), times a scalar weight, a vector weight or none."""

    def __init__(self, eps: float, weight: Tensor | None) -> None:
        super().__init__()
        self.eps = eps
        self.weight = None if weight is None else nn.Parameter(weight)

    def forward(self, x: Tensor) -> Tensor:
        dtype = torch.promote_types(x.dtype, torch.float32)  # a rounded length would change every element
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=dtype).clamp_min(self.eps)
        y = x / length if self.weight is None else x / length * self.weight
        return y.to(x.dtype)


class DynamicTanhLayer(nn.Module):
    def __init__(self, width: int, alpha: float, affine: bool, bias: bool) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.tensor(alpha))
        self.weight = nn.Parameter(torch.ones(width)) if affine else None
        self.bias = nn.Parameter(torch.zeros(width)) if affine and bias else None

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.alpha * x)
        x = x if self.weight is None else x * self.weight
        return x if self.bias is None else x + self.bias

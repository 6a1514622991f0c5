"""Norms: what stands at `norm=`."""

import math

import torch
from pydantic import Field
from torch import Tensor, nn

from partwise.config import ConfigError, part
from partwise.parts.families import Norm
from partwise.parts.layers import rms_norm


@part("layernorm")
class LayerNorm(Norm):
    """(x - mean(x)) / sqrt(var(x) + eps) * weight + bias. Ba et al. 2016, arXiv:1607.06450."""

    eps: float = Field(1e-5, gt=0)
    affine: bool = True
    bias: bool = True

    def build(self, width: int) -> nn.Module:
        return nn.LayerNorm(width, eps=self.eps, elementwise_affine=self.affine, bias=self.bias)


@part("rmsnorm")
class RMSNorm(Norm):
    """x / sqrt(mean(x^2) + eps) * weight (+ bias). Zhang & Sennrich 2019, arXiv:1910.07467.

    `unit_offset` multiplies by 1 + weight instead, where weight starts at 0 (Gemma, arXiv:2403.08295): a decay of weights
    then pulls the factor to one.
    """

    eps: float = Field(1e-6, gt=0)
    affine: bool = True
    bias: bool = False
    unit_offset: bool = False

    def build(self, width: int) -> nn.Module:
        if self.unit_offset and not self.affine:
            raise ConfigError("norm.unit_offset=true needs a weight to add to 1: set norm.affine=true")
        if self.unit_offset:
            return OffsetRootMeanSquare(width, self.eps, self.bias)
        return RootMeanSquare(width, self.eps, self.affine, self.bias)


@part("scalenorm")
class ScaleNorm(Norm):
    """weight x / max(|x|, eps), weight one number that starts at sqrt(D). Nguyen & Salazar 2019, arXiv:1910.05895."""

    eps: float = Field(1e-5, gt=0)

    def build(self, width: int) -> nn.Module:
        return UnitLength(self.eps, torch.full((), math.sqrt(width)))


@part("l2")
class L2(Norm):
    """x / max(|x|, eps) (* weight): every vector has length 1. Loshchilov et al. 2024 (nGPT), arXiv:2410.01131.

    That is sqrt(D) times shorter than what `rmsnorm` leaves.
    """

    eps: float = Field(1e-5, gt=0)
    affine: bool = False

    def build(self, width: int) -> nn.Module:
        return UnitLength(self.eps, torch.ones(width) if self.affine else None)


@part("dyt")
class DynamicTanh(Norm):
    """tanh(alpha x) * weight + bias, alpha one learned number: no statistics. Zhu et al. 2025, arXiv:2503.10622."""

    alpha: float = Field(0.5, gt=0)  # where it starts
    affine: bool = True
    bias: bool = True

    def build(self, width: int) -> nn.Module:
        return Squash(width, self.alpha, self.affine, self.bias)


@part("none")
class NoNorm(Norm):
    """x: no normalisation."""

    def build(self, width: int) -> nn.Module:
        return nn.Identity()


class RootMeanSquare(nn.Module):
    def __init__(self, width: int, eps: float, affine: bool, bias: bool) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(width)) if affine else None
        self.bias = nn.Parameter(torch.zeros(width)) if affine and bias else None

    def forward(self, x: Tensor) -> Tensor:
        x = rms_norm(x, self.weight, self.eps)
        return x if self.bias is None else x + self.bias


class OffsetRootMeanSquare(nn.Module):
    def __init__(self, width: int, eps: float, bias: bool) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.zeros(width))
        self.bias = nn.Parameter(torch.zeros(width)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        # 1 + weight in float32 at least: beside one, bfloat16 would lose most of a small weight
        fine = torch.promote_types(x.dtype, torch.float32)
        y = rms_norm(x.to(fine), 1 + self.weight.to(fine), self.eps).to(x.dtype)
        return y if self.bias is None else y + self.bias


class UnitLength(nn.Module):
    """x / max(|x|, eps), times one number, one number per element, or nothing."""

    def __init__(self, eps: float, weight: Tensor | None) -> None:
        super().__init__()
        self.eps = eps
        self.weight = None if weight is None else nn.Parameter(weight)

    def forward(self, x: Tensor) -> Tensor:
        fine = torch.promote_types(x.dtype, torch.float32)  # a rounded length would move every element
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=fine).clamp_min(self.eps)
        y = x / length if self.weight is None else x / length * self.weight
        return y.to(x.dtype)


class Squash(nn.Module):
    def __init__(self, width: int, alpha: float, affine: bool, bias: bool) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.tensor(alpha))
        self.weight = nn.Parameter(torch.ones(width)) if affine else None
        self.bias = nn.Parameter(torch.zeros(width)) if affine and bias else None

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.alpha * x)
        x = x if self.weight is None else x * self.weight
        return x if self.bias is None else x + self.bias

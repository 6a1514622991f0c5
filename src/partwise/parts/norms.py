"""Norms: what stands at `norm=`."""

import torch
from pydantic import Field
from torch import Tensor, nn

from partwise.config import part
from partwise.parts.families import Norm


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
    """x / sqrt(mean(x^2) + eps) * weight (+ bias). Zhang & Sennrich 2019, arXiv:1910.07467."""

    eps: float = Field(1e-6, gt=0)
    affine: bool = True
    bias: bool = False

    def build(self, width: int) -> nn.Module:
        return RootMeanSquare(width, self.eps, self.affine, self.bias)


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
        x = nn.functional.rms_norm(x, x.shape[-1:], self.weight, self.eps)
        return x if self.bias is None else x + self.bias

"""Lesson 7, does LayerNorm's mean matter? Two norms that differ in it, and in the bias."""

import torch
from torch import Tensor


def layernorm(x: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-5) -> Tensor:
    """Subtract the mean of each row, then divide by its standard deviation (with n, not n - 1)."""
    centered = x - x.mean(dim=-1, keepdim=True)  # (B, T, D)
    variance = (centered**2).mean(dim=-1, keepdim=True)  # (B, T, 1)
    return centered / torch.sqrt(variance + eps) * weight + bias


def rmsnorm(x: Tensor, weight: Tensor, eps: float = 1e-6) -> Tensor:
    """Divide each row by its root mean square: the mean stays."""
    mean_square = (x**2).mean(dim=-1, keepdim=True)  # (B, T, 1)
    return x / torch.sqrt(mean_square + eps) * weight


if __name__ == "__main__":
    torch.manual_seed(0)
    x = torch.randn(1000, 96)
    difference = layernorm(x, torch.ones(96), torch.zeros(96)) - rmsnorm(x, torch.ones(96))
    print(f"the mean of 96 random numbers is {difference.pow(2).mean().sqrt():.1%} of their root mean square")

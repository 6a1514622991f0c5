"""Lesson 4, why do units die, and what does a gate buy? Feed-forward layers and their activations."""

import math
from collections.abc import Callable

import torch
from torch import Tensor


def relu(h: Tensor) -> Tensor:
    """max(h, 0): where h is negative, the output and the gradient are both 0."""
    return h.clamp(min=0)


def gelu(h: Tensor) -> Tensor:
    """h times the probability that a normal number is below h.

    Smooth, and with a gradient below 0.
    """
    return h * (1 + torch.erf(h / math.sqrt(2))) / 2


def silu(h: Tensor) -> Tensor:
    """h times its sigmoid."""
    return h / (1 + torch.exp(-h))


def mlp(x: Tensor, w_up: Tensor, w_down: Tensor, activation: Callable[[Tensor], Tensor]) -> Tensor:
    h = activation(x @ w_up.T)  # (B, T, D) -> (B, T, F)
    return h @ w_down.T  # -> (B, T, D)


def swiglu(x: Tensor, w_gate: Tensor, w_up: Tensor, w_down: Tensor) -> Tensor:
    """One matrix computes values, another how far each is let through.

    F is 2/3 as wide, so that three matrices cost what two did.
    """
    h = silu(x @ w_gate.T) * (x @ w_up.T)  # (B, T, F)
    return h @ w_down.T


def dead_share(h: Tensor) -> float:
    """The share of units that are 0 for every token.

    No gradient reaches their weights, so they stay so.
    """
    fires = (h != 0).flatten(0, -2).any(dim=0)  # h is (B, T, F) -> (F,)
    return 1 - fires.double().mean().item()


if __name__ == "__main__":
    torch.manual_seed(0)
    x, w_up = torch.randn(8, 64, 32), torch.randn(128, 32) / 32**0.5
    bias = -5 * torch.rand(128)  # as after steps that were too large
    shares = [dead_share(activation(x @ w_up.T + bias)) for activation in (relu, gelu)]
    print(f"with biases from -5 to 0, {shares[0]:.1%} of the units of ReLU are dead, {shares[1]:.1%} of GELU")

"""The equations of MLPs and their activations, by torch's operations."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "relu2": lambda x: F.relu(x).square(),
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "sigmoid": torch.sigmoid,
    "identity": lambda x: x,
}
"""By the names of `partwise.kernels.mlp.ACTIVATIONS`."""


def mlp(
    x: Tensor, up: Tensor, up_bias: Tensor | None, down: Tensor, down_bias: Tensor | None, activation: str
) -> Tensor:
    """act(x up^T + up_bias) down^T + down_bias; gated, act(gate) * value instead of act, if `up` has 2 F rows."""
    return F.linear(hidden_units(x, up, up_bias, down.shape[1], activation), down, down_bias)


def hidden_units(x: Tensor, up: Tensor, up_bias: Tensor | None, hidden: int, activation: str) -> Tensor:
    pre, act = F.linear(x, up, up_bias), ACTIVATIONS[activation]
    return act(pre) if up.shape[0] == hidden else act(pre[..., :hidden]) * pre[..., hidden:]

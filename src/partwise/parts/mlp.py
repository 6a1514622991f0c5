"""Perceptrons and their activations, which dense feed-forwards and mixtures of experts share."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from partwise.parts.families import Flow
from partwise.parts.layers import Dropout, FusedLinear, linear

Activation = Callable[[Tensor], Tensor]


def relu2(x: Tensor) -> Tensor:
    """max(x, 0)^2."""
    return F.relu(x).square()


def swish(beta: float, trainable: bool) -> Activation:
    return F.silu if beta == 1.0 and not trainable else SwishUnit(beta, trainable)


class SwishUnit(nn.Module):
    def __init__(self, beta: float, trainable: bool) -> None:
        super().__init__()
        self.beta = nn.Parameter(torch.tensor(beta)) if trainable else beta

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(self.beta * x)


UNGATED: Mapping[str, Activation] = {"relu": F.relu, "relu2": relu2, "gelu": F.gelu, "elu": F.elu, "swish": F.silu}
GATED: Mapping[str, Activation] = {
    "glu": torch.sigmoid,
    "bilinear": lambda gate: gate,
    "reglu": F.relu,
    "geglu": F.gelu,
    "swiglu": F.silu,
}
"""The activations of the feed-forwards of these names where none of their options is set."""


class MLP(nn.Module):
    def __init__(
        self,
        d_model: int,
        hidden: int,
        activation: Activation,
        bias: bool = False,
        hidden_dropout: float = 0.0,
        output_dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.up = linear(d_model, hidden, bias, "hidden")
        self.activation = activation
        self.hidden_dropout = Dropout(hidden_dropout)
        self.down = linear(hidden, d_model, bias, "output")
        self.output_dropout = Dropout(output_dropout)

    def forward(self, x: Tensor, flow: Flow | None = None) -> Tensor:
        hidden = self.hidden_dropout(self.activation(self.up(x)))  # (B, T, F)
        return self.output_dropout(self.down(hidden))


class GatedMLP(nn.Module):
    def __init__(
        self,
        d_model: int,
        hidden: int,
        activation: Activation,
        bias: bool = False,
        hidden_dropout: float = 0.0,
        output_dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.gate_up = FusedLinear(d_model, {"gate": hidden, "up": hidden}, bias)
        self.gate_up.join(self, "gate_up")
        self.activation = activation
        self.hidden_dropout = Dropout(hidden_dropout)
        self.down = linear(hidden, d_model, bias, "output")
        self.output_dropout = Dropout(output_dropout)

    def forward(self, x: Tensor, flow: Flow | None = None) -> Tensor:
        gate, up = self.gate_up(x)  # (B, T, F) each
        return self.output_dropout(self.down(self.hidden_dropout(self.activation(gate) * up)))

"""Perceptrons and their activations, which dense feed-forwards and mixtures of experts share."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from partwise.kernels.halves import half_mlp, serves_mlp
from partwise.kernels.mlp import mlp, serves
from partwise.parts.families import Flow
from partwise.parts.layers import Dropout, FusedLinear, linear

Activation = Callable[[Tensor], Tensor]
Kernel = Callable[..., Tensor]


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


class Perceptron(nn.Module):
    """down(dropout(hidden units)), by torch or, where it fits, by one compiled pass over the rows."""

    def __init__(
        self,
        d_model: int,
        hidden: int,
        activation: Activation,
        kernel: str | None = None,  # what the compiled pass calls this activation
        bias: bool = False,
        hidden_dropout: float = 0.0,
        output_dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.widen(d_model, hidden, bias)
        self.activation, self.kernel = activation, kernel
        self.hidden_dropout = Dropout(hidden_dropout)
        self.down = linear(hidden, d_model, bias, "output")
        self.output_dropout = Dropout(output_dropout)
        self.path = "torch"

    def widen(self, d_model: int, hidden: int, bias: bool) -> None:
        """Make the maps of x from which the hidden units follow."""
        raise NotImplementedError

    def matrix(self) -> nn.Linear | FusedLinear:
        """All that x is multiplied by."""
        raise NotImplementedError

    def hidden(self, x: Tensor) -> Tensor:
        """(..., D) -> (..., F)."""
        raise NotImplementedError

    def forward(self, x: Tensor, flow: Flow | None = None) -> Tensor:
        kernel = self.kernel_for(x)
        y = self.in_one_pass(x, kernel) if kernel else self.down(self.hidden_dropout(self.hidden(x)))
        return self.output_dropout(y)

    def kernel_for(self, x: Tensor) -> Kernel | None:
        if not self.has_kernel():
            return None
        matrices = self.matrix().weight, self.down.weight
        return mlp if serves(x, *matrices) else half_mlp if serves_mlp(x, *matrices) else None

    def has_kernel(self) -> bool:
        """Whether there is a compiled pass for what this layer does, whatever its widths."""
        dropped = self.training and self.hidden_dropout.p > 0
        return self.path == "kernel" and self.kernel is not None and not dropped

    def in_one_pass(self, x: Tensor, kernel: Kernel) -> Tensor:
        up = self.matrix()
        return kernel(x, up.weight, up.bias, self.down.weight, self.down.bias, self.kernel)


class MLP(Perceptron):
    def widen(self, d_model: int, hidden: int, bias: bool) -> None:
        self.up = linear(d_model, hidden, bias, "hidden")

    def matrix(self) -> nn.Linear:
        return self.up

    def hidden(self, x: Tensor) -> Tensor:
        return self.activation(self.up(x))


class GatedMLP(Perceptron):
    def widen(self, d_model: int, hidden: int, bias: bool) -> None:
        self.gate_up = FusedLinear(d_model, {"gate": hidden, "up": hidden}, bias)
        self.gate_up.join(self, "gate_up")

    def matrix(self) -> FusedLinear:
        return self.gate_up

    def hidden(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up(x)  # (B, T, F) each
        return self.activation(gate) * up

"""MLPs and their activations, shared by dense feed-forward layers and mixtures of experts."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from partwise.config import ConfigError
from partwise.parts.contracts import ForwardContext
from partwise.parts.dropout import Dropout
from partwise.parts.layers import FusedLinear, linear
from partwise.parts.operations import MLPSpec, Operation

OTHER = "other"
"""The name of an activation that no kernel computes."""


@dataclass(frozen=True)
class Activation:
    """An elementwise function and its name. A name of `partwise.kernels.mlp.ACTIVATIONS` lets kernels compute it."""

    name: str
    function: Callable[[Tensor], Tensor]


def relu2(x: Tensor) -> Tensor:
    """max(x, 0)^2."""
    return F.relu(x).square()


def gelu(approximate: Literal["none", "tanh"] = "none") -> Activation:
    name = "gelu" if approximate == "none" else "gelu_tanh"
    return Activation(name, partial(F.gelu, approximate=approximate))


def swish(beta: float = 1.0, trainable: bool = False) -> Activation:
    if beta == 1.0 and not trainable:
        return Activation("silu", F.silu)
    return Activation(OTHER, SwishUnit(beta, trainable))


class SwishUnit(nn.Module):
    def __init__(self, beta: float, trainable: bool) -> None:
        super().__init__()
        self.beta = nn.Parameter(torch.tensor(beta)) if trainable else beta

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(self.beta * x)


def identity(x: Tensor) -> Tensor:
    return x


class MLPBase(Operation):
    """output_dropout(down(hidden_dropout(hidden units)))."""

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
        if not isinstance(activation, Activation):
            raise ConfigError(f"activation {activation!r} has no name: give Activation(name, function)")
        self.build_input_projection(d_model, hidden, bias)
        self.activation, self.activation_name = activation.function, activation.name
        self.hidden_dropout = Dropout(hidden_dropout)
        self.down = linear(hidden, d_model, bias, "output")
        self.output_dropout = Dropout(output_dropout)

    def build_input_projection(self, d_model: int, hidden: int, bias: bool) -> None:
        raise NotImplementedError

    def input_projection(self) -> nn.Linear | FusedLinear:
        """All matrices that multiply x."""
        raise NotImplementedError

    def hidden(self, x: Tensor) -> Tensor:
        """(..., D) -> (..., F)."""
        raise NotImplementedError

    def forward(self, x: Tensor, ctx: ForwardContext | None = None) -> Tensor:
        return self.output_dropout((self.backend_for(x) or self.eager)(x))

    def eager(self, x: Tensor) -> Tensor:
        return self.down(self.hidden_dropout(self.hidden(x)))

    def mlp_spec(self, gated: bool) -> MLPSpec:
        return MLPSpec(
            d_model=self.down.out_features,
            hidden=self.down.in_features,
            gated=gated,
            activation=self.activation_name,
            bias=self.down.bias is not None,
            hidden_dropout=self.hidden_dropout.p,
            output_dropout=self.output_dropout.p,
        )


class MLP(MLPBase):
    def build_input_projection(self, d_model: int, hidden: int, bias: bool) -> None:
        self.up = linear(d_model, hidden, bias, "hidden")
        self.up.activated = True  # type: ignore[assignment]

    def input_projection(self) -> nn.Linear:
        return self.up

    def hidden(self, x: Tensor) -> Tensor:
        return self.activation(self.up(x))

    def spec(self) -> MLPSpec:
        return self.mlp_spec(gated=False)


class GatedMLP(MLPBase):
    def build_input_projection(self, d_model: int, hidden: int, bias: bool) -> None:
        self.gate_up = FusedLinear(d_model, {"gate": hidden, "up": hidden}, bias, activated="gate")
        self.gate_up.register_load_hook(self, "gate_up")

    def input_projection(self) -> FusedLinear:
        return self.gate_up

    def hidden(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up(x)  # (B, T, F) each
        return self.activation(gate) * up

    def spec(self) -> MLPSpec:
        return self.mlp_spec(gated=True)

"""MLPs and their activations, shared by dense feed-forward layers and mixtures of experts."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from partwise.kernels.bf16 import bf16_mlp, supports_bf16_mlp
from partwise.kernels.mlp import mlp, supports_mlp
from partwise.parts.contracts import ForwardContext
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
"""The activations of the feed-forward layers of these names, with default options."""


class MLPBase(nn.Module):
    """down(dropout(hidden units)), by torch or, if supported, by one C++ kernel."""

    def __init__(
        self,
        d_model: int,
        hidden: int,
        activation: Activation,
        kernel_activation: str | None = None,  # the activation's name in the C++ kernels
        bias: bool = False,
        hidden_dropout: float = 0.0,
        output_dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.build_input_projection(d_model, hidden, bias)
        self.activation, self.kernel_activation = activation, kernel_activation
        self.hidden_dropout = Dropout(hidden_dropout)
        self.down = linear(hidden, d_model, bias, "output")
        self.output_dropout = Dropout(output_dropout)
        self.backend = "eager"

    def build_input_projection(self, d_model: int, hidden: int, bias: bool) -> None:
        raise NotImplementedError

    def input_projection(self) -> nn.Linear | FusedLinear:
        """All matrices that multiply x."""
        raise NotImplementedError

    def hidden(self, x: Tensor) -> Tensor:
        """(..., D) -> (..., F)."""
        raise NotImplementedError

    def forward(self, x: Tensor, ctx: ForwardContext | None = None) -> Tensor:
        kernel = self.select_kernel(x)
        y = self.run_kernel(x, kernel) if kernel else self.down(self.hidden_dropout(self.hidden(x)))
        return self.output_dropout(y)

    def select_kernel(self, x: Tensor) -> Kernel | None:
        if not self.can_use_kernel():
            return None
        weights = self.input_projection().weight, self.down.weight
        return mlp if supports_mlp(x, *weights) else bf16_mlp if supports_bf16_mlp(x, *weights) else None

    def can_use_kernel(self) -> bool:
        """Whether backend, activation and dropout allow the C++ kernel; shapes are checked separately."""
        has_dropout = self.training and self.hidden_dropout.p > 0
        return self.backend == "cpp" and self.kernel_activation is not None and not has_dropout

    def run_kernel(self, x: Tensor, kernel: Kernel) -> Tensor:
        up = self.input_projection()
        return kernel(x, up.weight, up.bias, self.down.weight, self.down.bias, self.kernel_activation)


class MLP(MLPBase):
    def build_input_projection(self, d_model: int, hidden: int, bias: bool) -> None:
        self.up = linear(d_model, hidden, bias, "hidden")

    def input_projection(self) -> nn.Linear:
        return self.up

    def hidden(self, x: Tensor) -> Tensor:
        return self.activation(self.up(x))


class GatedMLP(MLPBase):
    def build_input_projection(self, d_model: int, hidden: int, bias: bool) -> None:
        self.gate_up = FusedLinear(d_model, {"gate": hidden, "up": hidden}, bias)
        self.gate_up.register_load_hook(self, "gate_up")

    def input_projection(self) -> FusedLinear:
        return self.gate_up

    def hidden(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up(x)  # (B, T, F) each
        return self.activation(gate) * up

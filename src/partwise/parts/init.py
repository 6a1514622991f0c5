"""Initial values: what stands at `init=`. A recipe sees a tensor's role, never the layer's kind."""

import math

from pydantic import Field
from torch import Generator, Tensor

from partwise.config import part
from partwise.parts.families import Init, Role


@part("torch")
class TorchDefault(Init):
    """PyTorch's own: matrices and biases uniform in +-1/sqrt(fan_in), tables normal with deviation 1."""

    def draw(self, tensor: Tensor, role: Role, fan_in: int, n_layers: int, generator: Generator) -> None:
        draw_like_torch(tensor, role, fan_in, generator)


@part("scaled")
class ScaledTorch(Init):
    """PyTorch's own, with the matrices that end a residual branch divided by sqrt(2 n_layers). Radford et al. 2019."""

    def draw(self, tensor: Tensor, role: Role, fan_in: int, n_layers: int, generator: Generator) -> None:
        draw_like_torch(tensor, role, fan_in, generator)
        calm_residual(tensor, role, n_layers)


@part("normal")
class Normal(Init):
    """Matrices and tables normal with deviation std, biases zero."""

    std: float = Field(0.02, gt=0)

    def draw(self, tensor: Tensor, role: Role, fan_in: int, n_layers: int, generator: Generator) -> None:
        draw_normal(tensor, role, self.std, generator)


@part("gpt2")
class GPT2(Init):
    """Normal (0.02), the matrices that end a residual branch divided by sqrt(2 n_layers). Radford et al. 2019."""

    std: float = Field(0.02, gt=0)

    def draw(self, tensor: Tensor, role: Role, fan_in: int, n_layers: int, generator: Generator) -> None:
        draw_normal(tensor, role, self.std, generator)
        calm_residual(tensor, role, n_layers)


def draw_like_torch(tensor: Tensor, role: Role, fan_in: int, generator: Generator) -> None:
    if role == "table":
        tensor.normal_(0, 1, generator=generator)
    else:
        bound = 1 / math.sqrt(fan_in)
        tensor.uniform_(-bound, bound, generator=generator)


def draw_normal(tensor: Tensor, role: Role, std: float, generator: Generator) -> None:
    if role == "bias":
        tensor.zero_()
    else:
        tensor.normal_(0, std, generator=generator)


def calm_residual(tensor: Tensor, role: Role, n_layers: int) -> None:
    if role == "output":
        tensor.div_(math.sqrt(2 * n_layers))

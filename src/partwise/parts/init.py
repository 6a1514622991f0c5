"""Initial values: what stands at `init=`. A recipe sees a tensor's role, never the layer's kind."""

import math

from pydantic import Field
from torch import Generator, Tensor

from partwise.config import part
from partwise.parts.families import Init, TensorSpec


@part("torch")
class TorchDefault(Init):
    """PyTorch's own: matrices and biases uniform in +-1/sqrt(fan_in), tables normal with deviation 1."""

    def draw(self, values: Tensor, spec: TensorSpec, generator: Generator) -> None:
        draw_like_torch(values, spec, generator)


@part("scaled")
class ScaledTorch(Init):
    """PyTorch's own, with the matrices that end a residual branch divided by sqrt(2 n_layers). Radford et al. 2019."""

    def draw(self, values: Tensor, spec: TensorSpec, generator: Generator) -> None:
        draw_like_torch(values, spec, generator)
        calm_residual(values, spec)


@part("normal")
class Normal(Init):
    """Matrices and tables normal with deviation std, biases zero."""

    std: float = Field(0.02, gt=0)

    def draw(self, values: Tensor, spec: TensorSpec, generator: Generator) -> None:
        draw_normal(values, spec, self.std, generator)


@part("xavier")
class Xavier(Init):
    """Matrices and tables uniform in +-sqrt(6 / (fan_in + fan_out)), biases zero. Glorot & Bengio 2010.

    A table counts as the map from one-of-V to D, as in implementations of Vaswani et al. 2017 that draw every matrix so.
    """

    def draw(self, values: Tensor, spec: TensorSpec, generator: Generator) -> None:
        if spec.role == "bias":
            values.zero_()
            return
        fans = sum(values.shape[-2:]) if spec.role == "table" else spec.fan_in + spec.fan_out
        bound = math.sqrt(6 / fans)
        values.uniform_(-bound, bound, generator=generator)


@part("gpt2")
class GPT2(Init):
    """Normal (0.02), the matrices that end a residual branch divided by sqrt(2 n_layers). Radford et al. 2019."""

    std: float = Field(0.02, gt=0)

    def draw(self, values: Tensor, spec: TensorSpec, generator: Generator) -> None:
        draw_normal(values, spec, self.std, generator)
        calm_residual(values, spec)


def draw_like_torch(values: Tensor, spec: TensorSpec, generator: Generator) -> None:
    if spec.role == "table":
        values.normal_(0, 1, generator=generator)
    else:
        bound = 1 / math.sqrt(spec.fan_in)
        values.uniform_(-bound, bound, generator=generator)


def draw_normal(values: Tensor, spec: TensorSpec, std: float, generator: Generator) -> None:
    if spec.role == "bias":
        values.zero_()
    else:
        values.normal_(0, std, generator=generator)


def calm_residual(values: Tensor, spec: TensorSpec) -> None:
    if spec.role == "output":
        values.div_(math.sqrt(2 * spec.layers[0]))

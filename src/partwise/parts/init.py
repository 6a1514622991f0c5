"""Initial values: what stands at `init=`. A recipe sees a tensor's role, never the layer's kind."""

import math
from typing import ClassVar

from pydantic import Field
from torch import Generator, Tensor, nn

from partwise.config import part
from partwise.parts.families import Init
from partwise.parts.roles import TensorSpec


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


@part("orthogonal")
class Orthogonal(Init):
    """Matrices with orthonormal rows or columns times `gain`, tables normal with deviation std, biases zero.

    Saxe et al. 2013, arXiv:1312.6120. A stack of matrices is drawn one by one.
    """

    gain: float = Field(1.0, gt=0)
    std: float = Field(0.02, gt=0)

    def draw(self, values: Tensor, spec: TensorSpec, generator: Generator) -> None:
        if spec.role in ("table", "bias"):
            draw_normal(values, spec, self.std, generator)
            return
        for matrix in values.view(-1, *values.shape[-2:]):
            nn.init.orthogonal_(matrix, self.gain, generator)


@part("mup")
class MuP(Init):
    """Widths m = D / base_width apart share their best learning rate; Yang et al. 2022, arXiv:2203.03466, table 3 (Adam).

    Matrices are normal with deviation std / sqrt(m) and learn at lr / m, the head with std / m at lr / m; tables keep std
    and lr, biases start at zero and keep lr. Scores are q k^T sqrt(E_base) / E, where heads of width E had `base_head_dim`
    at base_width; without it their number is taken to stay, E_base = E / m. At m = 1 this is init=normal.
    """

    scales_tables_apart: ClassVar[bool] = True
    for_adaptive_optimizers: ClassVar[bool] = True

    base_width: int = Field(64, gt=0, le=2**20)
    base_head_dim: int | None = Field(None, gt=0, le=2**16)
    std: float = Field(0.02, gt=0)

    def draw(self, values: Tensor, spec: TensorSpec, generator: Generator) -> None:
        times = spec.d_model / self.base_width
        scale = {"table": 1.0, "head": times}.get(spec.role, math.sqrt(times))
        draw_normal(values, spec, self.std / scale, generator)

    def lr_factor(self, spec: TensorSpec) -> float:
        return 1.0 if spec.role in ("table", "bias", "vector") else self.base_width / spec.d_model

    def score_scale(self, head_width: int, d_model: int) -> float | None:
        base = self.base_head_dim or head_width * self.base_width / d_model
        return math.sqrt(base) / head_width


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

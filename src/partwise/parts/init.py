"""Weight initialization, `init=`, by the role of a tensor and not the type of its layer."""

import math
from typing import ClassVar

from pydantic import Field
from torch import Generator, Tensor, nn

from partwise.config import part
from partwise.parts.contracts import Init
from partwise.parts.roles import TensorSpec


@part("torch")
class TorchDefault(Init):
    """PyTorch's default: matrices and biases uniform in +-1/sqrt(fan_in), embeddings normal with std 1."""

    def draw(self, values: Tensor, spec: TensorSpec, generator: Generator) -> None:
        draw_like_torch(values, spec, generator)


@part("torch_scaled")
class ScaledTorch(Init):
    """PyTorch's default, with the output matrix of each residual branch divided by sqrt(2 n_layers). Radford et al. 2019."""

    def draw(self, values: Tensor, spec: TensorSpec, generator: Generator) -> None:
        draw_like_torch(values, spec, generator)
        scale_residual_output(values, spec)


@part("normal")
class Normal(Init):
    """Matrices and embeddings normal with the given std, biases zero."""

    std: float = Field(0.02, gt=0)
    """Standard deviation of matrices and embeddings."""

    def draw(self, values: Tensor, spec: TensorSpec, generator: Generator) -> None:
        draw_normal(values, spec, self.std, generator)


@part("xavier")
class Xavier(Init):
    """Matrices and tables uniform in +-sqrt(6 / (fan_in + fan_out)), biases zero. Glorot & Bengio 2010.

    An embedding table is treated as a linear layer on one-hot vectors (fan_in V, fan_out D), as in implementations of
    Vaswani et al. 2017 that initialize every matrix this way.
    """

    def draw(self, values: Tensor, spec: TensorSpec, generator: Generator) -> None:
        if spec.role == "bias":
            values.zero_()
            return
        fans = sum(values.shape[-2:]) if spec.role == "table" else spec.fan_in + spec.fan_out
        bound = math.sqrt(6 / fans)
        values.uniform_(-bound, bound, generator=generator)


@part("gpt2")
class GPT2Init(Init):
    """Normal (0.02), the output matrix of each residual branch divided by sqrt(2 n_layers). Radford et al. 2019."""

    std: float = Field(0.02, gt=0)
    """Standard deviation of matrices and embeddings, before output matrices are divided."""

    def draw(self, values: Tensor, spec: TensorSpec, generator: Generator) -> None:
        draw_normal(values, spec, self.std, generator)
        scale_residual_output(values, spec)


@part("orthogonal")
class Orthogonal(Init):
    """Matrices with orthonormal rows or columns times `gain`, embeddings normal with the given std, biases zero.

    Saxe et al. 2013, arXiv:1312.6120. Stacked matrices are sampled one by one.
    """

    gain: float = Field(1.0, gt=0)
    """The length of the rows or columns."""
    std: float = Field(0.02, gt=0)
    """Standard deviation of embeddings."""

    def draw(self, values: Tensor, spec: TensorSpec, generator: Generator) -> None:
        if spec.role in ("table", "bias"):
            draw_normal(values, spec, self.std, generator)
            return
        for matrix in values.view(-1, *values.shape[-2:]):
            nn.init.orthogonal_(matrix, self.gain, generator)


@part("dead_units")
class DeadUnits(Init):
    """As `normal`, with a `share` of the hidden units dead under ReLU: their biases are -`depth` std sqrt(fan_in).

    Such a unit's input is about `depth` of its standard deviations below zero, so ReLU is zero for every token and the
    unit gets no gradient. The units are the first of each layer. Lu et al. 2019, arXiv:1903.06733. Needs ffn.bias=true.
    """

    needs_activated_bias: ClassVar[bool] = True

    share: float = Field(0.5, ge=0, le=1)
    """The share of hidden units that start dead."""
    depth: float = Field(10.0, ge=0, le=1000)
    """How far below zero their biases are, in standard deviations of their inputs."""
    std: float = Field(0.02, gt=0)
    """Standard deviation of matrices and embeddings."""

    def draw(self, values: Tensor, spec: TensorSpec, generator: Generator) -> None:
        draw_normal(values, spec, self.std, generator)
        if spec.activated:
            values[: round(self.share * len(values))] = -self.depth * self.std * math.sqrt(spec.fan_in)


@part("mup")
class MuP(Init):
    """muP: the best learning rate transfers across widths, m = D / base_width. Yang et al. 2022, arXiv:2203.03466, table 3
    (Adam).

    Matrices are normal with std / sqrt(m) and learning rate lr / m, the head with std / m and lr / m; embeddings keep std
    and lr, biases start at zero and keep lr. Scores are q k^T sqrt(E_base) / E with head dimension E, E_base =
    `base_head_dim` at base_width (default: a constant number of heads, E_base = E / m). At m = 1 this is init=normal.
    """

    scales_head_separately: ClassVar[bool] = True
    adaptive_optimizers_only: ClassVar[bool] = True

    base_width: int = Field(64, gt=0, le=2**20)
    """The d_model at which this equals init=normal."""
    base_head_dim: int | None = Field(None, gt=0, le=2**16)
    """The head width at `base_width`. Default: that of a constant number of heads."""
    std: float = Field(0.02, gt=0)
    """Standard deviation of embeddings, and of matrices at `base_width`."""

    def draw(self, values: Tensor, spec: TensorSpec, generator: Generator) -> None:
        width_ratio = spec.d_model / self.base_width
        scale = {"table": 1.0, "head": width_ratio}.get(spec.role, math.sqrt(width_ratio))
        draw_normal(values, spec, self.std / scale, generator)

    def lr_factor(self, spec: TensorSpec) -> float:
        return 1.0 if spec.role in ("table", "bias", "vector") else self.base_width / spec.d_model

    def score_scale(self, head_dim: int, d_model: int) -> float | None:
        base_head_dim = self.base_head_dim or head_dim * self.base_width / d_model
        return math.sqrt(base_head_dim) / head_dim


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


def scale_residual_output(values: Tensor, spec: TensorSpec) -> None:
    if spec.role == "output":
        values.div_(math.sqrt(2 * spec.layers[0]))

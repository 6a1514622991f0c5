"""Optimizers, `optimizer=`. The training loop sets each parameter group's lr to lr(step) * group["lr_factor"]."""

from collections.abc import Callable
from typing import Any, ClassVar, Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from partwise.config import ConfigError, Part, part
from partwise.model.parameters import LogicalTensor, tensors_by_parameter
from partwise.train import optimizer_steps

MATRIX_ROLES = frozenset({"score", "hidden", "output"})
"""Roles of the matrices within residual branches, which Muon orthogonalizes."""


class Optimizer(Part):
    """An optimizer, `optimizer=`."""

    family: ClassVar[str] = "optimizer"
    adaptive: ClassVar[bool] = False  # whether updates are invariant to the scale of the gradient
    supports_multi_seed: ClassVar[bool] = (
        False  # whether updating parameters stacked over seeds equals updating each of them
    )

    def build(self, model: nn.Module, lr: float) -> torch.optim.Optimizer:
        """An optimizer of all parameters that are not frozen; `lr_factor` of a group defaults to 1."""
        raise NotImplementedError

    def flops(self, model: nn.Module) -> int:
        """FLOPs of the matmuls of one update of the parameters that are not frozen; the model may be on the meta device."""
        return 0


@part("adamw")
class AdamW(Optimizer):
    """w -= lr (m / (sqrt(v) + eps) + decay w), m and v the means of g and g^2. Loshchilov & Hutter 2017, arXiv:1711.05101.

    Adam with decoupled weight decay. m and v are running means with the factors beta1 and beta2, corrected for their start
    at 0.
    """

    adaptive: ClassVar[bool] = True
    supports_multi_seed: ClassVar[bool] = True

    beta1: float = Field(0.9, ge=0, lt=1)
    """The decay of the mean of past gradients."""
    beta2: float = Field(0.999, ge=0, lt=1)
    """The decay of the mean of past squared gradients."""
    eps: float = Field(1e-8, gt=0)
    """Epsilon, added to the root of the mean squared gradient."""
    weight_decay: float = Field(0.01, ge=0)
    """The fraction of a weight, times the learning rate, that a step takes away."""
    decay_vectors: bool = True
    """Decay biases and norms, too, as torch.optim.AdamW(model.parameters()) does."""

    def build(self, model: nn.Module, lr: float) -> torch.optim.Optimizer:
        shared = {"betas": (self.beta1, self.beta2), "eps": self.eps, "fused": supports_fused(model)}

        def options(parameter: nn.Parameter, tensors: list[LogicalTensor]) -> dict[str, Any]:
            return {
                **shared,
                "weight_decay": parameter_weight_decay(parameter, tensors, self.weight_decay, self.decay_vectors),
            }

        return optimizer_steps.AdamWOptimizer(parameter_groups(model, lr, options), lr)


@part("muon")
class Muon(Optimizer):
    """w -= lr (scale NS(g + momentum m) + decay w), NS approximately U V^T of the singular value decomposition U S V^T.

    Jordan et al. 2024, kellerjordan.github.io/posts/muon. Applied to each matrix within residual branches separately, also
    in fused projections and stacked weights; embeddings, the head, biases and vectors use AdamW. `scale` adjusts for the
    shape: `rms` is 0.2 sqrt(max(rows, columns)), the RMS of an AdamW update, so that AdamW's learning rates apply (Liu et
    al. 2025, arXiv:2502.16982); `original` is sqrt(max(1, rows / columns)), with lr about 0.02.
    """

    supports_multi_seed: ClassVar[bool] = True

    momentum: float = Field(0.95, ge=0, lt=1)
    """The decay of the sum of past gradients."""
    nesterov: bool = True
    """Look one step ahead: use g + momentum m in place of m."""
    ns_steps: int = Field(5, ge=1, le=50)
    """Newton-Schulz iterations, which orthogonalize a matrix approximately."""
    scale: Literal["rms", "original"] = "rms"
    """The factor of an update: the RMS of AdamW's, or that of the original code."""
    adamw_lr_ratio: float = Field(1.0, gt=0)
    """The learning rate of AdamW relative to `train.lr`."""
    beta1: float = Field(0.9, ge=0, lt=1)
    """AdamW's decay of the mean of past gradients."""
    beta2: float = Field(0.999, ge=0, lt=1)
    """AdamW's decay of the mean of past squared gradients."""
    eps: float = Field(1e-8, gt=0)
    """AdamW's epsilon."""
    weight_decay: float = Field(0.01, ge=0)
    """The fraction of a weight, times the learning rate, that a step takes away."""
    decay_vectors: bool = True
    """Decay biases and norms, too."""

    def build(self, model: nn.Module, lr: float) -> torch.optim.Optimizer:
        muon = {
            "kind": "muon",
            "momentum": self.momentum,
            "nesterov": self.nesterov,
            "ns_steps": self.ns_steps,
            "scale": self.scale,
        }
        adam = {
            "kind": "adamw",
            "lr_factor": self.adamw_lr_ratio,
            "betas": (self.beta1, self.beta2),
            "eps": self.eps,
            "fused": supports_fused(model),
        }

        def options(parameter: nn.Parameter, tensors: list[LogicalTensor]) -> dict[str, Any]:
            shared = {"weight_decay": parameter_weight_decay(parameter, tensors, self.weight_decay, self.decay_vectors)}
            return {**(muon if is_orthogonalized(parameter, tensors) else adam), **shared}

        slices: dict[Tensor, list[optimizer_steps.ParameterSlice]] = {
            parameter: [optimizer_steps.slice_of(tensor, parameter) for tensor in stored_tensors(parameter, tensors)]
            for parameter, tensors in tensors_by_parameter(model).items()
        }
        return optimizer_steps.MuonOptimizer(parameter_groups(model, lr, options), lr, slices)

    def flops(self, model: nn.Module) -> int:
        """For each m x n matrix, m <= n, `ns_steps` iterations of X X^T, its square, and a polynomial of it times X:
        4 m^2 n + 2 m^3 each."""
        total = 0
        for parameter, tensors in tensors_by_parameter(model).items():
            if parameter.requires_grad and is_orthogonalized(parameter, tensors):
                for tensor in stored_tensors(parameter, tensors):
                    m, n = sorted(tensor.shape[-2:])
                    total += tensor.numel() // (m * n) * self.ns_steps * (4 * m * m * n + 2 * m**3)
        return total


def stored_tensors(parameter: nn.Parameter, tensors: list[LogicalTensor]) -> list[Tensor]:
    """The tensors that a parameter stores; itself if the model does not say."""
    return [tensor.data for tensor in tensors] or [parameter]


def is_orthogonalized(parameter: nn.Parameter, tensors: list[LogicalTensor]) -> bool:
    """Whether Muon orthogonalizes a parameter, which stores these tensors."""
    return parameter.ndim >= 2 and all(tensor.role in MATRIX_ROLES for tensor in tensors)


@part("lion")
class Lion(Optimizer):
    """w -= lr (sign(b1 m + (1 - b1) g) + decay w), then m = b2 m + (1 - b2) g. Chen et al. 2023, arXiv:2302.06675.

    Every weight changes by lr: use a third to a tenth of AdamW's lr, and three to ten times its weight decay.
    """

    adaptive: ClassVar[bool] = True
    supports_multi_seed: ClassVar[bool] = True

    beta1: float = Field(0.9, ge=0, lt=1)
    """The weight of past gradients in the update."""
    beta2: float = Field(0.99, ge=0, lt=1)
    """The decay of the mean of past gradients."""
    weight_decay: float = Field(0.1, ge=0)
    """The fraction of a weight, times the learning rate, that a step takes away."""
    decay_vectors: bool = True
    """Decay biases and norms, too."""

    def build(self, model: nn.Module, lr: float) -> torch.optim.Optimizer:
        groups = parameter_groups(model, lr, weight_decay_options(self.weight_decay, self.decay_vectors))
        return optimizer_steps.LionOptimizer(groups, lr, self.beta1, self.beta2)


@part("sgd")
class SGD(Optimizer):
    """m = momentum m + g + decay w, w -= lr m; with `nesterov` w -= lr (g + decay w + momentum m). Sutskever et al. 2013.

    Weight decay is added to the gradient, as in torch.optim.SGD. Typical values of lr are 100 times those of Adam.
    """

    supports_multi_seed: ClassVar[bool] = True

    momentum: float = Field(0.9, ge=0, lt=1)
    """The decay of the sum of past gradients."""
    nesterov: bool = False
    """Look one step ahead: use g + momentum m in place of m."""
    weight_decay: float = Field(0.0, ge=0)
    """The factor of a weight that is added to its gradient."""
    decay_vectors: bool = True
    """Decay biases and norms, too."""

    @model_validator(mode="after")
    def _check_nesterov(self) -> Self:
        if self.nesterov and not self.momentum:
            raise ConfigError(
                "optimizer.nesterov=true needs optimizer.momentum above 0: set it to 0.9, or nesterov=false"
            )
        return self

    def build(self, model: nn.Module, lr: float) -> torch.optim.Optimizer:
        groups = parameter_groups(model, lr, weight_decay_options(self.weight_decay, self.decay_vectors))
        # not fused: torch 2.13's fused kernel fails if only some parameters had a gradient in earlier steps
        return torch.optim.SGD(groups, lr=lr, momentum=self.momentum, nesterov=self.nesterov)


def weight_decay_options(
    weight_decay: float, decay_vectors: bool
) -> Callable[[nn.Parameter, list[LogicalTensor]], dict[str, Any]]:
    return lambda parameter, tensors: {
        "weight_decay": parameter_weight_decay(parameter, tensors, weight_decay, decay_vectors)
    }


def parameter_weight_decay(
    parameter: nn.Parameter, tensors: list[LogicalTensor], weight_decay: float, decay_vectors: bool
) -> float:
    """The weight decay of a parameter, by role where the model defines roles.

    Shapes would not do: two-dimensional weights of hyper-connections are not matrices.
    """
    vectors = all(tensor.role in ("bias", "vector") for tensor in tensors) if tensors else parameter.ndim < 2
    return weight_decay if decay_vectors or not vectors else 0.0


def supports_fused(model: nn.Module) -> bool:
    """Whether torch has a fused optimizer kernel for the device of every parameter."""
    return all(parameter.device.type in ("cpu", "cuda") for parameter in model.parameters())


def parameter_groups(
    model: nn.Module, lr: float, options: Callable[[nn.Parameter, list[LogicalTensor]], dict[str, Any]]
) -> list[dict[str, Any]]:
    """One parameter group per distinct set of options; their `lr_factor` multiplies that of the parametrization.

    Frozen parameters are in no group.
    """
    groups: dict[tuple[Any, ...], dict[str, Any]] = {}
    for parameter, tensors in tensors_by_parameter(model).items():
        if not parameter.requires_grad:
            continue
        group_options = {"lr_factor": 1.0, **options(parameter, tensors)}
        lr_factors = {tensor.lr_factor for tensor in tensors} or {1.0}
        assert len(lr_factors) == 1, f"{tensors[0].name} and the tensors fused with it have different learning rates"
        group_options["lr_factor"] *= lr_factors.pop()
        group = {"params": [], "lr": lr * group_options["lr_factor"], **group_options}
        groups.setdefault(tuple(sorted(group_options.items())), group)["params"].append(parameter)
    return list(groups.values())

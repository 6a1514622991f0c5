"""Optimizers: what stands at `optimizer=`. The loop gives every parameter group the rate lr(step) * group["factor"]."""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from partwise.config import ConfigError, Part, part
from partwise.tensors import LogicalTensor
from partwise.train import updates

MATRICES = frozenset({"score", "hidden", "output"})
"""Roles of the matrices inside a branch: what Muon orthogonalises."""


class Optimizer(Part):
    """What may stand at `optimizer=`."""

    family: ClassVar[str] = "optimizer"
    adaptive: ClassVar[bool] = False  # whether the size of an update does not depend on the size of the gradient
    stacks: ClassVar[bool] = (
        False  # whether it updates stacks of parameters, one of each seed, as it would each of them
    )

    def build(self, model: nn.Module, lr: float) -> torch.optim.Optimizer:
        """An optimizer of every parameter; a group without a `factor` learns at the rate of the schedule."""
        raise NotImplementedError


@part("adamw")
class AdamW(Optimizer):
    """Adam with decoupled weight decay. Loshchilov & Hutter 2017, arXiv:1711.05101."""

    adaptive: ClassVar[bool] = True
    stacks: ClassVar[bool] = True

    beta1: float = Field(0.9, ge=0, lt=1)
    beta2: float = Field(0.999, ge=0, lt=1)
    eps: float = Field(1e-8, gt=0)
    weight_decay: float = Field(0.01, ge=0)
    decay_vectors: bool = True  # as torch.optim.AdamW(model.parameters()) does; false spares biases and norms

    def build(self, model: nn.Module, lr: float) -> torch.optim.Optimizer:
        shared = {"betas": (self.beta1, self.beta2), "eps": self.eps, "fused": fused(model)}

        def options(parameter: nn.Parameter, tensors: list[LogicalTensor]) -> dict[str, Any]:
            return {**shared, "weight_decay": decay(parameter, tensors, self.weight_decay, self.decay_vectors)}

        return updates.AdamW(grouped(model, lr, options), lr)


@part("muon")
class Muon(Optimizer):
    """w -= lr (scale NS(g + momentum m) + decay w), NS near U V^T of the singular value decomposition U S V^T.

    Jordan et al. 2024, kellerjordan.github.io/posts/muon. For each matrix inside a branch alone, fused or not, and each
    matrix of a stack; tables, the head, biases and vectors follow AdamW. `scale` makes up for the shape: `rms` by
    0.2 sqrt(max(rows, columns)), the size of an AdamW update, so that its learning rate fits (Liu et al. 2025,
    arXiv:2502.16982), `original` by sqrt(max(1, rows / columns)), for which lr is about 0.02.
    """

    stacks: ClassVar[bool] = True

    momentum: float = Field(0.95, ge=0, lt=1)
    nesterov: bool = True
    ns_steps: int = Field(5, ge=1, le=50)
    scale: Literal["rms", "original"] = "rms"
    adam_factor: float = Field(1.0, gt=0)  # of the learning rate, for what follows AdamW
    beta1: float = Field(0.9, ge=0, lt=1)
    beta2: float = Field(0.999, ge=0, lt=1)
    eps: float = Field(1e-8, gt=0)
    weight_decay: float = Field(0.01, ge=0)
    decay_vectors: bool = True

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
            "factor": self.adam_factor,
            "betas": (self.beta1, self.beta2),
            "eps": self.eps,
            "fused": fused(model),
        }

        def options(parameter: nn.Parameter, tensors: list[LogicalTensor]) -> dict[str, Any]:
            shared = {"weight_decay": decay(parameter, tensors, self.weight_decay, self.decay_vectors)}
            if parameter.ndim >= 2 and all(tensor.role in MATRICES for tensor in tensors):
                return {**muon, **shared}
            return {**adam, **shared}

        places: dict[Tensor, list[updates.Place]] = {
            parameter: [updates.place(tensor.data, parameter) for tensor in tensors]
            or [updates.place(parameter, parameter)]
            for parameter, tensors in stored(model).items()
        }
        return updates.Muon(grouped(model, lr, options), lr, places)


@part("lion")
class Lion(Optimizer):
    """w -= lr (sign(b1 m + (1 - b1) g) + decay w), then m = b2 m + (1 - b2) g. Chen et al. 2023, arXiv:2302.06675.

    Every weight moves by lr: take a third to a tenth of AdamW's, and as many times its weight decay.
    """

    adaptive: ClassVar[bool] = True
    stacks: ClassVar[bool] = True

    beta1: float = Field(0.9, ge=0, lt=1)
    beta2: float = Field(0.99, ge=0, lt=1)
    weight_decay: float = Field(0.1, ge=0)
    decay_vectors: bool = True

    def build(self, model: nn.Module, lr: float) -> torch.optim.Optimizer:
        groups = grouped(model, lr, decaying(self.weight_decay, self.decay_vectors))
        return updates.Lion(groups, lr, self.beta1, self.beta2)


@part("sgd")
class SGD(Optimizer):
    """m = momentum m + g + decay w, w -= lr m; with `nesterov` w -= lr (g + decay w + momentum m). Sutskever et al. 2013.

    Weight decay is part of the gradient, as in torch.optim.SGD. Without Adam's scaling lr is a hundred times larger.
    """

    stacks: ClassVar[bool] = True

    momentum: float = Field(0.9, ge=0, lt=1)
    nesterov: bool = False
    weight_decay: float = Field(0.0, ge=0)
    decay_vectors: bool = True

    @model_validator(mode="after")
    def _looks_ahead_by_momentum(self) -> Self:
        if self.nesterov and not self.momentum:
            raise ConfigError(
                "optimizer.nesterov=true needs optimizer.momentum above 0: set it to 0.9, or nesterov=false"
            )
        return self

    def build(self, model: nn.Module, lr: float) -> torch.optim.Optimizer:
        groups = grouped(model, lr, decaying(self.weight_decay, self.decay_vectors))
        # not fused: torch 2.13's one kernel fails where only some parameters have had a gradient before
        return torch.optim.SGD(groups, lr=lr, momentum=self.momentum, nesterov=self.nesterov)


def decaying(weight_decay: float, decay_vectors: bool) -> Callable[[nn.Parameter, list[LogicalTensor]], dict[str, Any]]:
    return lambda parameter, tensors: {"weight_decay": decay(parameter, tensors, weight_decay, decay_vectors)}


def decay(parameter: nn.Parameter, tensors: list[LogicalTensor], weight_decay: float, decay_vectors: bool) -> float:
    """By role, where the model names them, rather than by shape: a hyper-connection's weights are no matrix."""
    vectors = all(tensor.role in ("bias", "vector") for tensor in tensors) if tensors else parameter.ndim < 2
    return weight_decay if decay_vectors or not vectors else 0.0


def fused(model: nn.Module) -> bool:
    """Whether torch has an update of one kernel for every parameter."""
    return all(parameter.device.type in ("cpu", "cuda") for parameter in model.parameters())


def stored(model: nn.Module) -> Mapping[nn.Parameter, list[LogicalTensor]]:
    """Every parameter once, in the model's order, and the logical tensors in it; none in a module that names none."""
    found: dict[nn.Parameter, list[LogicalTensor]] = {parameter: [] for parameter in model.parameters()}
    names = getattr(model, "logical_tensors", tuple)
    for tensor in names():
        whole = tensor.data if tensor.data._base is None else tensor.data._base
        found[whole].append(tensor)
    return found


def grouped(
    model: nn.Module, lr: float, options: Callable[[nn.Parameter, list[LogicalTensor]], dict[str, Any]]
) -> list[dict[str, Any]]:
    """Parameter groups, one per set of equal options; a `factor` among these multiplies the parametrisation's own."""
    groups: dict[tuple[Any, ...], dict[str, Any]] = {}
    for parameter, tensors in stored(model).items():
        chosen = {"factor": 1.0, **options(parameter, tensors)}
        shared = {tensor.lr_factor for tensor in tensors} or {1.0}
        assert len(shared) == 1, f"{tensors[0].name} learns at another rate than what it is stored with"
        chosen["factor"] *= shared.pop()
        group = {"params": [], "lr": lr * chosen["factor"], **chosen}
        groups.setdefault(tuple(sorted(chosen.items())), group)["params"].append(parameter)
    return list(groups.values())

"""Optimizers: what stands at `optimizer=`."""

from typing import ClassVar

import torch
from pydantic import Field
from torch import nn

from partwise.config import Part, part


class Optimizer(Part):
    """What may stand at `optimizer=`."""

    family: ClassVar[str] = "optimizer"

    def build(self, model: nn.Module, lr: float) -> torch.optim.Optimizer:
        raise NotImplementedError


@part("adamw")
class AdamW(Optimizer):
    """Adam with decoupled weight decay. Loshchilov & Hutter 2017, arXiv:1711.05101."""

    beta1: float = Field(0.9, ge=0, lt=1)
    beta2: float = Field(0.999, ge=0, lt=1)
    eps: float = Field(1e-8, gt=0)
    weight_decay: float = Field(0.01, ge=0)
    decay_vectors: bool = True  # as torch.optim.AdamW(model.parameters()) does; false spares biases and norms

    def build(self, model: nn.Module, lr: float) -> torch.optim.Optimizer:
        parameters = list(model.parameters())
        vectors = [] if self.decay_vectors else [p for p in parameters if p.ndim < 2]
        spared = {id(p) for p in vectors}
        groups = [{"params": [p for p in parameters if id(p) not in spared], "weight_decay": self.weight_decay}]
        if vectors:
            groups.append({"params": vectors, "weight_decay": 0.0})
        fused = all(p.device.type in ("cpu", "cuda") for p in parameters)
        return torch.optim.AdamW(groups, lr=lr, betas=(self.beta1, self.beta2), eps=self.eps, fused=fused)

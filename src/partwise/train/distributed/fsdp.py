"""Fully sharded data parallelism by torch's `fully_shard` (FSDP2): every process holds a part of each parameter."""

import warnings
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from partwise.checkpoint import load_weights, tensors_of
from partwise.data import Batch
from partwise.model import Transformer
from partwise.parts.contracts import ForwardContext
from partwise.train.distributed.data_parallel import DataParallel, connect_statistics
from partwise.train.distributed.processes import Processes
from partwise.train.optimizer_steps import Muon


class Shard(NamedTuple):
    """A parameter of FSDP2 and the part of it in this process, which is an ordinary tensor."""

    parameter: DTensor
    local: nn.Parameter


class Sharded(DataParallel):
    """Fully sharded data parallelism, FSDP2 (Zhao et al. 2023, arXiv:2304.11277): parameters, gradients and optimizer states
    are split along the first dimension; each block is gathered when it computes.

    The optimizer updates the local parts as ordinary tensors, as updates are elementwise; Muon gathers each matrix.
    """

    kind = "fsdp"

    def __init__(
        self,
        model: Transformer,
        losses: Callable[[Batch], Any],
        processes: Processes,
        optimizer: torch.optim.Optimizer,
        bfloat16: bool,
    ) -> None:
        super().__init__(model, losses)
        self.processes = processes
        connect_statistics(model, processes)
        names = {id(parameter): name for name, parameter in model.named_parameters()}
        device = model.embed.weight.device.type
        self.mesh = DeviceMesh(device, list(range(processes.size)))
        policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32) if bfloat16 else MixedPrecisionPolicy()
        blocks = [*model.blocks, *(model.encoder.blocks if model.encoder else [])]
        for module in (*blocks, model):
            fully_shard(module, mesh=self.mesh, mp_policy=policy)
        for block in blocks:
            block.register_forward_pre_hook(hide_context, prepend=True)
            block.register_forward_pre_hook(show_context)
        self.modules = [module for module in model.modules() if isinstance(module, FSDPModule)]
        # the logits may be a view; nothing writes to them in place
        warnings.filterwarnings("ignore", message=r"FSDP2-wrapped module .* returned a view tensor")
        for module in self.modules:
            module.set_gradient_divide_factor(1.0)  # sums, as in DDP
            module.set_force_sum_reduction_for_comms(True)
        self.shards = {name: shard_of(parameter) for name, parameter in model.named_parameters()}
        self.replace_parameters(optimizer, names)

    def replace_parameters(self, optimizer: torch.optim.Optimizer, names: Mapping[int, str]) -> None:
        """Let a new optimizer update the local parts of the parameters it was built for."""
        earlier = {names[id(parameter)]: parameter for group in optimizer.param_groups for parameter in group["params"]}
        for group in optimizer.param_groups:
            group["params"] = [self.shards[names[id(parameter)]].local for parameter in group["params"]]
        if isinstance(optimizer, Muon):
            own: dict[Tensor, str] = {shard.local: name for name, shard in self.shards.items()}
            optimizer.slices = {self.shards[name].local: optimizer.slices[old] for name, old in earlier.items()}
            optimizer.gather = lambda local, tensor: self.whole(own[local], tensor)
            optimizer.part = lambda local, tensor: self.part(own[local], tensor)

    def parameters(self) -> dict[str, Tensor]:
        return {name: shard.local for name, shard in self.shards.items()}

    def synchronize(self, last: bool) -> AbstractContextManager[None]:
        for module in self.modules:
            module.set_requires_gradient_sync(last, recurse=False)
        return nullcontext()

    def finish_gradients(self) -> None:
        for parameter, local in self.shards.values():
            grad = parameter.grad
            local.grad = grad.to_local() if isinstance(grad, DTensor) else None
            if local.grad is not None:
                self.bytes_reduced += parameter.numel() * parameter.element_size()
            parameter.grad = None

    def total_norm(self) -> Tensor:
        return self.processes.sum(super().total_norm() ** 2).sqrt()

    def weights(self) -> dict[str, Tensor]:
        return {
            name: value.full_tensor() if isinstance(value, DTensor) else value
            for name, value in self.model.state_dict().items()
        }

    @torch.no_grad()
    def load(self, weights: dict[str, Tensor]) -> None:
        whole = Transformer(self.model.config)  # saved names may be slices of a parameter, which no shard holds
        for name, layer in whole.fitted_layers.items():
            layer.allocate(tensors_of(name, weights))
        load_weights(whole, weights)
        for name, parameter in whole.named_parameters():
            self.shards[name].local.copy_(self.part(name, parameter))
        for own, loaded in zip(self.model.buffers(), whole.buffers(), strict=True):
            own.copy_(loaded)

    def whole(self, name: str, tensor: Tensor) -> Tensor:
        like = self.shards[name].parameter
        if tensor.shape != self.shards[name].local.shape or not tensor.ndim:
            return tensor  # a step counter
        return DTensor.from_local(
            tensor, self.mesh, like.placements, shape=like.shape, stride=like.stride()
        ).full_tensor()

    def part(self, name: str, tensor: Tensor) -> Tensor:
        shard = self.shards[name]
        if tensor.shape != shard.parameter.shape or not tensor.ndim:
            return tensor
        first = -(-tensor.shape[0] // self.processes.size) * self.processes.rank  # as torch.chunk divides
        return tensor[first : first + shard.local.shape[0]].clone()


def shard_of(parameter: nn.Parameter) -> Shard:
    """A sharded parameter and its local part, which share memory."""
    assert isinstance(parameter, DTensor)
    return Shard(parameter, nn.Parameter(parameter.to_local().detach(), requires_grad=parameter.requires_grad))


class Opaque:
    """Hides a value from FSDP2."""

    def __init__(self, value: ForwardContext) -> None:
        self.value = value


def hide_context(module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Before FSDP2's own hook: it copies a dataclass that holds tensors, and what a layer adds to a copy is lost."""
    return tuple(Opaque(arg) if isinstance(arg, ForwardContext) else arg for arg in args)


def show_context(module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """After FSDP2's own hook."""
    return tuple(arg.value if isinstance(arg, Opaque) else arg for arg in args)

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

from partwise.checkpoint import tensors_of
from partwise.data import Batch
from partwise.model import Transformer
from partwise.parts.contracts import ForwardContext
from partwise.records import DamagedFileError
from partwise.tensor_files import RowRange, Shape, rows_of, shapes_of, whole
from partwise.train.distributed.data_parallel import DataParallel, connect_statistics
from partwise.train.distributed.processes import Processes
from partwise.train.optimizer_steps import MuonOptimizer


class LocalRows(NamedTuple):
    """A parameter of FSDP2 and the part of it in this process, an ordinary tensor that begins at its row `first`."""

    parameter: DTensor
    local: nn.Parameter
    first: int


class SavedTensor(NamedTuple):
    """Where a tensor of the state dict is: rows of a parameter from `first` on, or a buffer."""

    parameter: str | None
    first: int
    shape: Shape


class Sharded(DataParallel):
    """Fully sharded data parallelism, FSDP2 (Zhao et al. 2023, arXiv:2304.11277): parameters, gradients and optimizer states
    are split along the first dimension; each block is gathered when it computes.

    The optimizer updates the local parts as ordinary tensors, as updates are elementwise; Muon gathers each matrix.
    """

    kind = "fsdp"
    sharded = True

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
        self.saved = saved_tensors(model)
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
        self.shards = {name: shard_of(parameter, processes) for name, parameter in model.named_parameters()}
        self.replace_parameters(optimizer, names)

    def replace_parameters(self, optimizer: torch.optim.Optimizer, names: Mapping[int, str]) -> None:
        """Let a new optimizer update the local parts of the parameters it was built for."""
        earlier = {names[id(parameter)]: parameter for group in optimizer.param_groups for parameter in group["params"]}
        for group in optimizer.param_groups:
            group["params"] = [self.shards[names[id(parameter)]].local for parameter in group["params"]]
        if isinstance(optimizer, MuonOptimizer):
            own: dict[Tensor, str] = {shard.local: name for name, shard in self.shards.items()}
            optimizer.slices = {self.shards[name].local: optimizer.slices[old] for name, old in earlier.items()}
            optimizer.gather = lambda local, tensor: self.gather(own[local], tensor)
            optimizer.part = lambda local, tensor: self.part(own[local], tensor)

    def parameters(self) -> dict[str, Tensor]:
        return {name: shard.local for name, shard in self.shards.items()}

    def synchronize(self, last: bool) -> AbstractContextManager[None]:
        for module in self.modules:
            module.set_requires_gradient_sync(last, recurse=False)
        return nullcontext()

    def finish_gradients(self) -> None:
        for parameter, local, _ in self.shards.values():
            grad = parameter.grad
            local.grad = grad.to_local() if isinstance(grad, DTensor) else None
            parameter.grad = None

    def total_norm(self) -> Tensor:
        return self.processes.sum(super().total_norm() ** 2).sqrt()

    def weights(self) -> dict[str, RowRange]:
        """The rows in this process of every tensor, and in the first one the buffers, which are equal in all."""
        own = {}
        for name, (parameter, first, shape) in self.saved.items():
            if parameter is not None:
                shard = self.shards[parameter]
                start, end = overlap(shard, first, shape)
                if start < end:
                    own[name] = RowRange(shard.local[start - shard.first : end - shard.first], start - first, shape)
        if self.processes.first:
            own |= {name: whole(buffer) for name, buffer in self.buffers().items()}
        return own

    def buffers(self) -> dict[str, Tensor]:
        """The buffers in the state dict."""
        own = dict(self.model.named_buffers())
        return {name: own[name] for name, saved in self.saved.items() if saved.parameter is None}

    @torch.no_grad()
    def load(self, weights: Mapping[str, Tensor]) -> None:
        for name, layer in self.model.fitted_layers.items():  # their buffers may have any length
            layer.allocate(tensors_of(name, weights))
        buffers = self.buffers()
        shapes = {name: saved.shape for name, saved in self.saved.items()}
        if shapes_of(weights) != shapes | {name: tuple(buffer.shape) for name, buffer in buffers.items()}:
            raise DamagedFileError("the weights do not match the configuration")
        for name, buffer in buffers.items():
            buffer.copy_(weights[name])
        for name, (parameter, first, shape) in self.saved.items():
            if parameter is not None:
                shard = self.shards[parameter]
                start, end = overlap(shard, first, shape)
                if start < end:
                    target = shard.local[start - shard.first : end - shard.first]
                    target.copy_(rows_of(weights, name, start - first, end - first))

    def state_rows(self, name: str, tensor: Tensor) -> RowRange | None:
        shard = self.shards[name]
        if not tensor.ndim or tensor.shape != shard.local.shape:  # such as a step counter, equal in all processes
            return whole(tensor) if self.processes.first else None
        return RowRange(tensor, shard.first, tuple(shard.parameter.shape)) if len(tensor) else None

    def load_state(self, name: str, key: str, states: Mapping[str, Tensor]) -> Tensor:
        shard, full = self.shards[name], f"{name}.{key}"
        if shapes_of(states)[full] != tuple(shard.parameter.shape) or not shard.parameter.ndim:
            return states[full]
        return rows_of(states, full, shard.first, shard.first + len(shard.local)).clone()

    def gather(self, name: str, tensor: Tensor) -> Tensor:
        """A tensor of a parameter's shape from the parts of all processes."""
        like = self.shards[name].parameter
        placed = DTensor.from_local(tensor, self.mesh, like.placements, shape=like.shape, stride=like.stride())
        return placed.full_tensor()

    def part(self, name: str, tensor: Tensor) -> Tensor:
        """The part of a tensor of a parameter's shape that this process keeps."""
        shard = self.shards[name]
        return tensor[shard.first : shard.first + len(shard.local)].clone()


def shard_of(parameter: nn.Parameter, processes: Processes) -> LocalRows:
    """A sharded parameter and its local part, which share memory."""
    assert isinstance(parameter, DTensor)
    local = nn.Parameter(parameter.to_local().detach(), requires_grad=parameter.requires_grad)
    first = -(-parameter.shape[0] // processes.size) * processes.rank  # as torch.chunk divides
    return LocalRows(parameter, local, min(first, parameter.shape[0]))


def saved_tensors(model: Transformer) -> dict[str, SavedTensor]:
    """Where each tensor of a model's state dict is; fused projections are saved as the rows of each."""
    owners = {parameter.untyped_storage()._cdata: name for name, parameter in model.named_parameters()}
    saved = {}
    for name, tensor in model.state_dict().items():
        owner = owners.get(tensor.untyped_storage()._cdata)
        first = tensor.storage_offset() // max(1, tensor.stride(0)) if owner and tensor.ndim else 0
        saved[name] = SavedTensor(owner, first, tuple(tensor.shape))
    return saved


def overlap(shard: LocalRows, first: int, shape: Shape) -> tuple[int, int]:
    """The rows of the parameter that are in a shard and in the saved tensor that begins at row `first`."""
    return max(shard.first, first), min(shard.first + len(shard.local), first + shape[0])


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

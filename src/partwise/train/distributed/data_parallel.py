"""How processes share one model; this file: one process alone."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from partwise.checkpoint import load_weights
from partwise.data import Batch
from partwise.model import Transformer
from partwise.parts.feed_forward.router import LoadBalancer
from partwise.tensor_files import RowRange, whole
from partwise.train.distributed.processes import Processes


class DataParallel:
    """One process. Subclasses compute the same sums over several; losses are divided by the targets of the global batch."""

    kind = "none"
    sharded = False
    """Whether each process has a part of the model."""

    def __init__(self, model: Transformer, losses: Callable[[Batch], Any]) -> None:
        self.model, self.losses = model, losses

    @cached_property
    def own_parameters(self) -> dict[str, Tensor]:
        """Kept, since finding them visits every module, and a step needs them twice."""
        return dict(self.model.named_parameters())

    def parameters(self) -> dict[str, Tensor]:
        """The tensors that the optimizer updates, by name."""
        return self.own_parameters

    def synchronize(self, last: bool) -> AbstractContextManager[None]:
        """Communicate gradients after the last micro-batch of a step only."""
        return nullcontext()

    def finish_gradients(self) -> None:
        """Set the gradients of `parameters()` to the sums over all processes."""

    def total_norm(self) -> Tensor:
        """The norm of all gradients."""
        return torch.nn.utils.get_total_norm([p.grad for p in self.parameters().values() if p.grad is not None])

    def weights(self) -> dict[str, RowRange]:
        """This process's part of the model's state dict."""
        return {name: whole(tensor) for name, tensor in self.model.state_dict().items()}

    def state_rows(self, name: str, tensor: Tensor) -> RowRange | None:
        """This process's part of a tensor of a parameter's optimizer state, to save."""
        return whole(tensor)

    def load(self, weights: Mapping[str, Tensor]) -> None:
        """Load a whole state dict. Raises DamagedFileError if it does not match the model."""
        load_weights(self.model, weights)

    def load_state(self, name: str, key: str, states: Mapping[str, Tensor]) -> Tensor:
        """This process's part of the loaded tensor `key` of a parameter's optimizer state."""
        return states[f"{name}.{key}"]


def connect_statistics(model: Transformer, processes: Processes) -> None:
    """Let routers count the tokens of all processes."""
    for balancer in load_balancers(model):
        balancer.sum_over_processes = processes.sum


def load_balancers(model: Transformer) -> Iterator[LoadBalancer]:
    return (module for module in model.modules() if isinstance(module, LoadBalancer))

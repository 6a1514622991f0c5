"""torch.compile of a whole model, without graph breaks, for training."""

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from partwise.config import ConfigError
from partwise.model import Transformer

COMPILER = "inductor"
"""The backend of torch.compile."""


class CompiledModel:
    """A model whose calls with gradients are compiled; others, as in evaluation and sampling, call the model itself."""

    def __init__(self, model: Transformer) -> None:
        self.model = model
        self.tables_exist = False
        self.compiled: Callable[..., Tensor] = torch.compile(model, backend=COMPILER, fullgraph=True, dynamic=False)
        for dropout in model.dropouts.values():
            dropout.hold_key(model.embed.weight.device)

    def __call__(self, *inputs: Any, **options: Any) -> Tensor:
        if not torch.is_grad_enabled():
            output: Tensor = self.model(*inputs, **options)
            return output
        if not self.tables_exist:
            self.make_tables(*inputs, **options)
        from torch._dynamo.exc import TorchDynamoException  # more than a second

        try:
            return self.compiled(*inputs, **options)
        except TorchDynamoException as error:
            reason = " ".join(str(error).split())[:200]
            raise ConfigError(
                f"train.compile=true: torch cannot compile this model here ({reason}): use train.compile=false"
            ) from None

    @torch.no_grad()
    def make_tables(self, tokens: Tensor, source: Tensor | None = None, **options: Any) -> None:
        """Make the tables that layers keep from their first call on, such as rotations: they would be compiled twice."""
        training = self.model.training
        self.model.eval()(tokens[:1], source=None if source is None else source[:1])
        self.model.train(training)
        self.tables_exist = True


def warm_up(step: Callable[[], Tensor], model: Transformer) -> float:
    """Compile a model by one step whose effects are undone; returns the seconds that it took."""
    started = time.perf_counter()
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    step().backward()
    for parameter in model.parameters():
        parameter.grad = None
    for name, buffer in model.named_buffers():
        buffer.copy_(buffers[name])
    return time.perf_counter() - started

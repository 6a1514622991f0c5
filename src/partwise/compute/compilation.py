"""torch.compile of a whole model, without graph breaks, for training."""

import math
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from partwise.config import ConfigError
from partwise.model import Transformer

COMPILER = "inductor"
"""The backend of torch.compile."""


SMALL_STEP_FLOPS = 2e11
"""A step of fewer FLOPs takes an accelerator less time to compute than a CPU to launch: it is replayed as CUDA graphs."""

REPLAYED = 3
"""Calls after which a CUDA graph is replayed: the first one computes, the second records."""


def is_small(flops: float, device: str, n_micro_batches: int) -> bool:
    """Whether a step is worth CUDA graphs. They keep the gradients of one micro-batch, which the next would overwrite."""
    return device == "cuda" and n_micro_batches == 1 and flops < SMALL_STEP_FLOPS


def compiled(function: Callable[..., Any], cuda_graphs: bool) -> Callable[..., Any]:
    """The function compiled as one graph for each shape of its inputs."""
    warnings.filterwarnings("ignore", message="TensorFloat32 tensor cores")  # float32 is what the user chose
    options: dict[str, Any] | None = {"triton.cudagraphs": True} if cuda_graphs else None
    return torch.compile(function, backend=COMPILER, fullgraph=True, dynamic=False, options=options)


class CompiledModel:
    """A model whose calls with gradients are compiled; others, as in evaluation and sampling, call the model itself."""

    def __init__(self, model: Transformer, cuda_graphs: bool = False) -> None:
        self.model, self.cuda_graphs = model, cuda_graphs
        self.tables_exist = False
        self.compiled: Callable[..., Tensor] = compiled(model, cuda_graphs)
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
            raise ConfigError(f"train.compile=true: {cannot_compile(str(error))}") from None

    @torch.no_grad()
    def make_tables(self, tokens: Tensor, source: Tensor | None = None, **options: Any) -> None:
        """Make the tables that layers keep from their first call on, such as rotations: they would be compiled twice."""
        training = self.model.training
        self.model.eval()(tokens[:1], source=None if source is None else source[:1])
        self.model.train(training)
        self.tables_exist = True


def cannot_compile(message: str) -> str:
    """Why, and what to do. torch 2.13 does not quote the paths that it gives to the C++ compiler."""
    folder = Path(torch.__file__).parent
    if "CppCompileError" in message and " " in str(folder):
        return (
            f"torch's compiler cannot read {folder}, which has spaces: install it elsewhere, or use train.compile=false"
        )
    return f"torch cannot compile this model here ({in_short(message)}): use train.compile=false"


def in_short(message: str) -> str:
    """The beginning and the end of a compiler's message as one line: a traceback ends with the cause."""
    words = " ".join(message.partition("Set TORCHDYNAMO_VERBOSE")[0].split())
    return words if len(words) <= MAX_REASON else f"{words[: MAX_REASON // 3]} ... {words[-2 * MAX_REASON // 3 :]}"


MAX_REASON = 240
"""Characters of a reason."""


def warm_up(step: Callable[[], Tensor], model: Transformer) -> tuple[float, float]:
    """Compile a model by one step whose effects are undone; returns its loss and its gradient norm."""
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    loss = step()
    loss.backward()
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    found = loss.item(), torch.nn.utils.get_total_norm(gradients).item()
    for parameter in model.parameters():
        parameter.grad = None
    for name, buffer in model.named_buffers():
        buffer.copy_(buffers[name])
    return found


def replays_equal_steps(step: Callable[[], Tensor], model: Transformer) -> bool:
    """Whether a step that CUDA graphs replay has the loss and the gradient norm of the first, which computed them."""
    try:
        first, *_, replayed = (warm_up(step, model) for _ in range(REPLAYED))
    except RuntimeError:  # operations that cannot be recorded
        return False
    return all(math.isclose(a, b, rel_tol=REPLAY_TOLERANCE) for a, b in zip(replayed, first, strict=True))


REPLAY_TOLERANCE = 1e-3
"""Far below the difference of a wrong replay, far above that of sums in another order."""

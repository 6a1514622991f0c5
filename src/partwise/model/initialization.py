"""Initial weights, with an independent random stream per tensor."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import torch

from partwise.config import ConfigError
from partwise.model.parameters import LogicalTensor, matching_names
from partwise.parts.contracts import Init, Residual
from partwise.parts.layers import stream_seed
from partwise.parts.roles import TensorSpec


@contextmanager
def constructing(seed: int) -> Iterator[None]:
    """Seed what constructors sample, and restore the global random state afterwards.

    `initialize` replaces it, except for tensors without a role, such as those of a plain module of torch.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(stream_seed(seed, "constructors"))
        yield


def check_init(init: Init, tie_embeddings: bool, tensors: Iterable[LogicalTensor]) -> None:
    """Raise ConfigError for a model that the initialization does not fit."""
    if tie_embeddings and init.scales_head_separately:
        raise ConfigError(f"init={init.name} scales embeddings and head differently: set tie_embeddings=false")
    if init.needs_activated_bias and not any(tensor.activated for tensor in tensors):
        raise ConfigError(f"init={init.name} sets biases of hidden units, and there are none: set ffn.bias=true")


@torch.no_grad()
def initialize(
    tensors: Sequence[tuple[LogicalTensor, TensorSpec]],
    init: Init,
    residual: Residual,
    seed: int,
    reinitialize: str | None = None,
    padding_idx: int | None = None,
) -> None:
    """Sample initial weights on the CPU in float32, each tensor from a random stream keyed by (seed, its name).

    Adding or reshaping a tensor does not change the others. Tensors whose names match `reinitialize`, such as ffn,
    use a second stream. The embedding at `padding_idx` is zero. Raises ConfigError if no tensor has that name.
    """
    initialized = [(tensor, spec) for tensor, spec in tensors if tensor.role != "vector"]
    names, reinitialized = [tensor.name for tensor, _ in initialized], set[str]()
    if reinitialize is not None:
        reinitialized = matching_names(names, reinitialize, "train.reinitialize")
    for tensor, spec in initialized:
        values = torch.empty(tensor.data.shape, dtype=torch.float32, device="cpu")
        key = stream_seed(seed, tensor.name, *("again",) * (tensor.name in reinitialized))
        init.fill(values, spec, torch.Generator("cpu").manual_seed(key))
        values.mul_(residual.gain(spec))
        if padding_idx is not None and tensor.name.endswith("embed.weight"):
            values[padding_idx] = 0
        tensor.data.copy_(values)

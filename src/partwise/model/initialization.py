"""Initial weights, with an independent random stream per tensor."""

from collections.abc import Sequence

import torch

from partwise.config import ConfigError
from partwise.model.parameters import LogicalTensor
from partwise.parts.contracts import Init, Residual
from partwise.parts.layers import stream_seed
from partwise.parts.roles import TensorSpec


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

    Adding or reshaping a tensor does not change the others. Tensors with `reinitialize`, such as ffn, in their names use
    a second stream. The embedding at `padding_idx` is zero. Raises ConfigError if no tensor has that name.
    """
    initialized = [(tensor, spec) for tensor, spec in tensors if tensor.role != "vector"]
    reinitialized = matching_names([tensor.name for tensor, _ in initialized], reinitialize)
    for tensor, spec in initialized:
        values = torch.empty(tensor.data.shape, dtype=torch.float32, device="cpu")
        key = stream_seed(seed, tensor.name, *("again",) * (tensor.name in reinitialized))
        init.fill(values, spec, torch.Generator("cpu").manual_seed(key))
        values.mul_(residual.gain(spec))
        if padding_idx is not None and tensor.name.endswith("embed.weight"):
            values[padding_idx] = 0
        tensor.data.copy_(values)


def matching_names(names: list[str], word: str | None) -> set[str]:
    """The dotted names that contain the word, such as ffn; an empty set for None. Raises ConfigError if there are none."""
    matches = {name for name in names if word in name.split(".")}
    if word is not None and not matches:
        words = sorted({part for name in names for part in name.split(".") if part.isalpha()} - {"weight", "bias"})
        raise ConfigError(f"train.reinitialize={word}: no tensor has that name; choose one of {', '.join(words)}")
    return matches

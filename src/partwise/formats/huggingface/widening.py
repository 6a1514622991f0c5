"""Configurations with more parameters that compute the same function: biases of zero, norms with weights of one, ....

A family may always have a parameter that one of our models lacks. The values of the added tensors are neutral.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from partwise.config import ConfigError, recipes_by_layer
from partwise.formats.huggingface.family import Settings
from partwise.model import ModelConfig, meta_model
from partwise.parts.contracts import LayerContext

Tensors = Mapping[str, Tensor]


def widen(config: ModelConfig, changes: Settings) -> ModelConfig | None:
    """The configuration with these options, without multi-token prediction; None if the options do not fit.

    An option that the configuration's parts do not have is skipped; positions are only replaced if they are none or
    sinusoidal, which a learned table can express.
    """
    settings = config.to_dict() | {"mtp": {"part": "none"}}
    for name, change in changes.items():
        if isinstance(change, dict):
            settings[name] = with_options(settings[name], change)
        elif settings[name]["part"] in ("none", "sinusoidal"):
            settings[name] = change
    try:
        return ModelConfig.from_dict(settings)
    except ConfigError:
        return None


def with_options(part: Any, change: Settings) -> Any:
    """A part, a list of parts or a cycle with these of its options changed."""
    if isinstance(part, list):
        return [with_options(each, change) for each in part]
    if "cycle" in part:
        return {"cycle": with_options(part["cycle"], change)}
    return part | {name: value for name, value in change.items() if name in part}


def widen_tensors(config: ModelConfig, wide: ModelConfig, tensors: Tensors) -> dict[str, Tensor]:
    """The tensors of the wider model."""
    wanted = {name: tensor.shape for name, tensor in meta_model(wide).state_dict().items()}
    result = dict(tensors)
    order_rotary(config, wide, result)
    shift_norms(config, wide, result)
    dtype = tensors["embed.weight"].dtype
    for name, shape in wanted.items():
        if name not in result:
            result[name] = neutral(name, shape, config, wide).to(dtype)
    return {name: result[name] for name in wanted}


def neutral(name: str, shape: torch.Size, config: ModelConfig, wide: ModelConfig) -> Tensor:
    """The added tensor: neutral in the sum or product in which it occurs."""
    if name == "positions.weight":
        if config.positions.name == "none":
            return torch.zeros(shape)
        table = config.positions.build(LayerContext(config.d_model, config.n_layers, config.context_length))
        return table.at_input(torch.zeros(shape, dtype=torch.float64), torch.arange(config.context_length))
    offset = is_norm(name) and getattr(wide.norm, "unit_offset", False)
    return torch.zeros(shape) if name.endswith(".bias") or offset else torch.ones(shape)


def is_norm(name: str) -> bool:
    """Whether a tensor belongs to a layer of `norm=`; the norms of queries and keys do not."""
    return name.startswith("embed_norm.") or ".residual." in f".{name}"


def shift_norms(config: ModelConfig, wide: ModelConfig, tensors: dict[str, Tensor]) -> None:
    """Between norms that multiply by the weight and by 1 + weight."""
    before, after = (getattr(each.norm, "unit_offset", None) for each in (config, wide))
    if before is None or after is None or before == after:
        return
    for name, tensor in tensors.items():
        if is_norm(name) and name.endswith(".weight"):
            tensors[name] = (tensor.double() + (1 if before else -1)).to(tensor.dtype)


def order_rotary(config: ModelConfig, wide: ModelConfig, tensors: dict[str, Tensor]) -> None:
    """From interleaved pairs of rotated dimensions to halves: the rows of queries and keys in another order."""
    before, after = (getattr(each.positions, "layout", None) for each in (config, wide))
    if before == after:
        return
    positions: Any = config.positions
    attentions: list[Any] = recipes_by_layer(config.attention, config.n_layers)
    for layer, attention in enumerate(attentions):
        head_dim = attention.heads(config.d_model).head_dim
        width = int(positions.partial_rotary_factor * head_dim + 1e-9)
        order = torch.tensor([*range(0, width, 2), *range(1, width, 2), *range(width, head_dim)])
        for role in ("q", "k"):
            for name in (f"{role}.weight", f"{role}.bias", f"{role}_norm.weight"):
                name = f"blocks.{layer}.attention.{name}"
                if name in tensors:
                    tensors[name] = tensors[name].unflatten(0, (-1, head_dim))[:, order].flatten(0, 1)

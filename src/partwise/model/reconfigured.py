"""The weights of a model under another configuration: other positions, a longer context, another window."""

import torch

from partwise.config import ConfigError
from partwise.model.transformer import ModelConfig, Transformer


def reconfigured(model: Transformer, config: ModelConfig) -> Transformer:
    """A model with the weights of `model` that computes as `config` says, on its device and in its dtype and mode.

    Raises ConfigError for a configuration with other tensors, or with positions that the weights do not have.
    """
    old, length = model.config, config.context_length
    if config.positions.has_parameter_per_position and length > old.context_length:
        raise ConfigError(
            f"positions={config.positions.name} has no parameters beyond context_length={old.context_length}, so {length} "
            "tokens are too many: lower the length, or train with a larger context_length"
        )
    tensors = model.state_dict()
    with torch.device("meta"):
        claimed = Transformer(config)
        for name, layer in claimed.fitted_layers.items():
            layer.allocate(
                {key.removeprefix(f"{name}."): tensors[key] for key in tensors if key.startswith(f"{name}.")}
            )
        shapes = {name: tuple(tensor.shape) for name, tensor in claimed.state_dict().items()}
    for name in (*shapes, *tensors):
        found = tuple(tensors[name].shape) if name in tensors else None
        if shapes.get(name) != found:
            raise ConfigError(
                f"the trained weights do not fit the overrides: {name} is {described(found)}, not "
                f"{described(shapes.get(name))}: change only what keeps all tensors, such as positions=rope_ntk"
            )
    changed = Transformer(config).to(model.embed.weight.device, model.embed.weight.dtype)
    changed.load_state_dict(tensors)
    return changed.train(model.training)


def described(shape: tuple[int, ...] | None) -> str:
    return "absent" if shape is None else "x".join(map(str, shape)) or "a scalar"

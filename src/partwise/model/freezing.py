"""Frozen tensors, `train.freeze`: training does not change them."""

from typing import TYPE_CHECKING

from partwise.config import ConfigError
from partwise.model.parameters import matching_names, tensors_by_parameter

if TYPE_CHECKING:
    from partwise.model.transformer import Transformer


def freeze(model: "Transformer", text: str) -> None:
    """Exclude from gradients, in place, the parameters whose names match a pattern of `text`, such as `embed,blocks.[0-5]`.

    Layers that match also keep their other state, such as the bias of a router. Raises ConfigError if a pattern matches
    nothing, a part of a fused matrix, or one of two tied matrices, and if no parameter is left to train.
    """
    setting = f"train.freeze={text}"
    names_by_parameter = {
        parameter: [tensor.name for tensor in tensors] for parameter, tensors in tensors_by_parameter(model).items()
    }
    tied = model.tied_parameters()
    hooks = {name: module for name, module in model.named_modules() if module in model.after_step_hooks}
    known = [*(name for names in names_by_parameter.values() for name in names), *tied, *hooks]
    frozen = {name for pattern in text.split(",") for name in matching_names(known, pattern, "train.freeze")}
    for name, source in tied.items():
        if name in frozen and source not in frozen:
            raise ConfigError(f"{setting}: {name} is tied to {source}: freeze {source} as well, or untie them")
    for parameter, names in names_by_parameter.items():
        matched = [name for name in names if name in frozen]
        if matched and len(matched) < len(names):
            raise ConfigError(
                f"{setting}: {matched[0]} is fused with {', '.join(name for name in names if name not in frozen)}: freeze "
                "them as well"
            )
        if matched:
            parameter.requires_grad_(False)
    if not any(parameter.requires_grad for parameter in names_by_parameter):
        raise ConfigError(f"{setting} leaves no parameter to train: freeze fewer")
    model.after_step_hooks = [module for name, module in hooks.items() if name not in frozen]

"""A model's tensors as they are named, drawn and saved, whatever parameters store them."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from partwise.config import ConfigError
from partwise.parts.layers import FusedLinear
from partwise.parts.roles import Role


@dataclass(frozen=True)
class LogicalTensor:
    """One tensor as it is named, drawn and saved: a view into the parameter that stores it."""

    name: str
    role: Role
    fan_in: int
    fan_out: int
    data: Tensor
    lr_factor: float = 1.0  # by which a parametrisation such as muP scales its learning rate


def logical_tensors(model: nn.Module) -> Iterator[LogicalTensor]:
    """Every tensor under the name by which it is saved; queries, keys and values apart even where fused.

    A parameter that several modules share comes once, where it stands first.
    """
    seen: set[int] = set()
    for path, module in model.named_modules():
        if isinstance(module, FusedLinear):
            parent, fan_in = path.rpartition(".")[0], module.weight.shape[1]
            for name, own, piece in module.pieces():
                yield LogicalTensor(f"{parent}.{name}", own, fan_in, piece.shape[0], piece)
            continue
        for name, parameter in module.named_parameters(recurse=False):
            if id(parameter) in seen:
                continue
            seen.add(id(parameter))
            kind: Role = getattr(module, "role", "vector")
            role = "bias" if kind != "vector" and name == "bias" else kind
            # a bias is drawn by the fan-in of its matrix; a table's row is picked, not summed over
            fan_in, fan_out = (1, 1) if kind in ("table", "vector") else module.weight.shape[:-3:-1]
            yield LogicalTensor(f"{path}.{name}".lstrip("."), role, fan_in, fan_out, parameter)


def of_family(names: list[str], family: str | None) -> set[str]:
    """The names with that word in them, such as ffn; none for None. Raises ConfigError where there is no such name."""
    found = {name for name in names if family in name.split(".")}
    if family is not None and not found:
        words = sorted({word for name in names for word in name.split(".") if word.isalpha()} - {"weight", "bias"})
        raise ConfigError(f"train.redraw={family}: no initial value of that name; choose one of {', '.join(words)}")
    return found


class SavedOnce(nn.Module):
    """A module in which some matrices are one: they are saved once, loaded strictly, and stay one."""

    def shared(self) -> dict[str, str]:
        """Names of matrices that are another one -> that one."""
        raise NotImplementedError

    def tie(self) -> None:
        for name, source in self.shared().items():
            self.get_submodule(name.removesuffix(".weight")).weight = self.get_parameter(source)

    def state_dict(self, *args, **kwargs):  # type: ignore[no-untyped-def]
        state = super().state_dict(*args, **kwargs)
        for name in self.shared():
            state.pop(f"{kwargs.get('prefix', '')}{name}", None)  # one matrix, saved once
        return state

    def _load_from_state_dict(self, state_dict, prefix, *args) -> None:  # type: ignore[no-untyped-def]
        for name, source in self.shared().items():
            if f"{prefix}{source}" not in state_dict:
                continue
            table = state_dict[f"{prefix}{source}"]
            other = state_dict.setdefault(f"{prefix}{name}", table)
            if other is not table and not torch.equal(other, table):  # the last of the two would silently win
                args[-1].append(f"{name} differs from {source}, to which the config ties it: {prefix or 'model'}")
                state_dict[f"{prefix}{name}"] = table
        super()._load_from_state_dict(state_dict, prefix, *args)

    def load_state_dict(self, *args, **kwargs):  # type: ignore[no-untyped-def]
        result = super().load_state_dict(*args, **kwargs)
        self.tie()  # `assign=True` puts several parameters in place of the one
        return result

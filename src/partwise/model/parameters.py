"""The logical tensors of a model, with the names of checkpoints, independent of the parameters that store them."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

import torch
from torch import Tensor, nn

from partwise.config import ConfigError
from partwise.parts.contracts import MTPLayer, PositionLayer, StackEnds
from partwise.parts.dropout import Dropout
from partwise.parts.layers import FusedLinear
from partwise.parts.ngram_embeddings import IdentityNGramEmbeddings
from partwise.parts.ngram_lm import IdentityNGramLM
from partwise.parts.roles import Role
from partwise.parts.short_conv import IdentityShortConv


@dataclass(frozen=True)
class LogicalTensor:
    """One logical tensor: a view into the parameter that stores it."""

    name: str
    role: Role
    fan_in: int
    fan_out: int
    data: Tensor
    lr_factor: float = 1.0  # learning-rate factor of a parametrization such as muP
    activated: bool = False  # as in TensorSpec


def logical_tensors(model: nn.Module) -> Iterator[LogicalTensor]:
    """All tensors under their names in the state dict, with separate queries, keys and values even in a fused projection.

    A parameter that several modules share is listed once, under its first name.
    """
    seen: set[int] = set()
    for path, module in model.named_modules():
        if isinstance(module, FusedLinear):
            parent, fan_in = path.rpartition(".")[0], module.weight.shape[1]
            for name, role, piece in module.pieces():
                activated = name == f"{module.activated}.bias"
                yield LogicalTensor(f"{parent}.{name}", role, fan_in, piece.shape[0], piece, activated=activated)
            continue
        for name, parameter in module.named_parameters(recurse=False):
            if id(parameter) in seen:
                continue
            seen.add(id(parameter))
            module_role: Role = getattr(module, "role", "vector")
            role = "bias" if module_role != "vector" and name == "bias" else module_role
            # a bias has the fan-in of its matrix; an embedding is a lookup, not a sum over rows
            fan_in, fan_out = (1, 1) if module_role in ("table", "vector") else module.weight.shape[:-3:-1]
            activated = role == "bias" and hasattr(module, "activated")
            yield LogicalTensor(f"{path}.{name}".lstrip("."), role, fan_in, fan_out, parameter, activated=activated)


def tensors_by_parameter(model: nn.Module) -> Mapping[nn.Parameter, list[LogicalTensor]]:
    """Every parameter once, in the model's order, with its logical tensors; none if the module does not define them."""
    tensors: dict[nn.Parameter, list[LogicalTensor]] = {parameter: [] for parameter in model.parameters()}
    own_tensors = getattr(model, "logical_tensors", tuple)
    for tensor in own_tensors():
        parameter = tensor.data if tensor.data._base is None else tensor.data._base
        tensors[parameter].append(tensor)
    return tensors


def matching_names(names: Sequence[str], pattern: str, setting: str) -> set[str]:
    """The dotted names that contain the pattern: words such as `ffn` or `blocks.0`, with shell wildcards (`blocks.[0-5]`).

    Raises ConfigError, naming `setting`, if there are none.
    """
    expected = pattern.split(".")

    def matches(name: str) -> bool:
        words = name.split(".")
        windows = (words[start : start + len(expected)] for start in range(len(words) - len(expected) + 1))
        return any(all(map(fnmatchcase, window, expected)) for window in windows)

    found = {name for name in names if matches(name)}
    if not found:
        words = sorted({word for name in names for word in name.split(".") if word.isalpha()} - {"weight", "bias"})
        raise ConfigError(f"{setting}={pattern}: no tensor has that name; choose one of {', '.join(words)}")
    return found


UNUSED = (
    nn.Identity, IdentityShortConv, IdentityNGramEmbeddings, IdentityNGramLM, PositionLayer, StackEnds, MTPLayer, Dropout,
)  # fmt: skip
UNUSED_LAYER = re.compile(rf"\n *\(\w+\): (?:{'|'.join(each.__name__ for each in UNUSED)})\(\)")
NO_CHILDREN = re.compile(r"\(\n *\)")
EMPTY_CONTAINER = re.compile(r"\n *\(\w+\): Module(?:Dict|List)\(\)")


class TiedModule(nn.Module):
    """A module with tied matrices: they are saved once, checked for equality on loading, and stay tied."""

    def tied_parameters(self) -> dict[str, str]:
        """Names of tied matrices -> the name of the matrix they are tied to."""
        raise NotImplementedError

    def extra_repr(self) -> str:
        return f"{sum(parameter.numel() for parameter in self.parameters()):,} parameters"

    def __repr__(self) -> str:
        """As that of every module, without the layers that compute nothing."""
        shown = UNUSED_LAYER.sub("", super().__repr__())
        return EMPTY_CONTAINER.sub("", NO_CHILDREN.sub("()", shown))

    def tie_weights(self) -> None:
        for name, source in self.tied_parameters().items():
            self.get_submodule(name.removesuffix(".weight")).weight = self.get_parameter(source)

    def state_dict(self, *args, **kwargs):  # type: ignore[no-untyped-def]
        state = super().state_dict(*args, **kwargs)
        for name in self.tied_parameters():
            state.pop(f"{kwargs.get('prefix', '')}{name}", None)  # saved once, under its source
        return state

    def _load_from_state_dict(self, state_dict, prefix, *args) -> None:  # type: ignore[no-untyped-def]
        for name, source in self.tied_parameters().items():
            if f"{prefix}{source}" not in state_dict:
                continue
            matrix = state_dict[f"{prefix}{source}"]
            other = state_dict.setdefault(f"{prefix}{name}", matrix)
            if other is not matrix and not torch.equal(other, matrix):  # the second would silently overwrite the first
                args[-1].append(f"{name} differs from {source}, to which the config ties it: {prefix or 'model'}")
                state_dict[f"{prefix}{name}"] = matrix
        super()._load_from_state_dict(state_dict, prefix, *args)

    def load_state_dict(self, *args, **kwargs):  # type: ignore[no-untyped-def]
        result = super().load_state_dict(*args, **kwargs)
        self.tie_weights()  # `assign=True` replaces the tied parameter by separate ones
        return result

"""Backends: ways to compute a kind of operation that are faster than the layers' own equations.

The equations are the reference, under the name "eager". A backend is a class in a file of this folder (or of your own, see
CONTRIBUTING.md), registered with `@backend`. `partwise.compute.backend_plan` chooses among them.
"""

import importlib
import pkgutil
from abc import ABC, abstractmethod
from typing import Any, ClassVar

from torch import nn

from partwise.compute.runtime import Runtime
from partwise.kernels.mlp import ACTIVATIONS
from partwise.parts.operations import OperationSpec, ShortConvSpec, nested

KINDS = ("block", "attention", "ffn")
"""The kinds of operations of training, each with a setting `train.KIND_backend`."""

NO_KERNELS = "the C++ kernels need a CPU and a C++ compiler"


class Backend(ABC):
    """One way to compute operations of one kind."""

    kind: ClassVar[str]
    name: ClassVar[str]

    def rank(self, runtime: Runtime) -> int:
        """The order in speed: of the backends that support an operation, the one of the highest rank computes it.

        The layers' own equations have rank 0; a backend below is used only if the settings name it.
        """
        return 1

    @abstractmethod
    def unsupported(self, spec: OperationSpec, runtime: Runtime) -> str | None:
        """Why the backend does not compute this operation, as a clause, or None if it does."""

    def slower(self, spec: OperationSpec, runtime: Runtime) -> str | None:
        """Why another backend is faster on this machine, as a clause, or None; ignored if the settings name this backend."""
        return None

    @abstractmethod
    def bind(self, module: nn.Module, spec: OperationSpec) -> Any:
        """The backend of one layer, with the methods that `partwise.parts.operations.Operation` calls."""


BACKENDS: dict[str, dict[str, Backend]] = {kind: {} for kind in KINDS}
"""Kind -> name -> backend."""


def backend(cls: type[Backend]) -> type[Backend]:
    """Register a backend under its kind and name."""
    BACKENDS[cls.kind][cls.name] = cls()
    return cls


def backend_names(kind: str) -> list[str]:
    """The values of `train.KIND_backend`."""
    return ["auto", "eager", *BACKENDS[kind]]


def known_activation(activation: str) -> str | None:
    """The rule of every backend that computes MLPs in C++."""
    return None if activation in ACTIVATIONS else f"only the activations {', '.join(ACTIVATIONS)} are supported"


def token_shift(short_conv: OperationSpec | None) -> str | None:
    """The rule of every backend that computes whole blocks in C++."""
    return None if short_conv is None else nested(ShortConvSpec, kind=("token_shift",))(short_conv)


for module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{module.name}")

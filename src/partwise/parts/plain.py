"""Plain modules as parts: `@part("mine", family="ffn")` above an `nn.Module` with `__init__(d_model, ...)`, `forward(x)`."""

import inspect
from typing import Any, ClassVar, get_type_hints

from pydantic import create_model
from torch import Tensor, nn

from partwise.config import ConfigError, Part, register_plain_classes
from partwise.parts.contracts import FeedForward, LayerContext, Norm

TYPES = (bool, int, float, str)
"""The types of options that are checked."""


def recipe_of(cls: type, family: str) -> type[Part]:
    """The recipe of a module: its options are the arguments of `__init__` after the width. Raises ConfigError."""
    bases: dict[str, type[Part]] = {"ffn": PlainFeedForward, "norm": PlainNorm}
    if family not in bases or not issubclass(cls, nn.Module):
        what = f"a recipe of {family}" if issubclass(cls, nn.Module) else f"a subclass of nn.Module, not {cls.__name__}"
        raise ConfigError(
            f"@part(..., family={family!r}) takes a plain nn.Module of the families {' and '.join(bases)}: "
            f"write {what} (docs/extending.md)"
        )
    make: Any = create_model  # a type checker would take its result for a class of the variable's name
    recipe = make(cls.__name__, __base__=bases[family], __module__=cls.__module__, **options_of(cls))
    recipe.__qualname__, recipe.__doc__ = cls.__qualname__, cls.__doc__
    recipe.module = with_context(cls) if family == "ffn" else cls
    found: type[Part] = recipe
    return found


def options_of(cls: type) -> dict[str, Any]:
    """Name -> type and default of the arguments of `__init__` after `self` and the width. Raises ConfigError."""
    initializer: Any = cls.__init__  # type: ignore[misc]
    parameters = list(inspect.signature(initializer).parameters.values())[1:]
    plain = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    if not parameters or parameters[0].kind is inspect.Parameter.KEYWORD_ONLY:
        raise ConfigError(f"{cls.__name__}.__init__ takes no width: write __init__(self, d_model, ...)")
    hints = get_type_hints(initializer)
    options: dict[str, Any] = {}
    for parameter in parameters[1:]:
        if parameter.kind in plain:
            if parameter.name == "part" or hasattr(Part, parameter.name) or parameter.name.startswith("_"):
                raise ConfigError(
                    f"{cls.__name__}.__init__: {parameter.name!r} cannot be an option: rename the argument"
                )
            required = parameter.default is inspect.Parameter.empty
            guessed = type(parameter.default) if isinstance(parameter.default, TYPES) else Any
            options[parameter.name] = (hints.get(parameter.name, guessed), ... if required else parameter.default)
    return options


def with_context(cls: type[nn.Module]) -> type[nn.Module]:
    """The module, called with the context of a forward pass as well, which it does not read."""
    arguments = list(inspect.signature(cls.forward).parameters.values())[1:]
    if len(arguments) > 1 or any(each.kind is inspect.Parameter.VAR_POSITIONAL for each in arguments):
        return cls

    def forward(self: nn.Module, x: Tensor, ctx: object = None) -> Tensor:
        result: Tensor = cls.forward(self, x)
        return result

    return type(cls.__name__, (cls,), {"forward": forward, "__module__": cls.__module__})


class PlainFeedForward(FeedForward):
    module: ClassVar[type[nn.Module]] = nn.Identity

    def build(self, layer_ctx: LayerContext) -> nn.Module:
        return build(self, layer_ctx.d_model)


class PlainNorm(Norm):
    module: ClassVar[type[nn.Module]] = nn.Identity

    def build(self, width: int) -> nn.Module:
        return build(self, width)


def build(recipe: Any, width: int) -> nn.Module:
    options = {name: getattr(recipe, name) for name in type(recipe).model_fields}
    layer: nn.Module = type(recipe).module(width, **options)
    return layer


register_plain_classes(recipe_of)

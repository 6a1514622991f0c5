"""Configuration classes and the registry of parts.

A *part* is anything that can be swapped: it has a family (`ffn`), a name (`swiglu`) and options. A *recipe* is its
configuration class; the registry maps (family, name) to the recipe. This file does not import torch.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any, ClassVar, Generic, Self, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler, ValidationError, model_validator
from pydantic_core import core_schema

from partwise.config.invalid import first_errors, message_of
from partwise.config.neutral import neutral_values, reading_stored
from partwise.config.suggestions import did_you_mean, meanings, one_of
from partwise.config.yaml import ConfigError, parse_value, show

T = TypeVar("T")


def once_per_value(check: Callable[[T], object]) -> Callable[[T], None]:
    """The check, which raises for an invalid value, without repeating it for values that passed."""

    @lru_cache(maxsize=1024)
    def passed(value: T) -> None:
        check(value)

    def checked(value: T) -> None:
        try:
            hash(value)
        except TypeError:  # such as a part with a list among its options
            check(value)
        else:
            passed(value)

    return checked


NAME_WIDTH = 32
"""The columns of a setting's name in a printed configuration, `train.activation_checkpointing` included."""


class Config(BaseModel):
    """A frozen, typed settings object that rejects unknown options."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False, protected_namespaces=())

    @model_validator(mode="before")
    @classmethod
    def _complete(cls, values: Any) -> Any:
        """Stored values with the neutral value of each option that they lack."""
        if not reading_stored.get() or not isinstance(values, Mapping):
            return values
        return {**neutral_values(cls), **values}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], prefix: str = "") -> Self:
        """Validate plain values. Raises ConfigError naming the path of the first invalid value."""
        if not isinstance(values, Mapping):
            raise ConfigError(f"{prefix or 'the configuration'}={show(values)}: expected options, as {{NAME: VALUE}}")
        try:
            return cls.model_validate(dict(values))
        except ValidationError as error:
            raise ConfigError(_explain(cls, error, values, prefix)) from None

    def to_dict(self) -> dict[str, Any]:
        """Plain values, the inverse of `from_dict`; a part has its name under the key `part`."""
        return {name: _plain(getattr(self, name)) for name in type(self).model_fields}

    @classmethod
    def from_stored(cls, values: Mapping[str, Any], prefix: str = "") -> Self:
        """As `from_dict`, of values that this or an older version stored: an absent option has its neutral value."""
        token = reading_stored.set(True)
        try:
            return cls.from_dict(values, prefix)
        finally:
            reading_stored.reset(token)

    def to_stored(self) -> dict[str, Any]:
        """As `to_dict`, without options at their neutral values: what is stored and hashed. The inverse of `from_stored`."""
        neutral = neutral_values(type(self))
        values = {name: getattr(self, name) for name in type(self).model_fields}
        return {
            name: _plain(value, stored=True)
            for name, value in values.items()
            if name not in neutral or _plain(value) != _plain(neutral[name])
        }

    def __str__(self) -> str:
        """One setting per line, as `NAME VALUE`; a part with its options."""
        rows = [(name, getattr(self, name)) for name in type(self).model_fields]
        return "\n".join(
            f"{name:{NAME_WIDTH}}{value if isinstance(value, Part | Pattern) else _shown(value)}"
            for name, value in rows
        )

    def parts(self) -> "Iterator[Part]":
        """The recipes in the fields of this configuration, all those of a pattern included."""
        for name in type(self).model_fields:
            value = getattr(self, name)
            yield from value.recipes if isinstance(value, Pattern) else [value] if isinstance(value, Part) else []


def _plain(value: Any, stored: bool = False) -> Any:
    if isinstance(value, Config):
        return value.to_stored() if stored else value.to_dict()
    if isinstance(value, Pattern):
        recipes = [_plain(recipe, stored) for recipe in value.recipes]
        return {"cycle": recipes} if value.cycle else recipes
    if isinstance(value, tuple | list):
        return [_plain(item, stored) for item in value]
    return value


def _shown(value: Any) -> str:
    """A value on one line, as `partwise show` prints it."""
    return f"{value:.6g}" if isinstance(value, float) else "none" if value is None else show(_plain(value))


def _explain(cls: type[Config], error: ValidationError, values: Mapping[str, Any], prefix: str) -> str:
    keys, errors = first_errors(error, values)
    first = errors[0]
    path = ".".join([prefix, *map(str, keys)] if prefix else map(str, keys))
    if first["type"] == "extra_forbidden":
        known = [field.alias or name for name, field in cls.model_fields.items()] if len(keys) == 1 else []
        word = str(keys[-1])
        if meant := meanings(word, "settings", option_paths()):
            own = [each for each in meant if each.rpartition(" ")[2].startswith(f"{prefix}.")]
            return f"unknown option {path!r}{one_of(own or meant)}"
        return f"unknown option {path!r}{did_you_mean(word, known) if known else ''}"
    if first["type"] == "missing":
        return f"{path!r} is missing: give it a value, as in {path}=..."
    if not keys or (first["type"] == "value_error" and isinstance(first["input"], Mapping)):
        # about several options, which the message names
        return f"{path}: {message_of(errors)}".removeprefix(": ")
    return f"{show(path)}={show(first['input'])}: {message_of(errors)}"


REGISTRY: dict[str, dict[str, type["Part"]]] = {}
"""family -> name -> recipe."""

C = TypeVar("C", bound=type)


class Part(Config):
    """Base class of recipes. A direct subclass defines a `family`; `@part(name)` registers a recipe in it.

    A field typed as a family accepts a name, a mapping with the key `part`, or a recipe.
    """

    family: ClassVar[str]
    name: ClassVar[str] = ""
    by_layer: ClassVar[bool] = False  # whether the layers of a stack may use different recipes
    needs_text: ClassVar[bool] = False  # whether it needs a running text for training, not pairs

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        # pydantic would dump a recipe in a field typed as its family as `{}`: serialize with its own `to_dict` instead
        if "family" not in cls.__dict__:
            return handler(source)
        return core_schema.no_info_plain_validator_function(
            cls.resolve, serialization=core_schema.plain_serializer_function_ser_schema(lambda value: value.to_dict())
        )

    @classmethod
    def resolve(cls, value: Any) -> "Part":
        """A recipe of this family from a name, a mapping or a recipe. Raises ConfigError."""
        if isinstance(value, cls):
            return value
        if isinstance(value, Part):
            raise ConfigError(f"{cls.family}={value.name}: this part belongs to the family {value.family!r}")
        if isinstance(value, str):
            value = {"part": value}
        if not isinstance(value, Mapping) or not isinstance(value.get("part"), str):
            raise ConfigError(f"{cls.family}={show(value)}: expected a part's name, or {{part: NAME, OPTION: VALUE}}")
        options = dict(value)
        return find_part(cls.family, options.pop("part")).from_dict(options, prefix=cls.family)

    def to_dict(self) -> dict[str, Any]:
        return {"part": self.name, **super().to_dict()}

    def to_stored(self) -> dict[str, Any]:
        return {"part": self.name, **super().to_stored()}

    def __str__(self) -> str:
        options = " ".join(f"{key}={_shown(getattr(self, key))}" for key in type(self).model_fields)
        return f"{self.name} {options}".strip()


F = TypeVar("F", bound=Part)


@dataclass(frozen=True)
class Pattern(Generic[F]):
    """Recipes of one family by layer: one per layer, or a cycle that is repeated over the layers."""

    recipes: tuple[F, ...]
    cycle: bool

    def __str__(self) -> str:
        return f"{'cycle' if self.cycle else 'layers'} of [{'; '.join(map(str, self.recipes))}]"


class _ByLayer:
    """Pydantic schema of a field that holds one recipe for all layers, a list, or `{cycle: [...]}`."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        family: type[Part] = get_args(source)[0]

        def resolve(value: Any) -> Part | Pattern[Part]:
            if isinstance(value, Pattern):
                return value
            cycle = isinstance(value, Mapping) and set(value) == {"cycle"}
            if not cycle and not isinstance(value, list | tuple):
                return family.resolve(value)
            items = value["cycle"] if cycle else value
            if not isinstance(items, list | tuple) or not items:
                raise ConfigError(
                    f"{family.family}={show(value)}: give a list of parts, one per layer, or {{cycle: [...]}}"
                )
            return Pattern(tuple(family.resolve(item) for item in items), cycle)

        return core_schema.no_info_plain_validator_function(
            resolve, serialization=core_schema.plain_serializer_function_ser_schema(_plain)
        )


ByLayer = Annotated[F | Pattern[F], _ByLayer()]
"""The type of a field that holds one recipe for all layers, or a `Pattern`."""


def recipes_by_layer(value: F | Pattern[F], n_layers: int) -> list[F]:
    """The recipe of each layer. Raises ConfigError if a list does not have `n_layers` entries."""
    if not isinstance(value, Pattern):
        return [value] * n_layers
    if value.cycle:
        return [value.recipes[layer % len(value.recipes)] for layer in range(n_layers)]
    if len(value.recipes) != n_layers:
        raise ConfigError(
            f"{value.recipes[0].family} lists {len(value.recipes)} parts for {n_layers} layers: give one for each, or "
            "{cycle: [...]}"
        )
    return list(value.recipes)


def part(name: str, family: str | None = None) -> Callable[[C], C]:
    """Register a recipe under `name` in the family it derives from: `@part("mine") class Mine(FeedForward)`.

    With a `family`, `ffn` or `norm`, register a plain `nn.Module`: `__init__(d_model, ...)`, `forward(x)`.
    """

    def register(cls: C) -> C:
        if issubclass(cls, Part):
            register_recipe(name, cls)
        elif family is None:
            raise ConfigError(
                f'the part {name!r} has no family: write @part({name!r}, family="ffn") or family="norm" above a plain '
                "nn.Module, or derive a recipe from FeedForward, Norm or another family"
            )
        elif _make_recipe:
            register_recipe(name, _make_recipe[0](cls, family))
        else:
            _waiting.append((name, cls, family))
        return cls

    return register


def register_recipe(name: str, recipe: type[Part]) -> None:
    """Add a recipe to the registry. Raises ConfigError."""
    if not hasattr(recipe, "family"):
        raise ConfigError(f"the part {name!r} has no family: derive it from FeedForward, Norm or another family")
    if parse_value(name) != name or not name.isprintable():
        raise ConfigError(f"{recipe.family}={name!r} would not be read as a part's name: use a plain word")
    known = REGISTRY.setdefault(recipe.family, {})
    # registering the same class again is fine: a file or a notebook cell was rerun
    if name in known and _identity(known[name]) != _identity(recipe):
        raise ConfigError(f"{recipe.family}={name} is already registered: choose another name")
    recipe.name = name
    known[name] = recipe


_waiting: list[tuple[str, type, str]] = []  # classes that were registered before torch was imported
_make_recipe: list[Callable[[type, str], type[Part]]] = []


def register_plain_classes(make_recipe: Callable[[type, str], type[Part]]) -> None:
    """Set the function that turns a class into a recipe, for later calls of `part` and for those that wait for it."""
    _make_recipe[:] = [make_recipe]
    for name, cls, family in _waiting:
        register_recipe(name, make_recipe(cls, family))
    _waiting.clear()


def _identity(recipe: type[Part]) -> tuple[str, str]:
    return recipe.__module__, recipe.__qualname__


def find_part(family: str, name: str) -> type[Part]:
    """The recipe registered as `name`, in any case. Raises ConfigError with what the name may mean."""
    known = REGISTRY.get(family, {})
    if name in known:
        return known[name]
    same = [each for each in known if each.lower() == name.lower()]
    if len(same) == 1:
        return known[same[0]]
    elsewhere = [f"{other}={name}" for other in REGISTRY if name in REGISTRY[other]]
    if meant := elsewhere or meanings(name, "parts"):
        raise ConfigError(f"unknown part {family}={show(name)}{one_of(meant)}")
    raise ConfigError(
        f"unknown part {family}={show(name)}{did_you_mean(name, known)}; --import FILE loads custom parts"
    )


def option_paths() -> list[str]:
    """The options of all parts, each with the first part that has it, such as `positions=rope positions.theta`."""
    first: dict[str, str] = {}
    for family, recipes in REGISTRY.items():
        for name, recipe in recipes.items():
            for option in recipe.model_fields:
                first.setdefault(f"{family}.{option}", f"{family}={name} {family}.{option}")
    return [*first.values()]


def digest(value: Any) -> str:
    """SHA-256 of plain values, independent of key order: identifies a configuration."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()

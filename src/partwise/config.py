"""Configuration: typed recipes, the registry of parts, and overrides such as `ffn=swiglu ffn.expansion=4`.

A *part* is whatever can be swapped: it has a family (`ffn`), a name (`swiglu`) and options of its own. The registry is
only the table from (family, name) to the recipe. Everything else is a number. This file imports no torch.
"""

import difflib
import hashlib
import importlib
import importlib.util
import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler, ValidationError
from pydantic_core import core_schema


class ConfigError(Exception):
    """The user asked for something that cannot be; the message is one line that names the value and the remedy."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """'; did you mean X?' when a known word is close, then the known words."""
    known = sorted(known)
    close = difflib.get_close_matches(word, known, n=1)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    return f"{hint} (known: {', '.join(known) or 'none'})"


class Config(BaseModel):
    """A frozen, typed settings object that refuses what it does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False, protected_namespaces=())

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], prefix: str = "") -> Self:
        """Validate plain values. Raises ConfigError naming the path of the first value that does not fit."""
        if not isinstance(values, Mapping):
            raise ConfigError(f"{prefix or 'the configuration'}={_show(values)}: expected options, as {{NAME: VALUE}}")
        try:
            return cls.model_validate(dict(values))
        except ValidationError as error:
            raise ConfigError(_explain(cls, error, prefix)) from None

    def to_dict(self) -> dict[str, Any]:
        """Plain values, from which `from_dict` makes an equal object; parts carry their name as `part`."""
        return {name: _plain(getattr(self, name)) for name in type(self).model_fields}


def _plain(value: Any) -> Any:
    if isinstance(value, Config):
        return value.to_dict()
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    return value


def _explain(cls: type[Config], error: ValidationError, prefix: str) -> str:
    first = error.errors(include_url=False)[0]
    path = ".".join([prefix, *map(str, first["loc"])] if prefix else map(str, first["loc"]))
    if first["type"] == "extra_forbidden":
        return f"unknown option {path!r}{did_you_mean(str(first['loc'][-1]), cls.model_fields)}"
    if first["type"] == "missing":
        return f"{path!r} is missing: give it a value, as in {path}=..."
    message = " ".join(first["msg"].removeprefix("Value error, ").split())
    return f"{_show(path)}={_show(first['input'])}: {message[:1].lower()}{message[1:]}"


def _show(value: Any) -> str:
    """A value on one line of a message, whatever it holds."""
    try:
        shown = value if isinstance(value, str) and value.isprintable() else json.dumps(value, default=str)
    except TypeError:  # a mapping whose keys are dates or bytes
        shown = repr(value)
    return shown if len(shown) <= 200 else f"{shown[:200]}..."


REGISTRY: dict[str, dict[str, type["Part"]]] = {}
"""family -> name -> recipe."""

P = TypeVar("P", bound="type[Part]")


class Part(Config):
    """A recipe for something that can be swapped. A direct subclass names its `family`; `@part(name)` registers a kind.

    A field of a family's type accepts a bare name, a mapping with the key `part`, or a recipe.
    """

    family: ClassVar[str]
    name: ClassVar[str] = ""

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        # pydantic would dump a recipe stored in a field of its family's type as `{}`: serialise by the tag instead
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
            raise ConfigError(f"{cls.family}={value.name}: that is a part of the family {value.family!r}")
        if isinstance(value, str):
            value = {"part": value}
        if not isinstance(value, Mapping) or not isinstance(value.get("part"), str):
            raise ConfigError(f"{cls.family}={_show(value)}: expected a part's name, or {{part: NAME, OPTION: VALUE}}")
        options = dict(value)
        return find_part(cls.family, options.pop("part")).from_dict(options, prefix=cls.family)

    def to_dict(self) -> dict[str, Any]:
        return {"part": self.name, **super().to_dict()}

    def __str__(self) -> str:
        options = " ".join(f"{key}={_show(_plain(getattr(self, key)))}" for key in type(self).model_fields)
        return f"{self.name} {options}".strip()


def part(name: str) -> Callable[[P], P]:
    """Register a recipe under `name` in the family it derives from: `@part("mine") class Mine(FeedForward)`."""

    def register(recipe: P) -> P:
        if not hasattr(recipe, "family"):
            raise ConfigError(f"the part {name!r} has no family: derive it from FeedForward, Norm or another family")
        if parse_value(name) != name or not name.isprintable():
            raise ConfigError(f"a part {name!r} could not be chosen by {recipe.family}=: take a word as its name")
        known = REGISTRY.setdefault(recipe.family, {})
        # the same class once more is a file or a notebook's cell that ran again
        if name in known and _identity(known[name]) != _identity(recipe):
            raise ConfigError(f"a part {name!r} already stands at {recipe.family}=: choose another name")
        recipe.name = name
        known[name] = recipe
        return recipe

    return register


def _identity(recipe: type[Part]) -> tuple[str, str]:
    return recipe.__module__, recipe.__qualname__


def find_part(family: str, name: str) -> type[Part]:
    """The recipe registered as `name`. Raises ConfigError with the closest known name."""
    known = REGISTRY.get(family, {})
    if name not in known:
        raise ConfigError(
            f"unknown part {family}={_show(name)}{did_you_mean(name, known)}; --import FILE loads parts of your own"
        )
    return known[name]


def import_parts(source: str) -> None:
    """Import the user's own parts from a module name or a `.py` file, because the user asked for it by `--import`."""
    path = Path(source)
    try:
        if path.suffix == ".py":
            _run_file(path)
        else:
            if "" not in sys.path:
                sys.path.insert(0, "")
            importlib.import_module(source)
    except ConfigError:
        raise
    except Exception as error:
        reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise ConfigError(
            f"--import {_show(source)}: {_show(reason)}; give a module's name or the path of a .py file that runs"
        ) from error


def _run_file(path: Path) -> None:
    if not path.is_file():
        raise ConfigError(f"--import {_show(str(path))}: no such file")
    # named after its whole path: a file `types.py` must not stand in for the module of that name
    name = f"partwise_import_{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:12]}_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # pydantic looks the names in annotations up there
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise


class _Yaml(yaml.SafeLoader):
    """The safe loader with YAML 1.2's scalars: `3e-4` is a number, and only `true` and `false` are booleans."""

    yaml_implicit_resolvers: dict[Any, Any] = {}  # noqa: RUF012 - as the base class declares it

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.events.AliasEvent):  # it could hold itself, or unfold without end
            raise yaml.YAMLError("aliases (*name) are not read: write the value out")
        return super().compose_node(parent, index)

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        mapping = super().construct_mapping(node, deep)
        if len(mapping) < len(node.value):  # the loader would keep the last and say nothing
            raise yaml.YAMLError(f"a key stands twice among {', '.join(map(str, mapping))}")
        return mapping


for _tag, _pattern, _first in (
    ("null", r"~|null|", ["~", "n", ""]),
    ("bool", r"true|false", list("tf")),
    ("int", r"[-+]?[0-9]+", list("-+0123456789")),
    ("float", r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", list("-+.0123456789")),
):
    _Yaml.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(f"^({_pattern})$"), _first)


def _construct_float(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> float:
    return float(str(loader.construct_scalar(node)))


def _construct_int(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> int:
    return int(str(loader.construct_scalar(node)), 10)  # YAML 1.1 would read 010 as 8


_Yaml.add_constructor("tag:yaml.org,2002:float", _construct_float)
_Yaml.add_constructor("tag:yaml.org,2002:int", _construct_int)


_UNREADABLE = (yaml.YAMLError, ValueError, LookupError, AttributeError, RecursionError)
"""What the loader raises for text that is no YAML, for an impossible value of a tag, and for endless nesting."""


def parse_value(text: str) -> Any:
    """A value as YAML 1.2 reads it: `3e-4` -> 0.0003, `true` -> True, `no` -> 'no', `{part: relu}` -> a mapping."""
    try:
        return yaml.load(text, Loader=_Yaml)
    except _UNREADABLE:
        return text


def read_yaml(path: Path) -> dict[str, Any]:
    """A YAML mapping from a file. Raises ConfigError."""
    shown = _show(str(path))
    try:
        values = yaml.load(path.read_text(encoding="utf-8"), Loader=_Yaml)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {shown}: {error}") from None
    except _UNREADABLE as error:
        raise ConfigError(f"{shown} is not YAML: {_show(' '.join(str(error).split()))}") from None
    if not isinstance(values, dict):
        raise ConfigError(f"{shown}: expected a mapping such as 'ffn: swiglu', found {type(values).__name__}")
    return values


Override = tuple[tuple[str, ...], Any]
"""A path such as ("ffn", "expansion") and the value to put there."""


def parse_overrides(words: Iterable[str]) -> list[Override]:
    """`["ffn=swiglu", "--train.lr=1e-3"]` -> paths and values. Raises ConfigError for a word without `=`."""
    overrides: list[Override] = []
    for word in words:
        key, equals, value = word.removeprefix("--").partition("=")
        if not equals or not re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", key):
            raise ConfigError(f"{word!r} is not an override: write KEY=VALUE, as in ffn=swiglu or train.lr=1e-3")
        overrides.extend(flatten({key: parse_value(value)}))
    return overrides


def flatten(values: Mapping[str, Any]) -> list[Override]:
    """Nested mappings as single overrides, so that a file and the command line mean the same.

    `{ffn: {part: swiglu, expansion: 4}}` replaces the part and tunes it; `{ffn: {expansion: 4}}` only tunes it.
    """
    overrides: list[Override] = []
    for key, value in values.items():
        path = tuple(str(key).split("."))
        if isinstance(value, Mapping) and value:
            overrides.extend((_at(path + tail), item) for tail, item in flatten(value))
        else:
            overrides.append((_at(path), value))
    return overrides


def _at(path: tuple[str, ...]) -> tuple[str, ...]:
    """`ffn.part` is `ffn`: a name given in either way replaces the part, and drops the old one's options."""
    return path[:-1] if path[-1] == "part" and path[:-1] and path[-2] in REGISTRY else path


def apply_overrides(base: Mapping[str, Any], overrides: Iterable[Override]) -> dict[str, Any]:
    """`base` (nested plain values) with every override applied; replacements come before options, whatever the order.

    A replaced part starts from its own defaults: no option of the old part survives. Raises ConfigError for a path that
    leads nowhere; unknown options of a part are found when the configuration is validated.
    """
    result: dict[str, Any] = json.loads(json.dumps(base))
    for path, value in sorted(overrides, key=lambda override: len(override[0])):
        node, whole = result, ".".join(path)
        for depth, key in enumerate(path[:-1]):
            if depth == 0 and key not in node:
                raise ConfigError(f"unknown option {whole!r}{did_you_mean(key, node)}")
            if isinstance(node.get(key), str) and key in REGISTRY:
                node[key] = {"part": node[key]}
            if not isinstance(node.get(key), dict):
                raise ConfigError(f"{_show(whole)}: {_show('.'.join(path[: depth + 1]))} has no options")
            node = node[key]
        if path[-1] not in node and len(path) == 1:
            raise ConfigError(f"unknown option {whole!r}{did_you_mean(whole, node)}")
        if isinstance(node.get(path[-1]), dict) and not (isinstance(value, str) and path[-1] in REGISTRY):
            expected = "a part's name, or options of its own" if path[-1] in REGISTRY else "options of its own"
            raise ConfigError(f"{_show(whole)}={_show(value)}: expected {expected}, as in {whole}.OPTION=VALUE")
        node[path[-1]] = value
    return result


def difference(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any, Any]]:
    """Every path at which two plain configurations differ: (path, old value, new value), `None` where it is absent.

    Where a part was swapped, its name comes first, then every option that was dropped or added by the swap.
    """
    rows: list[tuple[str, Any, Any]] = []
    for key in [*old, *(key for key in new if key not in old)]:
        before, after, path = old.get(key), new.get(key), f"{prefix}{key}"
        if isinstance(before, Mapping) or isinstance(after, Mapping):
            before, after = before or {}, after or {}
            if before.get("part") != after.get("part"):
                rows.append((path, before.get("part"), after.get("part")))
            old_options, new_options = ({k: v for k, v in side.items() if k != "part"} for side in (before, after))
            rows.extend(difference(old_options, new_options, prefix=f"{path}."))
        elif before != after or (key in old) != (key in new):
            rows.append((path, before, after))
    return rows


def digest(value: Any) -> str:
    """SHA-256 of plain values, independent of the order of keys: the identity of a configuration."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()

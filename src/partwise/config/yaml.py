"""YAML 1.2 values, from the command line or a file."""

import json
import re
from pathlib import Path
from typing import Any

import yaml

from partwise.config.reading import decode_text, read_file


class ConfigError(Exception):
    """An invalid user request; the message is one line that names the value and the remedy."""


def show(value: Any) -> str:
    """Format any value on a single line of at most about 200 characters, for messages."""
    try:
        shown = value if isinstance(value, str) and value.isprintable() else json.dumps(value, default=str)
    except TypeError:  # a mapping whose keys are dates or bytes
        shown = repr(value)
    return shown if len(shown) <= 200 else f"{shown[:200]}..."


class _Yaml(yaml.SafeLoader):
    """The safe loader with YAML 1.2's scalars: `3e-4` is a number, and only `true` and `false` are booleans."""

    yaml_implicit_resolvers: dict[Any, Any] = {}  # noqa: RUF012 - declared like this in the base class

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.events.AliasEvent):  # an alias could be recursive or expand exponentially
            raise yaml.YAMLError("aliases (*name) are not supported: write out the value")
        return super().compose_node(parent, index)

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        mapping = super().construct_mapping(node, deep)
        if len(mapping) < len(node.value):  # the loader would silently keep the last one
            raise yaml.YAMLError(f"duplicate key among {', '.join(map(str, mapping))}")
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


MAX_YAML_BYTES = 1 << 24

_UNREADABLE = (yaml.YAMLError, ValueError, LookupError, AttributeError, RecursionError)
"""Exceptions that the loader raises for invalid YAML, a value that does not match its tag, or excessive nesting."""


def parse_value(text: str) -> Any:
    """Parse a YAML 1.2 value: `3e-4` -> 0.0003, `true` -> True, `no` -> 'no', `{part: relu}` -> a mapping.

    Lists of lines, `- x`, are text here, as in `data.operations=-`: on a command line a list has brackets.
    """
    if text.startswith("-") and text[1:2] in ("", " "):
        return text
    try:
        return yaml.load(text, Loader=_Yaml)
    except _UNREADABLE:
        return text


def read_yaml(path: Path) -> dict[str, Any]:
    """Read a YAML mapping. Raises ConfigError."""
    shown = show(str(path))
    try:
        text = decode_text(read_file(path, MAX_YAML_BYTES))
    except OSError as error:
        raise ConfigError(f"cannot read {shown}: {error.strerror or error}: give a YAML file") from None
    except UnicodeError as error:
        raise ConfigError(f"cannot read {shown}: {error}") from None
    return parse_mapping(text, shown)


def parse_mapping(text: str, source: str) -> dict[str, Any]:
    """Parse a YAML mapping; `source` names it in messages. Raises ConfigError."""
    try:
        values = yaml.load(text, Loader=_Yaml)
    except _UNREADABLE as error:
        raise ConfigError(f"{source} is not YAML: {show(' '.join(str(error).split()))}") from None
    if not isinstance(values, dict):
        raise ConfigError(f"{source}: expected a mapping such as 'ffn: swiglu', found {type(values).__name__}")
    return values

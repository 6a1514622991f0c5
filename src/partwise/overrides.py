"""Overrides such as `ffn=swiglu ffn.expansion=4`, and the difference between two configurations."""

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from partwise.config import REGISTRY, did_you_mean
from partwise.reading import ConfigError, parse_value, show

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
        if isinstance(value, Mapping) and value and not _is_pattern(path, value):
            overrides.extend((_at(path + tail), item) for tail, item in flatten(value))
        else:
            overrides.append((_at(path), value))
    return overrides


def _is_pattern(path: tuple[str, ...], value: Any) -> bool:
    """Whether a value gives a part's layers one by one: a list, or `{cycle: [...]}`."""
    return path[-1] in REGISTRY and (
        isinstance(value, list) or (isinstance(value, Mapping) and set(value) == {"cycle"})
    )


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
        if path[0] not in result:
            raise ConfigError(f"unknown option {'.'.join(path)!r}{did_you_mean(path[0], result)}")
        _put(result, path, value, 0)
    return result


def _put(node: dict[str, Any], path: tuple[str, ...], value: Any, depth: int) -> None:
    """Set the option at `path`, of which the first `depth` keys led to this node."""
    key, whole = path[depth], ".".join(path)
    old, is_part = node.get(key), key in REGISTRY
    if depth == len(path) - 1:
        replaces = is_part and (isinstance(value, str) or _is_pattern(path, value))
        if isinstance(old, dict) and not replaces:
            expected = "a part's name, or options of its own" if is_part else "options of its own"
            raise ConfigError(f"{show(whole)}={show(value)}: expected {expected}, as in {whole}.OPTION=VALUE")
        node[key] = value
        return
    if is_part and _is_pattern((key,), old):  # an option of a part that differs by layer is meant for each of them
        recipes = old["cycle"] if isinstance(old, dict) else old
        if isinstance(recipes, list):
            for place in range(len(recipes)):
                holder = {key: recipes[place]}
                _put(holder, path, value, depth)
                recipes[place] = holder[key]
            return
    if is_part and isinstance(old, str):
        node[key] = old = {"part": old}
    if not isinstance(old, dict):
        raise ConfigError(f"{show(whole)}: {show('.'.join(path[: depth + 1]))} has no options")
    _put(old, path, value, depth + 1)


def difference(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any, Any]]:
    """Every path at which two plain configurations differ: (path, old value, new value), `None` where it is absent.

    Where a part was swapped, its name comes first, then every option that was dropped or added by the swap.
    """
    rows: list[tuple[str, Any, Any]] = []
    for key in [*old, *(key for key in new if key not in old)]:
        before, after, path = old.get(key), new.get(key), f"{prefix}{key}"
        if _is_pattern((key,), before) or _is_pattern((key,), after):
            rows.extend([(path, before, after)] if before != after else [])
        elif isinstance(before, Mapping) or isinstance(after, Mapping):
            before, after = before or {}, after or {}
            if before.get("part") != after.get("part"):
                rows.append((path, before.get("part"), after.get("part")))
            old_options, new_options = ({k: v for k, v in side.items() if k != "part"} for side in (before, after))
            rows.extend(difference(old_options, new_options, prefix=f"{path}."))
        elif before != after or (key in old) != (key in new):
            rows.append((path, before, after))
    return rows


def parse_grid(texts: Iterable[str]) -> list[list[str]]:
    """`n_layers=2,4` and `train.steps=200,400` -> the words of each. Raises ConfigError."""
    sides = []
    for text in texts:
        path, equals, values = text.partition("=")
        found = [value.strip() for value in values.split(",") if value.strip()]
        if not equals or not path or not found or len(set(found)) < len(found):
            raise ConfigError(f"grid {text}: give a setting and its different values, as in n_layers=2,4")
        sides.append([f"{path.removeprefix('--')}={value}" for value in found])
    return sides

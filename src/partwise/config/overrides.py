"""Overrides such as `ffn=swiglu ffn.expansion=4`, and the difference between two configurations."""

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from partwise.config.parts import REGISTRY, option_paths
from partwise.config.suggestions import did_you_mean, meanings, one_of, with_value
from partwise.config.yaml import ConfigError, parse_value, show

Override = tuple[tuple[str, ...], Any]
"""The path of an option, such as ("ffn", "expansion"), and its new value."""


def parse_overrides(words: Iterable[str]) -> list[Override]:
    """Parse `["ffn=swiglu", "--train.lr=1e-3"]` into paths and values. Raises ConfigError for a word without `=`."""
    overrides: list[Override] = []
    words = list(words)
    for index, word in enumerate(words):
        key, equals, value = word.removeprefix("--").partition("=")
        if not equals or not re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", key):
            raise ConfigError(f"{word!r} is not an override: {_remedy(word, words[index + 1 :])}")
        overrides.extend(flatten({key: parse_value(value)}))
    return overrides


def _remedy(word: str, following: list[str]) -> str:
    """What to write for a word without `=`, such as `--seed` before 5."""
    value = following[0] if following and "=" not in following[0] else "VALUE"
    meant = meanings(word, "settings", option_paths()) if word.startswith("-") else []
    shown = [each if each.startswith("--") else with_value(each, word, value) for each in meant]
    return f"write {' or '.join(shown)}" if shown else "write KEY=VALUE, as in ffn=swiglu or train.lr=1e-3"


def distinct(overrides: list[Override]) -> list[Override]:
    """The overrides. Raises ConfigError if two give one path different values."""
    found: dict[tuple[str, ...], Any] = {}
    for path, value in overrides:
        earlier = found.setdefault(path, value)
        if repr(earlier) != repr(value):
            key = ".".join(path)
            varies = key in REGISTRY and key not in ("data", "tokenizer")  # these are common to all arms
            arm = f"; in compare, --arm {key}={show(value)} adds a variant" if varies else ""
            raise ConfigError(f"{show(key)} is given twice, as {show(earlier)} and {show(value)}: keep one{arm}")
    return overrides


def flatten(values: Mapping[str, Any]) -> list[Override]:
    """Flatten nested mappings into overrides, so that a file and the command line have the same meaning.

    `{ffn: {part: swiglu, expansion: 4}}` replaces the part and sets an option; `{ffn: {expansion: 4}}` only sets it.
    """
    overrides: list[Override] = []
    for key, value in values.items():
        path = tuple(str(key).split("."))
        if isinstance(value, Mapping) and value and not _is_pattern(path, value):
            overrides.extend((_option_path(path + tail), item) for tail, item in flatten(value))
        else:
            overrides.append((_option_path(path), _booleans(value)))
    return overrides


def _booleans(value: Any) -> Any:
    """A value with Python's `True` and `False`, which YAML 1.2 reads as text, as booleans."""
    if isinstance(value, list):
        return [_booleans(each) for each in value]
    if isinstance(value, Mapping):
        return {key: _booleans(each) for key, each in value.items()}
    return {"True": True, "False": False}.get(value, value) if isinstance(value, str) else value


def _is_pattern(path: tuple[str, ...], value: Any) -> bool:
    """Whether a value lists a family's parts by layer: a list, or `{cycle: [...]}`."""
    return path[-1] in REGISTRY and (
        isinstance(value, list) or (isinstance(value, Mapping) and set(value) == {"cycle"})
    )


def _option_path(path: tuple[str, ...]) -> tuple[str, ...]:
    """Map `ffn.part` to `ffn`: either spelling replaces the part and drops the old part's options."""
    return path[:-1] if path[-1] == "part" and path[:-1] and path[-2] in REGISTRY else path


def apply_overrides(base: Mapping[str, Any], overrides: Iterable[Override]) -> dict[str, Any]:
    """Apply overrides to `base` (nested plain values): parts are replaced before options are set, in any order given.

    A new part starts from its own defaults; no option of the old part is kept. Raises ConfigError for an unknown path;
    unknown options of a part are detected when the configuration is validated.
    """
    result: dict[str, Any] = json.loads(json.dumps(base))
    for path, value in sorted(overrides, key=lambda override: len(override[0])):
        if path[0] not in result:
            raise ConfigError(f"unknown option {'.'.join(path)!r}{_suggestion(path, value, result)}")
        _set_option(result, path, value, 0)
    return result


def _suggestion(path: tuple[str, ...], value: Any, settings: Mapping[str, Any]) -> str:
    """Suggestions for an unknown path: an option of a part in the configuration, or of another part."""
    here = [".".join(each) for each, _ in flatten(settings)]
    meant = meanings(path[-1], "settings", here) or meanings(path[-1], "settings", option_paths())
    return one_of([with_value(each, path[-1], show(value)) for each in meant]) or did_you_mean(path[0], settings)


def _set_option(node: dict[str, Any], path: tuple[str, ...], value: Any, depth: int) -> None:
    """Set the option at `path`; its first `depth` keys lead to `node`."""
    key, full_path = path[depth], ".".join(path)
    old, is_part = node.get(key), key in REGISTRY
    if depth == len(path) - 1:
        replaces = is_part and (isinstance(value, str) or _is_pattern(path, value))
        if isinstance(old, dict) and not replaces:
            expected = "a part's name or its options" if is_part else "options"
            raise ConfigError(f"{show(full_path)}={show(value)}: expected {expected}, as in {full_path}.OPTION=VALUE")
        node[key] = value
        return
    if is_part and _is_pattern((key,), old):  # set the option in the recipe of every layer
        recipes = old["cycle"] if isinstance(old, dict) else old
        if isinstance(recipes, list):
            for index in range(len(recipes)):
                holder = {key: recipes[index]}
                _set_option(holder, path, value, depth)
                recipes[index] = holder[key]
            return
    if is_part and isinstance(old, str):
        node[key] = old = {"part": old}
    if not isinstance(old, dict):
        raise ConfigError(f"{show(full_path)}: {show('.'.join(path[: depth + 1]))} has no options")
    _set_option(old, path, value, depth + 1)


def difference(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any, Any]]:
    """The differences of two plain configurations: (path, old value, new value), with `None` for an absent value.

    For a swapped part the name comes first, then every option that the swap removed, added or changed.
    """
    rows: list[tuple[str, Any, Any]] = []
    for key in [*old, *(key for key in new if key not in old)]:
        before, after, path = old.get(key), new.get(key), f"{prefix}{key}"
        if _is_pattern((key,), before) or _is_pattern((key,), after):
            rows.extend([(path, before, after)] if before != after else [])
        elif {isinstance(each, Mapping) for each in (before, after) if each is not None} == {True}:
            before, after = before or {}, after or {}
            if before.get("part") != after.get("part"):
                rows.append((path, before.get("part"), after.get("part")))
            old_options, new_options = ({k: v for k, v in side.items() if k != "part"} for side in (before, after))
            rows.extend(difference(old_options, new_options, prefix=f"{path}."))
        elif before != after or (key in old) != (key in new):
            rows.append((path, before, after))
    return rows


def parse_grid(texts: Iterable[str]) -> list[list[str]]:
    """Parse `n_layers=2,4` and `train.steps=200,400` into the overrides of each grid axis. Raises ConfigError."""
    grid = []
    for text in texts:
        path, equals, list_of_values = text.partition("=")
        values = [value.strip() for value in list_of_values.split(",") if value.strip()]
        if not equals or not path or not values or len(set(values)) < len(values):
            raise ConfigError(f"grid {text}: give a setting and its distinct values, as in n_layers=2,4")
        grid.append([f"{path.removeprefix('--')}={value}" for value in values])
    return grid

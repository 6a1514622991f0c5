"""Shell completion of presets and overrides, from a list in the package: importing the registry takes seconds at each Tab."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import typer


def complete_preset(incomplete: str) -> list[str]:
    """The presets whose name begins with `incomplete`; a preset may be left out of `train`, so overrides too."""
    return _beginning(incomplete, known_words()["presets"]) if "=" not in incomplete else _overrides(incomplete)


def complete_override(context: typer.Context, incomplete: str) -> list[str]:
    """Completions of `ff`, `ffn=sw`, `ffn.exp` and `train.l`, also as bash passes them: split at each `=`."""
    earlier: list[str] = list(context.params.get("overrides") or [])
    *_, before, last = ["", "", *earlier]
    family = before if last == "=" else last if incomplete == "" else ""
    if family and "=" not in family:
        prefix = f"{family}="
        return [each.removeprefix(prefix) for each in _overrides(prefix + incomplete)]
    return _overrides(incomplete)


def known_words() -> dict[str, Any]:
    """The presets, the model's settings, the parts of each family, and the options of each family and of `train`."""
    words: dict[str, Any] = json.loads(Path(__file__).with_name("completions.json").read_text(encoding="utf-8"))
    return words


def _overrides(incomplete: str) -> list[str]:
    words = known_words()
    key, equals, _ = incomplete.partition("=")
    if equals:
        return _beginning(incomplete, (f"{key}={name}" for name in words["parts"].get(key, ())))
    family, dot, _ = incomplete.partition(".")
    if not dot:
        keys = _beginning(incomplete, [f"{name}=" for name in words["settings"]] + ["train."])
        # a single completion would end the word with a space
        return _overrides(keys[0]) if len(keys) == 1 and keys[0].removesuffix("=") in words["parts"] else keys
    return _beginning(incomplete, (f"{family}.{name}=" for name in words["options"].get(family, ())))


def _beginning(incomplete: str, words: Iterable[str]) -> list[str]:
    return sorted(word for word in words if word.startswith(incomplete))

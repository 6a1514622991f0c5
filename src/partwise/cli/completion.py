"""Shell completion of presets and overrides. The registry is imported only when the shell asks for a completion."""

from collections.abc import Iterable

import typer


def complete_preset(incomplete: str) -> list[str]:
    """The presets whose name begins with `incomplete`; a preset may be left out of `train`, so overrides too."""
    from partwise.presets import PRESETS

    return _beginning(incomplete, PRESETS) if "=" not in incomplete else _overrides(incomplete)


def complete_override(context: typer.Context, incomplete: str) -> list[str]:
    """Completions of `ff`, `ffn=sw`, `ffn.exp` and `train.l`, also as bash passes them: split at each `=`."""
    earlier: list[str] = list(context.params.get("overrides") or [])
    *_, before, last = ["", "", *earlier]
    family = before if last == "=" else last if incomplete == "" else ""
    if family and "=" not in family:
        prefix = f"{family}="
        return [each.removeprefix(prefix) for each in _overrides(prefix + incomplete)]
    return _overrides(incomplete)


def _overrides(incomplete: str) -> list[str]:
    from partwise.config import REGISTRY
    from partwise.train.config import RunConfig, TrainConfig

    key, equals, _ = incomplete.partition("=")
    if equals:
        return _beginning(incomplete, (f"{key}={name}" for name in REGISTRY.get(key, ())))
    family, dot, _ = incomplete.partition(".")
    if not dot:
        fields = {*RunConfig.model_fields, *RunConfig.model_fields["model"].annotation.model_fields}  # type: ignore[union-attr]
        keys = _beginning(incomplete, [f"{name}=" for name in fields - {"model", "train"}] + ["train."])
        # a single completion would end the word with a space
        return _overrides(keys[0]) if len(keys) == 1 and keys[0].removesuffix("=") in REGISTRY else keys
    kinds = [TrainConfig] if family == "train" else [*REGISTRY.get(family, {}).values()]
    return _beginning(incomplete, {f"{family}.{name}=" for kind in kinds for name in kind.model_fields})


def _beginning(incomplete: str, words: Iterable[str]) -> list[str]:
    return sorted(word for word in words if word.startswith(incomplete))

"""`parts` and `show`."""

import json
import textwrap
from typing import Any

from partwise.config import REGISTRY, ConfigError, Part, did_you_mean
from partwise.data import Corpus
from partwise.overrides import Override, apply_overrides, difference, parse_overrides
from partwise.presets import PRESETS, find_preset
from partwise.terminal import console
from partwise.train.settings import RunConfig, preset_settings, resolve, run_config


def list_parts(family: str | None) -> None:
    """Every part with its equation, paper and options."""
    if family is not None and family not in REGISTRY:
        raise ConfigError(f"unknown family {family!r}{did_you_mean(family, REGISTRY)}")
    for key in [family] if family else list(REGISTRY):
        console.print(f"\n[bold]{key}=[/]")
        for name, recipe in sorted(REGISTRY[key].items()):
            about = " ".join((recipe.__doc__ or "").split("\n\n")[0].split())
            console.print(f"  [bold]{name}[/]")
            console.print(textwrap.indent(textwrap.fill(about, 108), "      "), markup=False)
            options = [f"{option}={_default(recipe, option)}" for option in recipe.model_fields]
            if options:
                console.print(
                    textwrap.indent(textwrap.fill("options: " + ", ".join(options), 108), "      "), markup=False
                )


def _default(recipe: type[Part], option: str) -> str:
    if recipe.model_fields[option].is_required():
        return "(required)"
    value = recipe.model_fields[option].default
    if value is None:
        return "none"
    return f"{value:.4g}" if isinstance(value, float) else json.dumps(value, default=str).strip('"')


def show_configuration(preset: str, words: list[str], data: str | None, vocab_size: int | None) -> None:
    """The resolved configuration, its parameters, and its difference to the preset."""
    given: list[Override] = [] if vocab_size is None else [(("vocab_size",), vocab_size)]
    if data is not None:
        config = run_config(preset, *words, data=data)
    else:
        changes = [*given, *parse_overrides(words)]
        values = apply_overrides(preset_settings(preset), changes)
        corpus = Corpus.resolve(values["data"])
        # the symbols of made-up problems are known without any file
        assert isinstance(corpus, Corpus)
        known = corpus.task == "arithmetic" and not corpus.paired and ("vocab_size",) not in dict(changes)
        config = resolve(values) if known else RunConfig.from_dict(values)
    base = RunConfig.from_dict({**preset_settings(preset), "vocab_size": config.model.vocab_size})
    if preset in PRESETS:
        console.print(f"[bold]{preset}[/]: {find_preset(preset).about}")
    for key, value in config.to_dict().items():
        if isinstance(value, dict):
            name = value.get("part", "")
            options = " ".join(f"{option}={_plain_value(item)}" for option, item in value.items() if option != "part")
            console.print(f"  {key:15}{name:12}{options}".rstrip(), markup=False)
        else:
            console.print(f"  {key:15}{_plain_value(value)}", markup=False)
    flops = config.model.flops_per_token(config.context)
    console.print(
        f"\n{config.model.parameters():,} parameters with {config.model.vocab_size} symbols; {flops:,} floating-point "
        f"operations per token of training at context {config.context}"
    )
    rows = difference(base.to_dict(), config.to_dict())
    if not rows:
        console.print(f"no difference to {preset}")
        return
    change = config.model.parameters() - base.model.parameters()
    console.print(f"\n[bold]difference to {preset}[/] ({change:+,} parameters)")
    old_flat, new_flat = base.to_dict(), config.to_dict()
    for path, old, new in rows:
        console.print(f"  {path}: {_change(path, old, new, old_flat, new_flat)}", markup=False)


def _change(path: str, old: Any, new: Any, before: dict[str, Any], after: dict[str, Any]) -> str:
    family, _, option = path.partition(".")
    if option and option not in after.get(family, {}):
        return f"{_plain_value(old)}, dropped with {family}={before[family].get('part')}"
    if option and option not in before.get(family, {}):
        return f"{_plain_value(new)}, an option of {family}={after[family].get('part')}"
    return f"{_plain_value(old)} -> {_plain_value(new)}"


def _plain_value(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    return "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)

"""`parts` and `show`: list the parts, print a configuration."""

import re
from typing import Any

from partwise.cli.terminal import console, table
from partwise.concepts.settings import first_paragraph, option_defaults
from partwise.config import REGISTRY
from partwise.config.overrides import Override, apply_overrides, difference, distinct, parse_overrides
from partwise.model import ModelConfig, meta_model
from partwise.model.parameters import logical_tensors
from partwise.presets import find_preset, preset_name
from partwise.train.config import RunConfig, preset_settings, run_config
from partwise.wrapping import wrap

INDENT, MAX_WIDTH = " " * 6, 114
"""The indent of a paragraph about a part, and the columns of a line."""


def list_parts(family: str | None) -> None:
    """Print the parts of a family, or all, with their equations, papers and options."""
    for name, recipes in REGISTRY.items():
        if family in (None, name):
            console.print(f"\n[bold]{name}=[/]")
            for part_name, recipe in sorted(recipes.items()):
                console.print(f"  [bold]{part_name}[/]")
                console.print(fill(first_paragraph(recipe), INDENT, INDENT), markup=False)
                if options := option_defaults(recipe):
                    console.print(fill(f"options: {options}", INDENT, INDENT), markup=False)


def fill(text: str, start: str, rest: str) -> str:
    """Text in lines of the terminal's width; a word, such as an override, stays whole."""
    width = min(console.width, MAX_WIDTH)
    return "\n".join(wrap(text, width, start, rest))


def show_configuration(preset: str, overrides: list[str], data: str | None, vocab_size: int | None) -> None:
    """Print the resolved configuration, its size, and its differences from the preset."""
    distinct(parse_overrides(overrides))
    vocab_override: list[Override] = [] if vocab_size is None else [(("vocab_size",), vocab_size)]
    changes = [*vocab_override, *parse_overrides(overrides)]
    if data is None and ("vocab_size",) in dict(changes):  # perhaps one that the data do not have
        config = RunConfig.from_dict(apply_overrides(preset_settings(preset), changes))
    else:
        config = run_config(preset, *overrides, data=data)
    vocabulary = {"vocab_size": config.model.vocab_size, "padding_idx": config.model.padding_idx}
    base = RunConfig.from_dict({**preset_settings(preset), **vocabulary})
    if preset_name(preset):
        console.print(f"[bold]{preset}[/] on {config.data.label}: {find_preset(preset).description}")
    rows = []
    for key, value in config.to_dict().items():
        if isinstance(value, dict):
            options = " ".join(f"{option}={_format_value(item)}" for option, item in value.items() if option != "part")
            rows.append((key, f"{value.get('part', '')} {options}".strip()))
        else:
            rows.append((key, _format_value(value)))
    console.print(table(f"settings of {' '.join([preset, *overrides])}", ["", ""], rows))
    console.print()
    console.print(table("shapes of the weights", ["", ""], weight_shapes(config.model)))
    flops = config.flops_per_token()
    console.print(
        f"\n{config.model.parameters():,} parameters at vocab_size={config.model.vocab_size}; {flops:,} training FLOPs per "
        f"token at train.seq_len={config.seq_len}"
    )
    changes_made = difference(base.to_dict(), config.to_dict())
    if not changes_made:
        console.print(f"no differences from {preset}")
        return
    change = config.model.parameters() - base.model.parameters()
    console.print(f"\n[bold]differences from {preset}[/] ({change:+,} parameters)")
    before, after = base.to_dict(), config.to_dict()
    for path, old, new in changes_made:
        console.print(f"  {path}: {_format_change(path, old, new, before, after)}", markup=False)


def weight_shapes(config: ModelConfig) -> list[tuple[str, str]]:
    """The name and shape of every matrix, once for layers of equal shapes: `blocks.*.ffn.up`, `384 x 96`."""
    model = meta_model(config)
    rows = [
        (re.sub(r"\.\d+(?=\.|$)", ".*", tensor.name.removesuffix(".weight")), " x ".join(map(str, tensor.data.shape)))
        for tensor in logical_tensors(model)
        if tensor.data.ndim > 1
    ]
    return list(dict.fromkeys(rows))


def _format_change(path: str, old: Any, new: Any, before: dict[str, Any], after: dict[str, Any]) -> str:
    family, _, option = path.partition(".")
    if option and option not in after.get(family, {}):
        return f"{_format_value(old)}, dropped with {family}={before[family].get('part')}"
    if option and option not in before.get(family, {}):
        return f"{_format_value(new)}, an option of {family}={after[family].get('part')}"
    return f"{_format_value(old)} -> {_format_value(new)}"


def _format_value(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    return "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)

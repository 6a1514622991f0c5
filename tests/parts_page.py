"""docs/parts-reference.md: every registered part and preset, from the registry."""

import json

import partwise.train.config  # noqa: F401  registers every part, optimizers and schedules included
from partwise.config import REGISTRY, Part
from partwise.presets import PRESETS


def page() -> str:
    """The page as Markdown."""
    lines = [
        "# Reference of parts and presets",
        "",
        "Generated from the registry by `make generate`. `partwise parts` prints the parts in a terminal,",
        "`partwise show PRESET` a preset with all its options. [Parts](parts.md) says what each is tested against.",
        "",
        "## Presets",
        "",
        "| preset | description |",
        "|---|---|",
        *(f"| `{name}` | {cell(PRESETS[name].description)} |" for name in sorted(PRESETS)),
    ]
    # Sorted: the registry's own order is the order of imports, which is another one in every process.
    for family, parts in sorted(built_in().items()):
        lines += ["", f"## {family}=", "", "| part | equation and source | options |", "|---|---|---|"]
        for name, recipe in sorted(parts.items()):
            lines.append(f"| `{name}` | {cell(first_paragraph(recipe))} | {options(recipe)} |")
    return "\n".join(lines) + "\n"


def built_in() -> dict[str, dict[str, type[Part]]]:
    """The parts of each family that the package defines: a test may have registered its own."""
    found = {
        family: {name: recipe for name, recipe in parts.items() if recipe.__module__.startswith("partwise.")}
        for family, parts in REGISTRY.items()
    }
    return {family: parts for family, parts in found.items() if parts}


def first_paragraph(recipe: type[Part]) -> str:
    return " ".join((recipe.__doc__ or "").split("\n\n")[0].split())


def options(recipe: type[Part]) -> str:
    return ", ".join(f"`{name}={default(recipe, name)}`" for name in recipe.model_fields)


def default(recipe: type[Part], option: str) -> str:
    field = recipe.model_fields[option]
    if field.is_required():
        return "(required)"
    value = field.get_default(call_default_factory=True)
    if value is None:
        return "none"
    return f"{value:.4g}" if isinstance(value, float) else json.dumps(value, default=str).strip('"').replace("|", "\\|")


def cell(text: str) -> str:
    """Text as it must be written in a table's cell, outside of code."""
    for mark in "\\|*_<$[]":
        text = text.replace(mark, f"\\{mark}")
    return text.replace("`", "\\`")

"""docs/parts-reference.md, and the tables of docs/parts.md and docs/presets.md, from the registry."""

import re
from collections.abc import Callable, Iterator

import partwise.train.config  # noqa: F401  registers every part, optimizers and schedules included
from partwise.concepts.settings import default_text, first_paragraph
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


def options(recipe: type[Part]) -> str:
    return ", ".join(f"`{name}={default_text(field)}`" for name, field in recipe.model_fields.items()).replace(
        "|", "\\|"
    )


def cell(text: str) -> str:
    """Text as it must be written in a table's cell, outside of code."""
    for mark in "\\|*_<$[]":
        text = text.replace(mark, f"\\{mark}")
    return text.replace("`", "\\`")


def with_parts(page: str) -> str:
    """docs/parts.md with the registered parts of each family; what they are tested against is written by hand."""
    families = built_in()

    def names(family: str) -> str:
        return ", ".join(sorted(families[family], key=lambda name: (name != "none", name)))

    return with_column(page, [f"{family}=" for family in families], lambda text: names(text.removesuffix("=")))


def with_presets(page: str) -> str:
    """docs/presets.md with the description of each preset; what it is equal to is written by hand."""
    return with_column(page, sorted(PRESETS), lambda name: cell(PRESETS[name].description))


def with_column(page: str, names: list[str], describe: Callable[[str], str]) -> str:
    """The first table with the second column made from the names in the first; a row for each name that has none."""
    before, head, rest = page.partition("|---|---|---|\n")
    table, blank, after = rest.partition("\n\n")
    return before + head + "\n".join(rows(table, names, describe)) + blank + after


def rows(table: str, names: list[str], describe: Callable[[str], str]) -> Iterator[str]:
    missing = list(names)
    for line in table.splitlines():
        first, _, last = line.strip("|").split(" | ")
        here = [name for name in re.findall(r"`([^`]+)`", first) if name in names]
        missing = [name for name in missing if name not in here]
        if here:
            yield f"|{first} | {'<br>'.join(map(describe, here))} | {last}|"
    yield from (f"| `{name}` | {describe(name)} | – |" for name in missing)

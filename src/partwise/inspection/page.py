"""One HTML page per look inside: tables and figures, opened offline."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from partwise.drawing import COLOURS, canvas, svg


@dataclass(frozen=True)
class Figure:
    """A drawing (an `<svg>` element) under its title; what it shows goes into the caption."""

    title: str
    svg: str
    caption: str = ""


@dataclass(frozen=True)
class Look:
    """What there is to see: a table, figures, and in `about` how it was found and how to read it."""

    title: str
    about: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    figures: Sequence[Figure] = field(default_factory=list)


def bars(title: str, rows: Sequence[tuple[str, float, str]], key: str) -> Figure:
    """A figure from (name, size, label) rows; sizes are not negative."""
    figure, axes = canvas(0.35 + 0.27 * len(rows), key, width=7.5)
    longest = max((size for _, size, _ in rows), default=0) or 1
    axes.barh(range(len(rows)), [size for _, size, _ in rows], color=COLOURS[0], height=0.7)
    for row, (_, size, label) in enumerate(rows):
        axes.annotate(label, (size, row), (4, 0), textcoords="offset points", va="center")
    axes.set_yticks(range(len(rows)), [name for name, _, _ in rows])
    axes.set_xlim(0, 1.25 * longest)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_xticks([])
    axes.tick_params(axis="y", length=0)
    axes.spines[["left", "bottom"]].set_visible(False)
    return Figure(title, svg(figure, key))


def write_page(path: Path, name: str, look: Look) -> None:
    """Write the page whole or not at all; every text is escaped."""
    from jinja2 import Environment, PackageLoader

    template = Environment(loader=PackageLoader("partwise.inspection", "."), autoescape=True).get_template(
        "page.html.jinja"
    )
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_bytes(template.render(name=name, look=look).encode("utf-8", errors="replace"))
    os.replace(draft, path)

"""Self-contained HTML pages with figures and a table, one per inspection."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from partwise.files import replace_file
from partwise.plots.blocks import Figure, Section
from partwise.plots.downloads import csv_text, file_name, svg_text
from partwise.plots.drawing import Drawing, draw, png
from partwise.plots.layout import render_page, write_text
from partwise.plots.plotting import COLORS, new_figure

SMALLEST, LARGEST = 0.9, 1.7
"""The smallest and the largest scale of a figure, with text of 7 to 10 points."""


LONG_TABLE = 15
"""Tables of more rows are folded."""


@dataclass(frozen=True)
class PageFigure:
    """A drawing with a title and a caption."""

    title: str
    drawing: Drawing
    caption: str = ""
    beside: "PageFigure | None" = None
    """The same figure of another model, shown at its side."""

    @property
    def svg(self) -> str:
        return self.drawing.svg

    @cached_property
    def files(self) -> dict[str, bytes]:
        """What the figure downloads as, by the end of the file's name; PNG only of a figure that can be drawn again."""
        block = Figure(self.title, columns=self.drawing.columns, rows=self.drawing.rows)
        return {kind: content for (_, kind), content in figure_files(replace(block, svg=self.svg)).items()}

    @property
    def min_width(self) -> int:
        """The width in pixels below which the page scrolls the figure instead of scaling it down."""
        return round(SMALLEST * self.width)

    @property
    def max_width(self) -> int:
        """The width in pixels beyond which the figure is not scaled up: one of few rows would have large text."""
        return round(LARGEST * self.width)

    @property
    def width(self) -> float:
        """In pixels, as drawn."""
        box = re.search(r'viewBox="\S+ \S+ (\S+)', self.svg)
        return float(box[1]) if box else 0.0


@dataclass(frozen=True)
class Page:
    """The content of a page: the first figure, a table with `about`, which says how to read it, and further figures."""

    title: str
    about: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    figures: Sequence[PageFigure] = field(default_factory=list)


def bar_chart(title: str, rows: Sequence[tuple[str, float, str]], key: str) -> PageFigure:
    """A horizontal bar chart of (name, size, label) rows; sizes are non-negative."""
    figure, axes = new_figure(0.35 + 0.27 * len(rows), key, width=7.5)
    longest = max((size for _, size, _ in rows), default=0) or 1
    axes.barh(range(len(rows)), [size for _, size, _ in rows], color=COLORS[0], height=0.7)
    for row, (_, size, label) in enumerate(rows):
        axes.annotate(label, (size, row), (4, 0), textcoords="offset points", va="center")
    axes.set_yticks(range(len(rows)), [name for name, _, _ in rows])
    axes.set_xlim(0, 1.25 * longest)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_xticks([])
    axes.tick_params(axis="y", length=0)
    axes.spines[["left", "bottom"]].set_visible(False)
    return PageFigure(title, draw(figure, key))


def figure_files(figure: Figure) -> dict[tuple[str, str], bytes]:
    """(view, kind) -> SVG, PNG and CSV of a figure; '' is the view of one that has no views, and of its numbers."""
    files = dict[tuple[str, str], bytes]()
    for view, svg in (figure.views or {"": figure.svg}).items():
        name = f"-by-{view}" if len(figure.views) > 1 else ""
        files |= {(name, "svg"): svg_text(figure, svg).encode(), (name, "png"): png(svg, figure.legend)}
    files["", "csv"] = csv_text(figure.columns, figure.rows).encode() if figure.rows else b""
    return {name: content for name, content in files.items() if content}


def files_of_page(page: Page) -> dict[str, bytes]:
    """The files of each figure, named after its title; those of a second model end with `-B`."""
    return {
        f"{file_name(figure.title)}{side}.{kind}": content
        for figure in page.figures
        for each, side in ((figure, "-A" if figure.beside else ""), (figure.beside, "-B"))
        for kind, content in (each.files if each else {}).items()
    }


def files_of_sections(sections: Sequence[Section]) -> dict[str, bytes]:
    """The files of each figure of a report, named after its title."""
    return {
        f"{file_name(block.title)}{view}.{kind}": content
        for section in sections
        for block in section.blocks
        if isinstance(block, Figure)
        for (view, kind), content in figure_files(block).items()
    }


def write_figures(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write SVG, PNG and CSV files of figures by their names."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        replace_file(folder / name, content)


def write_page(path: Path, name: str, page: Page) -> None:
    """Write the page atomically, with all text escaped."""
    paired = any(figure.beside for figure in page.figures)
    values = {"name": name, "page": page, "long_table": LONG_TABLE, "paired": paired}
    write_text(path, render_page("plots/page.html.jinja", values))

"""A drawn figure: its SVG, its PNG, and the numbers that it shows."""

import io
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from partwise.plots.blocks import Cell
from partwise.plots.plotting import STYLE, Svg, to_svg

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

PNG_DPI = 144
"""Twice the size of the SVG: sharp on a screen of two pixels per point, and in a slide."""


@dataclass(frozen=True)
class Drawing:
    """The SVG of a figure, and its numbers as `rows` of `columns`."""

    svg: str
    columns: list[str] = field(default_factory=list)
    rows: list[list[Cell]] = field(default_factory=list)


def draw(figure: "Figure", key: str) -> Drawing:
    """The drawing of a finished figure; `key` makes the SVG ids unique within a page."""
    return Drawing(to_svg(figure, key), *figure_numbers(figure))


def png(svg: str, legend: Sequence[tuple[str, str]] = ()) -> bytes:
    """The figure of an SVG as PNG, with the (color, name) pairs of its legend below it; empty without a figure."""
    import matplotlib
    from matplotlib.lines import Line2D

    figure = svg.figure if isinstance(svg, Svg) else None
    if figure is None:
        return b""
    buffer = io.BytesIO()
    with matplotlib.rc_context(STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        if legend:
            handles = [Line2D([], [], color=color, lw=2.5, label=name) for color, name in legend]
            box = figure.legend(handles=handles, loc="outside lower left", ncols=2, frameon=False, fontsize=9)
            for text in box.get_texts():
                text.set_parse_math(False)
        figure.savefig(buffer, format="png", dpi=PNG_DPI, facecolor="white", metadata={"Software": None})
    return buffer.getvalue()


def figure_numbers(figure: "Figure") -> tuple[list[str], list[list[Cell]]]:
    """Columns and rows of the lines, bars and images of a figure, in the units of its axes.

    The columns are the panel's title, the line's label, x, y, and an image's value; those that are empty are left out.
    """
    panels = [axes for axes in figure.axes if axes.get_label() != "<colorbar>"]
    rows = [[axes.get_title(), *row] for axes in panels for row in axes_numbers(axes)]
    names = [*_axis_names(panels), "value"]
    head = ["panel", "line", *names]
    kept = [index for index in range(len(head)) if any(row[index] not in ("", None) for row in rows)]
    return [head[index] for index in kept], [[row[index] for index in kept] for row in rows]


def _axis_names(panels: list["Axes"]) -> tuple[str, str]:
    labels = [(axes.get_xlabel(), axes.get_ylabel()) for axes in panels]
    x, y = (next((label[side] for label in labels if label[side]), default) for side, default in ((0, "x"), (1, "y")))
    return (x, y) if x != y else ("x", "y")


def axes_numbers(axes: "Axes") -> Iterator[list[Cell]]:
    """(line, x, y, value) of each point of a line, bar and cell of an image; an axis with names gives them for places."""
    from matplotlib.container import BarContainer

    x_of, y_of = _names(axes.xaxis), _names(axes.yaxis)
    for line in axes.lines:
        if line.get_transform() != axes.transData:
            continue  # such as the lines across a panel
        label = str(line.get_label())
        for x, y in np.asarray(line.get_xydata(), dtype=float):
            yield ["" if label.startswith("_") else label, x_of(x), y_of(y), None]
    for bars in axes.containers:
        if not isinstance(bars, BarContainer):
            continue
        label = str(bars.get_label())
        for bar in bars.patches:
            x, y = bar.get_x() + bar.get_width() / 2, bar.get_y() + bar.get_height() / 2
            x, y = (bar.get_width(), y) if bars.orientation == "horizontal" else (x, bar.get_height())
            yield ["" if label.startswith("_") else label, x_of(x), y_of(y), None]
    for image in axes.images:
        values = np.ma.filled(np.ma.asarray(image.get_array()).astype(float), np.nan)
        left, right, bottom, top = image.get_extent()
        height, width = values.shape
        upper = image.origin == "upper"
        xs = [x_of(left + (column + 0.5) * (right - left) / width) for column in range(width)]
        first, last = (top, bottom) if upper else (bottom, top)
        for row in range(height):
            y = y_of(first + (row + 0.5) * (last - first) / height)
            for x_cell, value in zip(xs, values[row], strict=True):
                yield ["", x_cell, y, _known(value)]


def _names(axis: "Axis") -> Any:
    """A function from a place on the axis to its name, or to the number where it has none."""
    from matplotlib.ticker import FixedLocator

    names: dict[float, str] = {}
    if isinstance(axis.get_major_locator(), FixedLocator):
        places = [float(place) for place in axis.get_majorticklocs()]
        names = dict(zip(places, axis.get_major_formatter().format_ticks(places), strict=True))
    if len(set(names.values())) < len(names):  # such as tokens
        names = {place: f"{place:g} {name}" for place, name in names.items()}
    numeric = all(_is_number(name) for name in names.values())
    return lambda place: _known(place) if numeric else names.get(round(float(place), 9), _known(place))


def _is_number(name: str) -> bool:
    try:
        float(name.replace("\N{MINUS SIGN}", "-"))
    except ValueError:
        return False
    return True


def _known(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None

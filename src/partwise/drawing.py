"""Drawings as SVG text that stands inside an HTML page: one look for every figure that partwise makes."""

import io
import re
import warnings
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH = 4.6  # inches: about the width of a phone, so that text keeps its size there
COLOURS = ("#1f6fb2", "#d1651a", "#0f8f6f", "#a4508b", "#b8860b", "#4b4fb0", "#b03a3a", "#5f6368")
"""Told apart by colour-blind readers too; they repeat."""

STYLE: Any = {  # Any, as matplotlib types the names of its settings one by one
    "svg.fonttype": "none",
    "text.usetex": False,
    "text.parse_math": False,
    "font.family": ["sans-serif"],
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 10.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#9aa0a6",
    "axes.linewidth": 0.8,
    "axes.labelcolor": "#3c4043",
    "axes.formatter.useoffset": False,
    "axes.unicode_minus": False,
    "xtick.color": "#3c4043",
    "ytick.color": "#3c4043",
    "xtick.labelsize": 9.0,
    "ytick.labelsize": 9.0,
    "axes.xmargin": 0.02,
}


def canvas(height: float, key: str, width: float = WIDTH) -> tuple["Figure", "Axes"]:
    """One drawing of so many inches; `key` makes the SVG's ids unique within a page."""
    figure, grid = canvases(height, key, width=width)
    return figure, grid[0][0]


def canvases(
    height: float, key: str, rows: int = 1, columns: int = 1, width: float = WIDTH
) -> tuple["Figure", list[list["Axes"]]]:
    """Small drawings side by side, rows of columns."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(STYLE | {"svg.hashsalt": key}):
        figure = Figure(figsize=(width, height), layout="constrained", facecolor="none")
        grid = [list(row) for row in figure.subplots(rows, columns, squeeze=False)]
    for axes in (axes for row in grid for axes in row):
        axes.set_facecolor("none")
    return figure, grid


def svg(figure: "Figure", key: str) -> str:
    """The drawing as an `<svg>` element: no prolog, no metadata, no style for the page, ids that begin with `key`.

    Its text may be of any script: it stays text, and a browser has the letters that matplotlib's own font lacks.
    """
    import matplotlib

    buffer = io.StringIO()
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    with matplotlib.rc_context(STYLE | {"svg.hashsalt": key}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        figure.savefig(buffer, format="svg", metadata=nothing)
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<(metadata|style)\b.*?</\1>", "", text, flags=re.DOTALL)
    text = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{key}-", text)
    text = re.sub(r'\bd="[^"]*"', lambda path: re.sub(r"(\.\d\d)\d+", r"\1", path[0]), text)
    return re.sub(r'<svg\b[^>]*?viewBox="([^"]*)"[^>]*>', r'<svg viewBox="\1" aria-hidden="true">', text, count=1)


def padded(low: float, high: float, share: float = 0.07) -> tuple[float, float]:
    """The ends of an axis on which all from low to high stands off the border."""
    pad = share * (high - low) or 0.05 * abs(high) or 1e-3
    return low - pad, high + pad


def logarithmic(axes: "Axes") -> None:
    """A logarithmic y axis whose numbers are written out."""
    from matplotlib.ticker import LogLocator

    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter("{x:,g}")
    axes.yaxis.set_minor_formatter("")


def cut(text: str, letters: int = 7) -> str:
    """A label of at most so many letters."""
    return text if len(text) <= letters else f"{text[: letters - 1]}…"

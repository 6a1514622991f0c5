"""Matplotlib figures in one style, as SVG to embed in an HTML page."""

import io
import re
import warnings
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.cm import ScalarMappable
    from matplotlib.colorbar import Colorbar
    from matplotlib.figure import Figure

WIDTH = 4.6  # inches: about the width of a phone, so that text is not scaled down there
COLORS = ("#1f6fb2", "#d1651a", "#0f8f6f", "#a4508b", "#b8860b", "#54308c", "#b03a3a", "#5f6368")
"""Color-blind-safe line colors; cycled if there are more lines."""

LINEAR = 0.05
"""On a scale of differences, those up to this size are drawn to scale, larger ones logarithmically."""

STYLE: Any = {  # Any because matplotlib types rcParams keys as literals
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


def new_figure(height: float, key: str, width: float = WIDTH) -> tuple["Figure", "Axes"]:
    """A figure with a single axes, in inches; `key` makes the SVG ids unique within a page."""
    figure, grid = new_subplots(height, key, width=width)
    return figure, grid[0][0]


def new_subplots(
    height: float, key: str, rows: int = 1, columns: int = 1, width: float = WIDTH
) -> tuple["Figure", list[list["Axes"]]]:
    """A figure with a grid of axes, as rows of columns."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(STYLE | {"svg.hashsalt": key}):
        figure = Figure(figsize=(width, height), layout="constrained", facecolor="none")
        grid = [list(row) for row in figure.subplots(rows, columns, squeeze=False)]
    for axes in (axes for row in grid for axes in row):
        axes.set_facecolor("none")
    return figure, grid


class Svg(str):
    """An `<svg>` element, with the figure that its PNG is made from."""

    def __new__(cls, text: str, figure: "Figure | None" = None) -> "Svg":
        made = super().__new__(cls, text)
        made.figure = figure
        return made

    figure: "Figure | None"


def to_svg(figure: "Figure", key: str, x: str = "", y: str = "") -> Svg:
    """The figure as an `<svg>` element without prolog, metadata or style sheet; its ids start with `key`.

    Text of any script stays text: the browser has the glyphs that matplotlib's default font lacks. `x` and `y` name the
    columns of the figure's numbers on its axes, which `hover.js` shows; without `y`, the row's number, from 0.
    """
    import matplotlib
    from matplotlib.text import Text

    for text in figure.findobj(Text):
        text.set_parse_math(False)  # a name may contain dollar signs; texts added outside `rc_context` would be parsed

    buffer = io.StringIO()
    no_metadata = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    with matplotlib.rc_context(STYLE | {"svg.hashsalt": key}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        figure.savefig(buffer, format="svg", metadata=no_metadata)
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<(metadata|style)\b.*?</\1>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{key}-", svg)
    svg = re.sub(r'(?<=\bd=")[^"]*', lambda path: _shorten_path(path[0]), svg)
    svg = re.sub(r' transform="rotate\(-?0 [^"]*"', "", re.sub(r"\n\s*", "\n", svg))
    axes = f" {_describe_axes(figure, x, y)}" if x else ""
    start = rf'<svg viewBox="\1" aria-hidden="true"{axes}>'
    return Svg(re.sub(r'<svg\b[^>]*?viewBox="([^"]*)"[^>]*>', start, svg, count=1), figure)


def _shorten_path(path: str) -> str:
    """The path with one decimal, a sixth of a pixel on a page; without the L of lines, which follows from M."""
    path = " ".join(re.sub(r"-?\d+\.\d+", lambda number: f"{float(number[0]):.1f}".removesuffix(".0"), path).split())
    return path if re.search("[CQ]", path) else path.replace("L ", "")


def _describe_axes(figure: "Figure", x: str, y: str) -> str:
    """Attributes of the `<svg>`: the place of its axes as left, top, right, bottom; their limits; what they show."""
    axes = figure.axes[0]
    width, height = 72 * figure.get_size_inches()
    box = axes.get_position()
    places = (box.x0 * width, (1 - box.y1) * height, box.x1 * width, (1 - box.y0) * height)
    limits = (*axes.get_xlim(), *axes.get_ylim())
    numbers = [" ".join(f"{value:.6g}" for value in values) for values in (places, limits)]
    log = ' data-log="x"' if axes.get_xscale() == "log" else ""
    return f'data-places="{numbers[0]}" data-limits="{numbers[1]}" data-x="{x}" data-y="{y}"{log}'


def svg_file(figure: "Figure") -> str:
    """The figure as an SVG file, without the date."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    return "\n".join(line.rstrip() for line in buffer.getvalue().splitlines()) + "\n"


def padded_limits(low: float, high: float, fraction: float = 0.07) -> tuple[float, float]:
    """Axis limits that leave a margin around [low, high]."""
    pad = fraction * (high - low) or 0.05 * abs(high) or 1e-3
    return low - pad, high + pad


def set_log_scale(axes: "Axes") -> None:
    """Make the y axis logarithmic, with plain numbers as tick labels."""
    from matplotlib.ticker import LogLocator

    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter("{x:,g}")
    axes.yaxis.set_minor_formatter("")


def set_integer_ticks(*axes: "Axes", y: bool = False) -> None:
    """Ticks at whole numbers on the x axis, and with `y` on the y axis: there is no token 2.5."""
    from matplotlib.ticker import MaxNLocator

    for each in axes:
        each.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True, min_n_ticks=1))
        if y:
            each.yaxis.set_major_locator(MaxNLocator(nbins=6, integer=True, min_n_ticks=1))


def add_color_scale(figure: "Figure", image: "ScalarMappable", axes: "Axes", label: str, **options: Any) -> "Colorbar":
    """A color bar above the left of the axes, where it is in view when a narrow window scrolls the figure."""
    bar = figure.colorbar(image, ax=axes, location="top", anchor=(0, 0), shrink=0.35, aspect=20, **options)
    bar.set_label(label, loc="left")
    return bar


def legend_above(axes: "Axes", columns: int = 3) -> None:
    """A legend above the left of the axes, where it is in view when a narrow window scrolls the figure."""
    style: Any = {"frameon": False, "fontsize": 8, "borderaxespad": 0.3, "handlelength": 1.6}
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=columns, **style)


def step_colors(n: int) -> list[str]:
    """`n` colors in order from purple to orange, which can be told apart on light and dark pages."""
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    return [to_hex(colormaps["plasma"](0.3 + 0.48 * index / max(1, n - 1))) for index in range(n)]


def set_difference_scale(axes: "Axes", reach: float) -> None:
    """Make the x axis one of differences up to `reach` on both sides of 0: effects on a loss are 0.001 to 1 nat."""
    from matplotlib.ticker import NullLocator

    axes.set_xscale("symlog", linthresh=LINEAR, linscale=1.5)
    axes.set_xlim(-1.1 * reach, 1.1 * reach)
    ticks = [tick for tick in (0.02, 0.05, 0.2, 1.0) if tick <= reach]
    axes.set_xticks([*(-tick for tick in reversed(ticks)), 0, *ticks])
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_locator(NullLocator())


def shorten(text: str, max_chars: int = 7) -> str:
    """Truncate a label to at most `max_chars` characters."""
    return text if len(text) <= max_chars else f"{text[: max_chars - 1]}…"


def shorten_middle(text: str, max_chars: int) -> str:
    """Cut a label in its middle to at most `max_chars` characters, so that its beginning and its end are shown."""
    end = max_chars // 2
    return text if len(text) <= max_chars else f"{text[: max_chars - 1 - end]}…{text[-end:]}"

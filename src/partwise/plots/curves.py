"""Curves of a loss or a difference: thinned, smoothed and drawn against steps, tokens or seconds."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from partwise.plots.blocks import Cell
from partwise.plots.colors import ARM_COLORS
from partwise.plots.plotting import new_figure, padded_limits, to_svg

if TYPE_CHECKING:
    from matplotlib.axes import Axes

X = TypeVar("X", int, float)
Points = Sequence[Sequence[float | None]]
"""[[step, value], ...]; an unknown value is None."""

AXES = ("tokens", "seconds")
"""Axes of a loss curve besides steps."""

LINE_POINTS = 120
FIGURE_POINTS = 4000
MOST_MARKERS = 60


@dataclass(frozen=True)
class Line:
    """The values of one line at its steps, drawn raw or smoothed; `names` are its cells in the table of numbers."""

    color: str
    points: Points
    names: tuple[str | int, ...] = ()
    smoothed: bool = False
    scales: Mapping[str, float | Mapping[float, float]] = field(default_factory=dict)
    """Further x axes, such as tokens: the length of a step, or the place of each step."""

    def place(self, step: float, axis: str = "step") -> float:
        scale = self.scales.get(axis, 1.0)
        return scale[step] if isinstance(scale, Mapping) else step * scale


def draw_views(lines: Sequence[Line], references: Sequence[tuple[str, float]], key: str) -> dict[str, str]:
    """The figure of `draw_losses` against steps and every other axis that all lines have; empty without a finite value."""
    drawn = [line for line in lines if finite_points(line.points)]
    axes = ["step", *(name for name in AXES if drawn and all(name in line.scales for line in drawn))]
    views = {name: draw_losses(drawn, references, f"{key}{name[0]}", name) for name in axes}
    return {name: svg for name, svg in views.items() if svg}


def numbers_of(lines: Sequence[Line], names: Sequence[str], axes: Sequence[str]) -> tuple[list[str], list[list[Cell]]]:
    """The columns and rows of the numbers that `draw_losses` draws; `smoothed` as well if it smooths a line."""
    limit, rows = points_per_line(len(lines)), list[list[Cell]]()
    any_smoothed = any(line.smoothed for line in lines)
    for line in lines:
        points = thin(finite_points(line.points), limit)
        drawn = smooth(points) if line.smoothed else points
        for (step, loss), (_, value) in zip(points, drawn, strict=True):
            numbers = [loss, value] if any_smoothed else [loss]
            rows.append([*line.names, *(line.place(step, axis) for axis in axes), *numbers])
    return [*names, *axes, "loss", *(["smoothed"] if any_smoothed else [])], rows


def draw_losses(lines: Sequence[Line], references: Sequence[tuple[str, float]], key: str, axis: str = "step") -> str:
    """All lines, and each (label, value) of `references` near them as a dashed line; '' without a finite value."""
    curves = [(line, finite) for line in lines if (finite := finite_points(line.points))]
    if not curves:
        return ""
    figure, axes = new_figure(2.9, key)
    limit = points_per_line(len(curves))
    drawn = [(line, smooth(thin(points, limit)) if line.smoothed else thin(points, limit)) for line, points in curves]
    few = [points for _, points in drawn if len(points) <= MOST_MARKERS]
    marker = choose_marker(few)
    for line, points in drawn:
        steps, values = zip(*points, strict=True)
        places = [line.place(step, axis) for step in steps]
        style: Any = {"marker": marker if len(points) <= MOST_MARKERS else "", "markersize": 2.5}
        axes.plot(places, values, color=line.color, linewidth=1.2, alpha=0.8, **style)
    low, high = late_range([points for _, points in drawn])
    span = high - low or 0.1
    near = [(label, value) for label, value in references if low - 3 * span <= value <= high + span / 4]
    axes.set_ylim(*padded_limits(min([low, *(v for _, v in near)]), max([high, *(v for _, v in near)]), 0.11))
    for _, value in near:
        axes.axhline(value, color="#3c4043", linewidth=1, linestyle=(0, (5, 3)))
    bottom, top = axes.get_ylim()
    for label, highest, lowest in join_labels(near, (top - bottom) / 14):
        above = highest > low  # keeps the label off the curves
        axes.annotate(
            label,
            (1, highest if above else lowest),
            (0, 3 if above else -3),
            xycoords=("axes fraction", "data"),
            textcoords="offset points",
            ha="right",
            va="bottom" if above else "top",
            fontsize=9,
        )
    label_steps(axes, axis)
    return to_svg(figure, key, axis, "smoothed" if any(line.smoothed for line in lines) else "loss")


def join_labels(labels: Sequence[tuple[str, float]], distance: float) -> list[tuple[str, float, float]]:
    """(label, highest value, lowest value) from the top down; values within `distance` share a label: `5-gram, 7-gram`."""
    joined: list[tuple[str, float, float]] = []
    for label, value in sorted(labels, key=lambda each: -each[1]):
        if joined and joined[-1][2] - value < distance:
            joined[-1] = (f"{joined[-1][0]}, {label}", joined[-1][1], value)
        else:
            joined.append((label, value, value))
    return joined


def draw_scale(losses: Mapping[str, float], marked: str, key: str) -> str:
    """A dot for each named loss, the worst at the top and the `marked` one in color."""
    rows = sorted(losses.items(), key=lambda row: -row[1])
    figure, axes = new_figure(0.6 + 0.27 * len(rows), key)
    left = min(losses.values())
    for row, (name, loss) in enumerate(rows):
        color = ARM_COLORS[1 if name == marked else 0]
        axes.plot([left, loss], [row, row], color=color, linewidth=1, alpha=0.5)
        axes.plot([loss], [row], "D" if name == marked else "o", color=color, markersize=6.5 if name == marked else 5)
        axes.annotate(f"{loss:.4f}", (loss, row), (7, 0), textcoords="offset points", va="center", fontsize=9)
    axes.set_yticks(range(len(rows)), [name for name, _ in rows])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    low, high = padded_limits(left, max(losses.values()), 0.04)
    axes.set_xlim(low, high + 0.14 * (high - low))  # room for the last number
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.locator_params(axis="x", nbins=6)
    axes.set_xlabel("← better · loss · worse →")
    return to_svg(figure, key, "loss")


def thin(points: Sequence[tuple[X, float]], limit: int = LINE_POINTS) -> list[tuple[X, float]]:
    """At most `limit` points, each the mean of consecutive points up to its step; the last step is kept.

    If they cannot all cover equally many points, the first one covers fewer: a last one would be noisier than the
    others and look like a jump.
    """
    size = max(1, math.ceil(len(points) / limit))
    ends = range(len(points), 0, -size)
    bins = [points[max(0, end - size) : end] for end in reversed(ends)]
    return [(part[-1][0], math.fsum(value for _, value in part) / len(part)) for part in bins]


def smooth(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """A centered mean over about a twentieth of the run.

    The window shrinks at the start, where the loss falls too fast for a wide one. At the end it would shrink to a single
    noisy point; instead the last full window stays, and a straight line fitted to it gives the values.
    """
    radius, n = len(points) // 40, len(points)
    result = []
    for index, (step, _) in enumerate(points):
        center = min(index, n - 1 - radius)
        reach = min(radius, center)
        values = [value for _, value in points[center - reach : center + reach + 1]]
        mean = math.fsum(values) / len(values)
        offsets = range(-reach, reach + 1)
        rise = math.fsum(offset * value for offset, value in zip(offsets, values, strict=True))
        slope = rise / max(1, sum(offset**2 for offset in offsets))
        result.append((step, mean + slope * (index - center)))
    return result


def choose_marker(lines: Sequence[Sequence[object]]) -> str:
    """A dot for every point, unless there are many: each takes as much of a page as ten points of a line."""
    return "o" if sum(map(len, lines)) <= MOST_MARKERS else ""


def points_per_line(lines: int) -> int:
    return max(10, min(LINE_POINTS, FIGURE_POINTS // lines))


def _known(value: float | None) -> bool:
    return value is not None and math.isfinite(value)


def finite_points(points: Points) -> list[tuple[float, float]]:
    return [(step, value) for step, value, *_ in points if step is not None and value is not None and _known(value)]


def late_range(lines: Sequence[Sequence[tuple[float, float]]]) -> tuple[float, float]:
    """The range of values after the first tenth of the completed runs: the start or a diverged run would flatten the rest."""
    last = max(step for line in lines for step, _ in line)
    completed = [line for line in lines if max(step for step, _ in line) == last]
    late = [value for line in completed for step, value in line if step >= last / 10]
    return min(late), max(late)


def label_steps(axes: "Axes", x_label: str = "step") -> None:
    from matplotlib.ticker import FuncFormatter

    axes.locator_params(axis="x", nbins=6, integer=True)
    axes.locator_params(axis="y", nbins=6)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda step, _: f"{step:,.0f}"))
    axes.grid(axis="y", color="#eceff1", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.set_xlabel(x_label)

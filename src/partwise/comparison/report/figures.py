"""The report's figures: drawings as SVG text that stands inside an HTML page.

No name that a user wrote enters a figure: names stand in the page around it, where they are escaped and wrap.
"""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from partwise.drawing import canvas, padded, svg

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Points = Sequence[Sequence[float | None]]
"""[[step, value], ...]; a value that is not known is None."""

ARM_COLOURS = ("#5f6368", "#1f6fb2", "#d1651a", "#0f8f6f", "#a4508b", "#b8860b", "#4b4fb0", "#b03a3a")
"""The baseline is grey; colours repeat after eight arms. Told apart by colour-blind readers too."""

TONES = {"better": "#1b7f4d", "worse": "#b3382c", "equivalent": "#41688a", "undecided": "#a86a00", "none": "#6b6f76"}
"""The calm colour of each verdict."""

MARGIN = "#dde6ee"
LINE_POINTS = 200
FIGURE_POINTS = 8000


def draw_differences(comparison: dict[str, Any], tone: str, margin: float, lower_is_better: bool, key: str) -> str:
    """Every seed's difference as a dot, their mean with its interval, the margin as a band; '' without a difference.

    `key` makes the SVG's ids unique within a page.
    """
    seeds = comparison.get("seeds") or []
    pairs = [(s, d) for s, d in zip(seeds, comparison.get("differences") or [], strict=False) if _known(d)]
    mean, low, high = (comparison.get(name) for name in ("mean", "low", "high"))
    if not pairs and not _known(mean):
        return ""
    rows = [f"seed {int(seed)}" for seed, _ in pairs]
    step = 0.21 if len(rows) <= 20 else 0.21 * 20 / len(rows)
    figure, axes = canvas(1.0 + step * (len(rows) + 1), key)
    for row, (_, value) in enumerate(pairs):
        axes.plot([value], [row], "o", color=tone, markersize=5.5, alpha=0.75, markeredgewidth=0)
    bottom = len(rows) + 0.35
    ends = [value for _, value in pairs]
    if mean is not None and _known(mean):
        if low is not None and high is not None:
            axes.plot([low, high], [bottom, bottom], color=tone, linewidth=2.2, solid_capstyle="butt")
            axes.plot([low, high], [bottom, bottom], "|", color=tone, markersize=9, markeredgewidth=2.2)
            ends += [low, high]
        axes.plot([mean], [bottom], "D", color=tone, markersize=7.5, markeredgecolor="white")
        ends.append(mean)
    every = math.ceil(len(rows) / 20)
    ticks = [row for row in range(len(rows)) if row % every == 0]
    axes.set_yticks([*ticks, bottom], [*(rows[row] for row in ticks), "mean" if _known(mean) else ""])
    axes.set_ylim(bottom + 0.8, -0.8)
    _label_differences(axes, ends, margin, lower_is_better)
    return svg(figure, key)


def draw_forest(rows: Sequence[dict[str, Any]], margin: float, lower_is_better: bool, key: str) -> str:
    """A forest plot: mean and interval of every comparison in its verdict's colour, numbered from the top; '' for none."""
    known = [(number, row) for number, row in enumerate(rows, start=1) if row.get("mean") is not None]
    if not known:
        return ""
    figure, axes = canvas(0.8 + 0.27 * len(rows), key)
    ends: list[float] = []
    for number, row in known:
        tone, low, high = TONES[row.get("verdict") or "none"], row.get("low"), row.get("high")
        if low is not None and high is not None:
            axes.plot([low, high], [number, number], color=tone, linewidth=2.2, solid_capstyle="butt")
            ends += [low, high]
        axes.plot([row["mean"]], [number], "D", color=tone, markersize=6.5, markeredgecolor="white")
        ends.append(row["mean"])
    axes.set_yticks(range(1, len(rows) + 1))
    axes.set_ylim(len(rows) + 0.7, 0.3)
    _label_differences(axes, ends, margin, lower_is_better)
    return svg(figure, key)


def draw_tuning(lines: Sequence[tuple[str, Points]], numbers: bool, key: str) -> str:
    """Mean loss at each value of what was tuned, a (colour, points) line for each arm, a star at its best."""
    found = [(colour, finite) for colour, points in lines if (finite := _finite(points))]
    if not found:
        return ""
    figure, axes = canvas(2.9, key)
    for colour, points in found:
        at, losses = zip(*points, strict=True)
        axes.plot(at, losses, "o-", color=colour, linewidth=1.4, markersize=4)
        best = min(points, key=lambda point: point[1])
        axes.plot([best[0]], [best[1]], "*", color=colour, markersize=13, markeredgecolor="white")
    ticks = sorted({at for _, points in found for at, _ in points})
    if numbers and min(ticks) > 0:
        axes.set_xscale("log")
    axes.set_xticks(ticks, [f"{at:g}" for at in ticks])
    axes.set_xticks([], minor=True)
    axes.grid(axis="y", color="#eceff1", linewidth=0.8)
    return svg(figure, key)


def draw_over_time(comparison: dict[str, Any], tone: str, margin: float, key: str) -> str:
    """The paired difference at every evaluation: a thin line per seed, the mean with its interval, zero and margin."""
    lines = [found for found in map(_finite, comparison.get("over_time") or []) if found]
    if not lines:
        return ""
    figure, axes = canvas(2.9, key)
    axes.axhspan(-margin, margin, color=MARGIN, linewidth=0, zorder=0)
    axes.axhline(0, color="#3c4043", linewidth=1, zorder=1)
    limit = _points_per_line(len(lines))
    for line in lines:
        steps, values = zip(*thin(line, limit), strict=True)
        axes.plot(steps, values, color=tone, linewidth=1, alpha=0.45, marker="o", markersize=2)
    judged = comparison.get("verdict") is not None  # a mean over the runs that did not diverge would hide the others
    rows = [row for row in comparison.get("horizons") or [] if judged and _known(row.get("mean"))]
    means = [(row["step"], row["mean"]) for row in rows]
    bands = [(row["step"], row["low"], row["high"]) for row in rows if _known(row.get("low")) and _known(row["high"])]
    if bands:
        steps, lows, highs = zip(*bands, strict=True)
        axes.fill_between(steps, lows, highs, color=tone, alpha=0.14, linewidth=0)
    if means:
        steps, values = zip(*means, strict=True)
        axes.plot(steps, values, color=tone, linewidth=2.4)
    edges = [(step, value) for step, *ends in bands for value in ends]
    low, high = _frame([*lines, edges] if edges else lines)
    axes.set_ylim(*padded(min(low, -margin), max(high, margin)))
    _label_steps(axes)
    return svg(figure, key)


def draw_losses(
    lines: Sequence[tuple[str, Points]], floors: Sequence[tuple[str, float]], smooth: bool, key: str
) -> str:
    """A curve for each (colour, points), and each (label, value) of `floors` as a dashed line where it is near."""
    found = [(colour, finite) for colour, points in lines if (finite := _finite(points))]
    if not found:
        return ""
    figure, axes = canvas(2.9, key)
    limit = _points_per_line(len(found))
    drawn = [(colour, _smoothed(thin(line, limit)) if smooth else thin(line, limit)) for colour, line in found]
    for colour, line in drawn:
        steps, values = zip(*line, strict=True)
        marker = "o" if len(line) <= 25 else ""
        axes.plot(steps, values, color=colour, linewidth=1.2, alpha=0.8, marker=marker, markersize=2.5)
    low, high = _frame([line for _, line in drawn])
    span = high - low or 0.1
    near = [(label, value) for label, value in floors if low - 3 * span <= value <= high + span / 4]
    axes.set_ylim(*padded(min([low, *(v for _, v in near)]), max([high, *(v for _, v in near)]), 0.11))
    for label, value in near:
        axes.axhline(value, color="#3c4043", linewidth=1, linestyle=(0, (5, 3)))
        above = value > low  # the name keeps off the curves
        axes.annotate(
            label,
            (1, value),
            (0, 3 if above else -3),
            xycoords=("axes fraction", "data"),
            textcoords="offset points",
            ha="right",
            va="bottom" if above else "top",
            fontsize=9,
        )
    _label_steps(axes)
    return svg(figure, key)


def _label_differences(axes: "Axes", ends: Sequence[float], margin: float, lower_is_better: bool) -> None:
    """An axis of differences that holds `ends`, zero, and the margin as a band."""
    axes.axvspan(-margin, margin, color=MARGIN, linewidth=0, zorder=0)
    axes.axvline(0, color="#3c4043", linewidth=1, zorder=1)
    ends = [0.0, -margin, margin, *ends]
    axes.set_xlim(*padded(min(ends), max(ends)))
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.locator_params(axis="x", nbins=5)
    axes.set_xlabel("← better · difference · worse →" if lower_is_better else "← worse · difference · better →")


def thin(points: Sequence[tuple[float, float]], limit: int = LINE_POINTS) -> list[tuple[float, float]]:
    """At most `limit` points, each the mean of a stretch that ends at its step; the last step is kept."""
    size = max(1, math.ceil(len(points) / limit))
    stretches = [points[start : start + size] for start in range(0, len(points), size)]
    return [(part[-1][0], math.fsum(value for _, value in part) / len(part)) for part in stretches]


def _smoothed(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """A centred mean over about a twentieth of the run; shorter at the ends, so that nothing is shifted."""
    reach = len(points) // 40
    result = []
    for i, (step, _) in enumerate(points):
        near = min(reach, i, len(points) - 1 - i)
        part = points[i - near : i + near + 1]
        result.append((step, math.fsum(value for _, value in part) / len(part)))
    return result


def _points_per_line(lines: int) -> int:
    return max(10, min(LINE_POINTS, FIGURE_POINTS // lines))


def _known(value: float | None) -> bool:
    return value is not None and math.isfinite(value)


def _finite(points: Points) -> list[tuple[float, float]]:
    return [(step, value) for step, value, *_ in points if step is not None and value is not None and _known(value)]


def _frame(lines: Sequence[Sequence[tuple[float, float]]]) -> tuple[float, float]:
    """The range of values once the first tenth is over, of the runs that ended: both the start and a run that diverged
    would flatten all that is worth seeing."""
    last = max(step for line in lines for step, _ in line)
    ended = [line for line in lines if max(step for step, _ in line) == last]
    late = [value for line in ended for step, value in line if step >= last / 10]
    return min(late), max(late)


def _label_steps(axes: "Axes") -> None:
    from matplotlib.ticker import FuncFormatter

    axes.locator_params(axis="x", nbins=6, integer=True)
    axes.locator_params(axis="y", nbins=6)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda step, _: f"{step:,.0f}"))
    axes.grid(axis="y", color="#eceff1", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.set_xlabel("step")

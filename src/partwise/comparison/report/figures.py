"""The report's figures as SVG text for embedding in an HTML page.

Names that users supply are escaped; long ones are broken into two lines and then cut, as the page has them in full.
"""

import math
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

from partwise.comparison.results import ClaimResult, StepEffect
from partwise.comparison.stats.effect import Effect
from partwise.plots.colors import MARGIN, VERDICT_COLORS
from partwise.plots.curves import Points, choose_marker, finite_points, label_steps, late_range, points_per_line, thin
from partwise.plots.plotting import new_figure, padded_limits, to_svg

if TYPE_CHECKING:
    from matplotlib.axes import Axes


NAME_LENGTH = 58
"""Characters of a name on one line of a figure."""


def draw_differences(effect: Effect, color: str, margin: float, lower_is_better: bool, key: str) -> str:
    """Each seed's difference as a dot, the mean with its interval, and the margin as a band; '' without a difference.

    `key` makes the SVG's ids unique within a page.
    """
    pairs = [(s, d) for s, d in zip(effect.seeds, effect.differences, strict=True) if d is not None]
    mean, low, high = effect.mean, effect.low, effect.high
    if not pairs and mean is None:
        return ""
    rows = [f"seed {seed}" for seed, _ in pairs]
    step = 0.21 if len(rows) <= 20 else 0.21 * 20 / len(rows)
    figure, axes = new_figure(1.0 + step * (len(rows) + 1), key)
    for row, (_, value) in enumerate(pairs):
        axes.plot([value], [row], "o", color=color, markersize=5.5, alpha=0.75, markeredgewidth=0)
    bottom = len(rows) + 0.35
    ends = [value for _, value in pairs]
    if mean is not None:
        if low is not None and high is not None:
            axes.plot([low, high], [bottom, bottom], color=color, linewidth=2.2, solid_capstyle="butt")
            axes.plot([low, high], [bottom, bottom], "|", color=color, markersize=9, markeredgewidth=2.2)
            ends += [low, high]
        axes.plot([mean], [bottom], "D", color=color, markersize=7.5, markeredgecolor="white")
        ends.append(mean)
    every = math.ceil(len(rows) / 20)
    ticks = [row for row in range(len(rows)) if row % every == 0]
    axes.set_yticks([*ticks, bottom], [*(rows[row] for row in ticks), "mean" if mean is not None else ""])
    axes.set_ylim(bottom + 0.8, -0.8)
    axes.axvspan(-margin, margin, color=MARGIN, linewidth=0, zorder=0)
    axes.axvline(0, color="#3c4043", linewidth=1, zorder=1)
    _label_differences(axes, ends, margin, lower_is_better)
    return to_svg(figure, key, "difference")


def draw_forest(effects: Sequence[Effect], names: Sequence[str], margin: float, lower_is_better: bool, key: str) -> str:
    """A forest plot: below its name, the mean and interval of every effect in its verdict's color; '' for none."""
    if all(effect.mean is None for effect in effects):
        return ""
    labels = ["\n".join(textwrap.wrap(name, NAME_LENGTH, max_lines=2, placeholder=" …")) for name in names]
    height = 0.42 + 0.15 * any("\n" in label for label in labels)
    figure, axes = new_figure(0.7 + height * len(effects), key)
    ends: list[float] = []
    for row, (effect, label) in enumerate(zip(effects, labels, strict=True)):
        color, mean, low, high = VERDICT_COLORS[effect.verdict or "none"], effect.mean, effect.low, effect.high
        axes.annotate(
            label,
            (0, row),
            (0, 6),
            xycoords=("axes fraction", "data"),
            textcoords="offset points",
            va="bottom",
            fontsize=9,
            color=color,
            parse_math=False,
        )
        if low is not None and high is not None:
            axes.plot([low, high], [row, row], color=color, linewidth=2.2, solid_capstyle="butt")
            ends += [low, high]
        if mean is not None:
            axes.plot([mean], [row], "D", color=color, markersize=6.5, markeredgecolor="white")
            ends.append(mean)
        axes.fill_between([-margin, margin], row - 0.25, row + 0.25, color=MARGIN, linewidth=0, zorder=0)
        axes.plot([0, 0], [row - 0.25, row + 0.25], color="#3c4043", linewidth=1, zorder=1)
    axes.set_yticks([])
    axes.set_ylim(len(effects) - 0.6, -0.85)
    _label_differences(axes, ends, margin, lower_is_better)
    return to_svg(figure, key, "mean")


def draw_all_over_time(
    lines: Sequence[tuple[str, Sequence[StepEffect]]], margin: float, key: str, height: float = 2.9
) -> str:
    """The mean difference of every claim at each evaluation, with its interval as a band: a (color, points) each."""
    curves = [
        (color, [(p.step, p.mean, p.low, p.high) for p in points if p.mean is not None]) for color, points in lines
    ]
    curves = [(color, points) for color, points in curves if len(points) > 1]
    if not curves:
        return ""
    figure, axes = new_figure(height, key)
    axes.axhspan(-margin, margin, color=MARGIN, linewidth=0, zorder=0)
    axes.axhline(0, color="#3c4043", linewidth=1, zorder=1)
    marker = choose_marker([points for _, points in curves])
    for color, points in curves:
        banded = [(step, low, high) for step, _, low, high in points if low is not None and high is not None]
        if banded:
            steps, lows, highs = zip(*banded, strict=True)
            axes.fill_between(steps, lows, highs, color=color, alpha=0.16, linewidth=0)
        steps, means, *_ = zip(*points, strict=True)
        axes.plot(steps, means, color=color, linewidth=2, marker=marker, markersize=3)
    lines_drawn = [[(float(step), mean) for step, mean, *_ in points if mean is not None] for _, points in curves]
    low, high = late_range(lines_drawn)
    axes.set_ylim(*padded_limits(min(low, -margin), max(high, margin), 0.15))
    label_steps(axes)
    return to_svg(figure, key, "step", "mean")


def draw_over_horizons(lines: Sequence[tuple[str, Sequence[StepEffect]]], margin: float, key: str) -> str:
    """The mean difference of every claim at the end of runs of each length, with its interval: a (color, points) each."""
    curves = [
        (color, [(p.step, p.mean, p.low, p.high) for p in points if p.mean is not None]) for color, points in lines
    ]
    curves = [(color, points) for color, points in curves if points]
    if not curves:
        return ""
    figure, axes = new_figure(3.2, key)
    axes.axhspan(-margin, margin, color=MARGIN, linewidth=0, zorder=0)
    axes.axhline(0, color="#3c4043", linewidth=1, zorder=1)
    axes.set_xscale("log")
    for index, (color, points) in enumerate(curves):
        aside = 1.02 ** (index - (len(curves) - 1) / 2)  # so that intervals at one length do not hide each other
        axes.plot(
            [step * aside for step, *_ in points],
            [mean for _, mean, *_ in points],
            "o-",
            color=color,
            linewidth=1.6,
            markersize=4.5,
        )
        for step, _, low, high in points:
            if low is not None and high is not None:
                axes.plot([step * aside] * 2, [low, high], color=color, linewidth=1.6)
    ticks = sorted({step for _, points in curves for step, *_ in points})
    axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
    axes.set_xticks([], minor=True)
    axes.grid(axis="y", color="#eceff1", linewidth=0.8)
    axes.set_xlabel("steps at the end of a run, logarithmic")
    return to_svg(figure, key, "steps", "mean difference")


def draw_tuning(
    lines: Sequence[tuple[str, Points]], numeric: bool, key: str, metric: str, lower_is_better: bool
) -> str:
    """Mean of a metric at each value of the tuned setting: a (color, points) line per arm with a star at its best value."""
    curves = [(color, finite) for color, points in lines if (finite := finite_points(points))]
    if not curves:
        return ""
    figure, axes = new_figure(2.9, key)
    for color, points in curves:
        values, losses = zip(*points, strict=True)
        axes.plot(values, losses, "o-", color=color, linewidth=1.4, markersize=4)
        best = (min if lower_is_better else max)(points, key=lambda point: point[1])
        axes.plot([best[0]], [best[1]], "*", color=color, markersize=13, markeredgecolor="white")
    ticks = sorted({value for _, points in curves for value, _ in points})
    if numeric and min(ticks) > 0:
        axes.set_xscale("log")
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.set_xticks([], minor=True)
    axes.grid(axis="y", color="#eceff1", linewidth=0.8)
    return to_svg(figure, key, "value" if numeric else "", metric)


def draw_over_time(claim: ClaimResult, color: str, margin: float, key: str) -> str:
    """The paired difference at every evaluation: a thin line per seed, the mean with its interval, zero and the margin."""
    lines = [line for line in map(finite_points, claim.differences_over_training) if line]
    if not lines:
        return ""
    figure, axes = new_figure(2.9, key)
    axes.axhspan(-margin, margin, color=MARGIN, linewidth=0, zorder=0)
    axes.axhline(0, color="#3c4043", linewidth=1, zorder=1)
    limit, marker = points_per_line(len(lines)), choose_marker(lines)
    for line in lines:
        steps, values = zip(*thin(line, limit), strict=True)
        axes.plot(steps, values, color=color, linewidth=1, alpha=0.45, marker=marker, markersize=2)
    judged = claim.effect.verdict is not None  # a mean over the surviving runs would hide those that diverged
    rows = claim.effect_over_training if judged else ()
    means = [(row.step, row.mean) for row in rows if row.mean is not None]
    bands = [(row.step, row.low, row.high) for row in rows if row.low is not None and row.high is not None]
    if bands:
        steps, lows, highs = zip(*bands, strict=True)
        axes.fill_between(steps, lows, highs, color=color, alpha=0.14, linewidth=0)
    if means:
        steps, values = zip(*means, strict=True)
        axes.plot(steps, values, color=color, linewidth=2.4)
    edges = [(step, value) for step, *ends in bands for value in ends]
    low, high = late_range([*lines, edges] if edges else lines)
    axes.set_ylim(*padded_limits(min(low, -margin), max(high, margin)))
    label_steps(axes)
    return to_svg(figure, key, "step", "difference")


def _label_differences(axes: "Axes", ends: Sequence[float], margin: float, lower_is_better: bool) -> None:
    """Set up an x axis of differences that covers `ends`, zero and the margin."""
    ends = [0.0, -margin, margin, *ends]
    axes.set_xlim(*padded_limits(min(ends), max(ends)))
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.locator_params(axis="x", nbins=5)
    axes.set_xlabel("← better · difference · worse →" if lower_is_better else "← worse · difference · better →")

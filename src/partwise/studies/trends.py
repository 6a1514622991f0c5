"""Small multiples: the effect of each part against the number of steps, and how it changes with size, corpus and steps."""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from partwise.comparison.report.cells import Interval
from partwise.plots.plotting import COLORS, STYLE, padded_limits, set_difference_scale, svg_file
from partwise.studies.growth import Contrast, GrowthLine, Setting, contrasts, growth_lines, settings_of
from partwise.studies.study import Study

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TRENDS = "images/trends.svg"
"""The figure, beside the page."""

COLUMNS = 3
LEGEND_COLUMNS = 3


@dataclass(frozen=True)
class Look:
    """How a setting is drawn: the sizes of the first corpus in one hue, larger ones darker; other corpora dashed."""

    color: str
    marker: str = "o"
    line: str = "-"


Rows = list[tuple[str, list[tuple[Interval, Look]]]]
"""The changes of each part."""


def draw_trends(studies: Sequence[Study]) -> str:
    """An SVG with a panel for each part, and below them the changes; '' without results."""
    lines = growth_lines(studies)
    if not lines:
        return ""
    import matplotlib
    from matplotlib.figure import Figure

    looks, grid_rows = choose_looks(lines), -(-len(lines) // COLUMNS)
    changes = [panel for panel in (changes_by_setting(lines, looks), changes_by_steps(lines, looks)) if panel[1]]
    with matplotlib.rc_context(STYLE | {"svg.hashsalt": "trends"}):
        heights = [2.6 * grid_rows, 0.5 * len(lines) + 1.2] if changes else [2.6 * grid_rows]
        figure = Figure(figsize=(9.2, sum(heights) + 0.4), layout="constrained", facecolor="white")
        parts = figure.subfigures(len(heights), 1, squeeze=False, height_ratios=heights)
        panels = [axes for row in parts[0][0].subplots(grid_rows, COLUMNS, squeeze=False) for axes in row]
        for axes, (part, part_lines) in zip(panels, lines.items(), strict=False):
            draw_panel(axes, part, part_lines, looks)
        for axes in panels[len(lines) :]:
            axes.set_visible(False)
        unit = next(iter(lines.values()))[0].effect.unit
        for axes in panels[::COLUMNS]:
            axes.set_ylabel(f"difference{f', {unit}' if unit else ''}\nabove 0: worse")
        if changes:
            below = parts[1][0].subplots(1, len(changes), squeeze=False)[0]
            for axes, (title, rows) in zip(below, changes, strict=True):
                draw_changes(axes, title, rows)
            for axes in below[1:]:
                axes.set_yticklabels([])
        handles = {
            label: handle for axes in panels for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
        }
        labels = [str(setting) for setting in looks]
        columns = min(len(labels), LEGEND_COLUMNS)
        figure.legend(
            [handles[label] for label in labels], labels, loc="outside lower center", ncols=columns, frameon=False
        )
        return svg_file(figure)


def choose_looks(lines: dict[str, list[GrowthLine]]) -> dict[Setting, Look]:
    """By setting, the sizes of the first corpus before other corpora."""
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    own, others = settings_of(lines)
    between = min(0.3, 0.6 / max(1, len(own) - 1))
    shades = [to_hex(colormaps["Blues"](1 - between * index)) for index in reversed(range(len(own)))]
    dashed = [Look(COLORS[1 + index % (len(COLORS) - 1)], "s", "--") for index in range(len(others))]
    return dict(zip([*own, *others], [*map(Look, shades), *dashed], strict=True))


def draw_panel(axes: "Axes", part: str, lines: Sequence[GrowthLine], looks: dict[Setting, Look]) -> None:
    """The margin as a band, and each line with its intervals and its seeds as dots, side by side at each number of steps.

    The limits are those of the seeds: the interval of few seeds that differ much is cut off.
    """
    from matplotlib.ticker import NullLocator

    margin = lines[0].effect.margin
    axes.axhspan(-margin, margin, color="#dde6ee", linewidth=0)
    axes.axhline(0, color="#3c4043", linewidth=1)
    order = [*looks]
    for line in lines:
        look, points = looks[line.setting], line.points
        shift = 1.07 ** (order.index(line.setting) - (len(order) - 1) / 2)
        half_widths = [0.0 if each.low is None or each.high is None else (each.high - each.low) / 2 for each in points]
        axes.errorbar(
            [point.step * shift for point in points],
            [point.mean or 0.0 for point in points],
            half_widths,
            fmt=look.marker,
            linestyle=look.line,
            color=look.color,
            label=str(line.setting),
            linewidth=1.5,
            markersize=4,
        )
        for step, values in line.differences.items():
            axes.plot([step * shift * 1.025] * len(values), values, ".", color=look.color, markersize=2.5, alpha=0.8)
    seeds = [value for line in lines for values in line.differences.values() for value in values]
    axes.set_ylim(*padded_limits(min(-margin, *seeds), max(margin, *seeds)))
    steps = sorted({step for line in lines for step in line.differences})
    axes.set_xscale("log")
    axes.set_xlim(steps[0] / 1.3, steps[-1] * 1.3)
    axes.set_xticks(steps, [f"{step:,}" for step in steps])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_title(part, loc="left", fontsize=10)
    axes.set_xlabel("steps")


def changes_by_setting(lines: dict[str, list[GrowthLine]], looks: dict[Setting, Look]) -> tuple[str, Rows]:
    """The changes with size, and with corpus, each in the look of the setting to which it leads."""
    found = contrasts(lines)
    rows: Rows = []
    for part in lines:
        changes = [(each.changes.get(part), change_look(each, looks)) for each in found]
        rows.append((part, [(change, look) for change, look in changes if change]))
    return "; ".join(each.title for each in found), rows if found else []


def change_look(contrast: Contrast, looks: dict[Setting, Look]) -> Look:
    """With a diamond if it is a change with size that does not start from the smallest model."""
    smallest, look = next(iter(looks)), looks[contrast.second]
    from_smallest = contrast.first == smallest or contrast.second.corpus != smallest.corpus
    return look if from_smallest else replace(look, marker="D")


def changes_by_steps(lines: dict[str, list[GrowthLine]], looks: dict[Setting, Look]) -> tuple[str, Rows]:
    """The changes from the smallest number of steps to the largest, of the lines that have both."""
    rows: Rows = []
    steps = sorted({step for each in lines.values() for line in each for step in line.differences})
    for part, each in lines.items():
        changes = [(line.change, looks[line.setting]) for line in each if {steps[0], steps[-1]} <= {*line.differences}]
        rows.append((part, [(change, look) for change, look in changes if change]))
    return f"{steps[0]:,} to {steps[-1]:,} steps", rows if any(changes for _, changes in rows) else []


def draw_changes(axes: "Axes", title: str, rows: Rows) -> None:
    """A row for each part, its changes one below the other."""
    axes.axvline(0, color="#3c4043", linewidth=1)
    reach = 0.02
    for row, (_, changes) in enumerate(rows):
        for index, (change, look) in enumerate(changes):
            place = row + min(0.17, 0.8 / len(changes)) * (index - (len(changes) - 1) / 2)
            ends = [end for end in (change.low, change.high) if end is not None]
            axes.plot(ends, [place] * len(ends), color=look.color, linewidth=1.8, solid_capstyle="butt")
            center = change.mean or 0.0
            axes.plot([center], [place], look.marker, color=look.color, markersize=4.5, markeredgecolor="white")
            reach = max(reach, *map(abs, ends), abs(center))
    axes.set_yticks(range(len(rows)), [part for part, _ in rows])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    set_difference_scale(axes, reach)
    axes.set_title(textwrap.fill(f"change, {title}", 48), loc="left", fontsize=10)

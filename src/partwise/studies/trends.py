"""Small multiples: the effect of each part against the number of steps, a line for each size of model and corpus."""

import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from partwise.comparison.results import StepEffect
from partwise.plots.plotting import COLORS, STYLE
from partwise.studies.claims import Finding, find_outcomes
from partwise.studies.study import Study

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TRENDS = "images/trends.svg"
"""The figure, beside the page."""

GROWTH, BASE = "growth", "decoder-1m"
"""The study that repeats claims in other settings, and the protocol whose claims it repeats."""

BASE_SETTING = "0.9M"
COLUMNS = 3


@dataclass(frozen=True)
class Line:
    """The differences of one part in one setting."""

    setting: str
    points: tuple[StepEffect, ...]


def trends(studies: Sequence[Study]) -> dict[str, list[Line]]:
    """For each part of the study of growth that has results, its lines, by size."""
    found = find_outcomes(studies)
    repeated = [finding for study in studies if study.name == GROWTH for finding in found[study.name]]
    claims = [finding for study in studies if study.protocol == BASE for finding in found[study.name]]
    lines: dict[str, list[Line]] = {}
    for finding in repeated:
        part = part_of(finding)
        first = [Line(BASE_SETTING, claim.over_horizons) for claim in claims if part_of(claim) == part][:1]
        lines.setdefault(part, first).append(Line(finding.key, finding.over_horizons))
    return {part: sorted(each, key=lambda line: line.setting) for part, each in lines.items()}


def part_of(finding: Finding) -> str:
    """The part that an arm changes: its first override."""
    return finding.effect.arm.split()[0]


def draw_trends(studies: Sequence[Study], margin: float = 0.02) -> str:
    """An SVG with a panel for each part; '' without results."""
    lines = trends(studies)
    if not lines:
        return ""
    import matplotlib
    from matplotlib.figure import Figure

    rows = -(-len(lines) // COLUMNS)
    settings = sorted({line.setting for part in lines.values() for line in part})
    colors = {setting: COLORS[index % len(COLORS)] for index, setting in enumerate(settings)}
    with matplotlib.rc_context(STYLE | {"svg.hashsalt": "trends"}):
        figure = Figure(figsize=(9.2, 2.7 * rows + 0.4), layout="constrained", facecolor="white")
        panels = [axes for row in figure.subplots(rows, COLUMNS, squeeze=False) for axes in row]
        for axes, (part, part_lines) in zip(panels, lines.items(), strict=False):
            draw_panel(axes, part, part_lines, colors, margin)
        for axes in panels[len(lines) :]:
            axes.set_visible(False)
        panels[0].set_ylabel("difference of validation loss\nabove 0: worse")
        handles = {
            label: handle for axes in panels for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
        }
        labels = sorted(handles)
        figure.legend(
            [handles[label] for label in labels], labels, loc="outside lower center", ncols=len(labels), frameon=False
        )
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    return "\n".join(line.rstrip() for line in buffer.getvalue().splitlines()) + "\n"


def draw_panel(axes: "Axes", part: str, lines: Sequence[Line], colors: dict[str, str], margin: float) -> None:
    """The margin as a band, and each line with its intervals, side by side at each number of steps."""
    from matplotlib.ticker import NullLocator

    axes.axhspan(-margin, margin, color="#dde6ee", linewidth=0)
    axes.axhline(0, color="#3c4043", linewidth=1)
    steps: set[int] = set()
    for index, line in enumerate(lines):
        points = [point for point in line.points if point.mean is not None]
        shift = 1.04 ** (index - (len(lines) - 1) / 2)
        x, y = [point.step * shift for point in points], [point.mean or 0.0 for point in points]
        low = [(point.mean or 0.0) - (point.low or 0.0) for point in points]
        high = [(point.high or 0.0) - (point.mean or 0.0) for point in points]
        axes.errorbar(
            x, y, (low, high), fmt="o-", color=colors[line.setting], label=line.setting, linewidth=1.6, markersize=4
        )
        steps |= {point.step for point in points}
    axes.set_xscale("log")
    axes.set_xticks(sorted(steps), [f"{step:,}" for step in sorted(steps)])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_title(part, loc="left", fontsize=10)
    axes.set_xlabel("steps")

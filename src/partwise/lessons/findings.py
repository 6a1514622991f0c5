"""What a lesson shows of the stored answers: its picture, also as a table, and claims about larger models."""

import math
import textwrap
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from partwise.comparison.stats.number_format import format_number
from partwise.comparison.stats.samples import mean, sd
from partwise.lessons.answers import (
    Measured,
    Series,
    StoredAnswer,
    final_losses,
    find_value,
    judge,
    per_seed,
)
from partwise.lessons.lesson import Lesson, Quantity
from partwise.lessons.search import draw_search, search_table
from partwise.messages import quantity
from partwise.plots.text_table import TextTable
from partwise.torch_extra import has_torch

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_STEPS = 6
"""The columns of steps in a table."""


def picture_table(answer: StoredAnswer, before: bool) -> TextTable:
    """The figure of a lesson as a table, `before` the prediction or after it."""
    if answer.lesson.head.picture == "search" and not before:
        return search_table(answer)
    if answer.lesson.head.picture != "curves":
        found = quantity_values(answer, before)
        digits = 4 if any(sd(values) for _, values in found) else 0  # exact
        rows = [[row_label(each), f"{mean(values):.{digits}f}", f"{sd(values):.{digits}f}"] for each, values in found]
        return TextTable([answer.lesson.head.values or "over the stored seeds", "mean", "SD"], rows, "")
    series = shown_series(answer, before)
    steps = curve_steps(series)
    shown = sorted({steps[round(i * (len(steps) - 1) / (MOST_STEPS - 1))] for i in range(MOST_STEPS)})
    rows = []
    for arm in series:
        curve = dict(zip(steps, mean_curve(series, arm), strict=True))
        rows.append([label(answer.lesson, arm), *(f"{curve[step]:.3f}" for step in shown)])
    for name, loss in answer.lesson.head.references.items():
        rows.append([name, *[""] * (len(shown) - 1), f"{loss:.3f}"])
    return TextTable(["loss after steps", *(f"{step:,}" for step in shown)], rows, "")


def shown_series(answer: StoredAnswer, before: bool) -> Series:
    """The arms of a figure of curves."""
    series = answer.measured["main"]
    return {arm: series[arm] for arm in answer.lesson.head.problem} if before else series


def label(lesson: Lesson, arm: str) -> str:
    return lesson.head.labels.get(arm, arm)


def curve_steps(series: Series) -> list[int]:
    measures = next(iter(series.values()))
    return sorted(int(name.partition("@")[2]) for name in measures if name.startswith("loss@"))


def mean_curve(series: Series, arm: str) -> list[float]:
    """The mean loss over seeds at each evaluation; nan where a run has failed."""
    found = []
    for step in curve_steps(series):
        values = list(series[arm][f"loss@{step}"].values())
        found.append(mean(values) if all(map(math.isfinite, values)) else math.nan)
    return found


def quantity_values(answer: StoredAnswer, before: bool) -> list[tuple[Quantity, list[float]]]:
    """Each quantity in a figure, with its value on each stored seed."""
    shown = figure_quantities(answer.lesson, before)
    found = {(each.run, each.arm, each.against, each.measure): each for each in reversed(shown)}  # its mean, or its SD
    return [(each, list(per_seed(each, answer.measured).values())) for each in reversed(found.values())]


def row_label(quantity: Quantity) -> str:
    """What one row of values is; a quantity may be the SD over rows."""
    return quantity.text.removeprefix("SD of the ")


def figure_quantities(lesson: Lesson, before: bool) -> list[Quantity]:
    """What a figure of dots or bars shows: the quantities of the problem, or all in the unit of the predicted one."""
    if before:
        return [lesson.head.quantities[name] for name in lesson.head.problem]
    return [each for each in lesson.head.quantities.values() if each.unit == lesson.asked.unit]


def draw_picture(answer: StoredAnswer, before: bool) -> str:
    """The figure as SVG: that of the problem, `before` the prediction, or that of the answer."""
    import matplotlib
    from matplotlib.figure import Figure

    from partwise.plots.plotting import STYLE, WIDTH, svg_file

    with matplotlib.rc_context(STYLE | {"svg.hashsalt": answer.lesson.name}):
        picture = answer.lesson.head.picture
        picture = "dots" if picture == "search" and before else picture
        if picture == "dots" and figure_quantities(answer.lesson, before)[0].unit != answer.lesson.asked.unit:
            picture = "bars"  # the margin of dots is in the unit of the predicted quantity
        height = 3.2 if picture in ("curves", "search") else 0.9 + 0.5 * len(quantity_values(answer, before))
        figure = Figure(figsize=(WIDTH, height), layout="constrained", facecolor="white")
        draw = {"curves": draw_curves, "dots": draw_dots, "bars": draw_bars, "search": draw_search}[picture]
        draw(figure.subplots(), answer, before)
        return svg_file(figure)


def draw_curves(axes: "Axes", answer: StoredAnswer, before: bool) -> None:
    """The mean loss of each arm by step, with each seed as a thin line."""
    from partwise.plots.plotting import COLORS

    series = shown_series(answer, before)
    steps = curve_steps(series)
    colors = dict(zip(answer.measured["main"], COLORS, strict=False))  # an arm has one color in both figures
    for arm in series:
        color = colors[arm]
        for seed in next(iter(series[arm].values())):
            axes.plot(steps, [series[arm][f"loss@{step}"][seed] for step in steps], color=color, lw=0.5, alpha=0.15)
        curve = mean_curve(series, arm)
        axes.plot(steps, curve, color=color, lw=2)
        at = (steps[-1], curve[-1])
        text = label(answer.lesson, arm)
        box = {"facecolor": "white", "edgecolor": "none", "pad": 0.5}  # before the line of a reference
        axes.annotate(text, at, (5, 0), textcoords="offset points", va="center", color=color, bbox=box)
    for name, loss in answer.lesson.head.references.items():
        axes.axhline(loss, color="#9aa0a6", lw=0.8, ls="--", zorder=0)
        axes.annotate(name, (0, loss), (3, 2), textcoords="offset points", size=9, color="#5f6368")
    axes.set_xlabel("training steps")
    axes.set_ylabel("validation loss, nats per character")
    longest = max(len(label(answer.lesson, arm)) for arm in series)
    axes.set_xlim(0, steps[-1] * (1.05 + 0.03 * longest))
    axes.set_xticks(steps)


def draw_dots(axes: "Axes", answer: StoredAnswer, before: bool) -> None:
    """One row of dots per quantity: its value on every stored seed; about its mean if the quantity is an SD."""
    spreads = answer.lesson.asked.statistic == "sd"
    found = quantity_values(answer, before)
    for row, ((_, values), color) in enumerate(zip(found, row_colors(found), strict=True)):
        center = mean(values) if spreads else 0.0
        axes.plot(
            [value - center for value in values], heights(row, values), "o", color=color, ms=4, alpha=0.7, mec="none"
        )
    if not spreads:
        margin = answer.lesson.head.runs[answer.lesson.asked.run].margin
        axes.axvspan(-margin, margin, color="#dde6ee", zorder=0)
        above: dict[str, Any] = {"xycoords": ("data", "axes fraction"), "textcoords": "offset points", "ha": "center"}
        axes.annotate(f"margin ±{margin:g}", (0, 1), (0, 3), size=9, color="#5f6368", **above)
    label_rows(axes, found, "SD" if spreads else "mean")
    unit = answer.lesson.asked.unit
    axes.set_xlabel(f"one seed minus the mean, {unit}" if spreads else unit)


def row_colors(found: list[tuple[Quantity, list[float]]]) -> list[str]:
    """One color for all rows of a run with the same change, at any rate."""
    from partwise.plots.plotting import COLORS

    changes = [(each.run, each.arm.split()[0]) for each, _ in found]
    colors = dict(zip(dict.fromkeys(changes), COLORS, strict=False))
    return [colors[change] for change in changes]


def heights(row: int, values: list[float]) -> list[float]:
    """Heights that keep the dots of a row apart, the same every time."""
    return [row + 0.22 * math.sin(2.4 * number) for number in range(len(values))]


def label_rows(axes: "Axes", found: list[tuple[Quantity, list[float]]], statistic: str) -> None:
    """What each row is, on the left, and its mean or SD, on the right."""
    axes.axvline(0, color="#9aa0a6", lw=0.8, zorder=0)
    labels = [textwrap.fill(row_label(each), 24) for each, _ in found]
    axes.set_yticks(range(len(labels)), labels)
    axes.set_ylim(len(labels) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)
    axes.locator_params(axis="x", nbins=5)
    beside: dict[str, Any] = {
        "xycoords": ("axes fraction", "data"),
        "textcoords": "offset points",
        "size": 9,
        "color": "#3c4043",
    }
    numbers = [sd(values) if statistic == "SD" else mean(values) for _, values in found]
    digits = 0 if all(map(float.is_integer, numbers)) else 2 if max(map(abs, numbers)) >= 0.3 else 4
    for row, number in enumerate(numbers):
        axes.annotate(f"{round(number, digits) + 0:.{digits}f}", (1, row), (6, 0), va="center", **beside)
    axes.annotate(statistic, (1, -0.5), (6, 3), **beside)


def draw_bars(axes: "Axes", answer: StoredAnswer, before: bool) -> None:
    """A bar for the mean of each quantity, with each seed as a dot if it varies."""
    found = quantity_values(answer, before)
    for row, ((_, values), color) in enumerate(zip(found, row_colors(found), strict=True)):
        axes.barh(row, mean(values), color=color, alpha=0.5, height=0.6)
        if len(set(values)) > 2:  # not a size, nor runs that failed or did not
            axes.plot(values, heights(row, values), "o", color="#3c4043", ms=2.5, alpha=0.5, mec="none")
    label_rows(axes, found, "mean")
    unit = figure_quantities(answer.lesson, before)[0].unit
    axes.set_xlabel(",\n".join(filter(None, [answer.lesson.head.values, unit])))  # one line would be cut


def answer_table(answer: StoredAnswer, measured: Measured | None) -> Iterator[list[str]]:
    """A head and one row per quantity: yours if it is measured, that of the stored seeds, and where others' lie."""
    units = {each.unit for each in answer.lesson.head.quantities.values()}
    unit = f" ({units.pop()})" if len(units) == 1 else ""
    what = (answer.lesson.head.values or "quantity") + unit
    yield [what, *(["yours"] if measured else []), f"{answer.seeds} seeds", "99.9% of readers"]
    for each in answer.lesson.head.quantities.values():
        found = answer.expected(each)
        exact = found.low == found.high
        digits = 0 if exact else 2 if each.statistic == "share" or found.high - found.low >= 1 else 4
        row = [each.text]
        if measured:
            value = find_value(each, measured)
            row.append(format_number(value, digits) + ("" if value in found else " !"))
        low, high = (format_number(end, digits) for end in (found.low, found.high))
        yield [*row, format_number(found.value, digits), low if exact else f"{low} to {high}"]


def verdict_lines(answer: StoredAnswer, measured: Measured | None) -> Iterator[str]:
    """The verdict on each arm, and how often groups of stored seeds agree."""
    for (run, arm), counted in answer.verdicts().items():
        request = answer.lesson.head.runs[run]
        groups = ", ".join(f"{verdict} in {count}" for verdict, count in counted.most_common())
        yours = ""
        if measured:
            losses = final_losses(measured[run])
            effects = judge(losses, request, next(iter(losses.values())))
            yours = f"{next(each.verdict for each in effects if each.arm == arm)}; "
        yield f"{arm}: {yours}of ten groups of {quantity(request.seeds, 'stored seed')}, {groups}"


def claims_lines(lesson: Lesson) -> Iterator[str]:
    """What the library of claims found for the lesson's question with larger models, judged in the families of claims.

    Nothing without torch, with which studies plan their models; the rest of a stored answer needs none.
    """
    if not lesson.head.claims or not has_torch():
        return
    from partwise.concepts.results import library, outcomes
    from partwise.studies.claims import distinct_names

    studies = {each.name: each for each in library()}
    for name, _, start in (claim.partition(" ") for claim in lesson.head.claims):
        study = studies[name]
        all_found = outcomes(study.protocol, "" if study.protocol else name)[name]
        findings = [each for each in all_found if each.key == start or each.short_name.startswith(start)]
        for finding, arm in zip(findings, distinct_names(findings), strict=True):
            effect, task = finding.effect, finding.results.task
            if effect.mean is None or effect.low is None or effect.high is None or task is None:
                continue
            baseline = finding.results.arms[0]
            size = f"{(baseline.parameters or 0) / 1e6:.2f} million parameters, {task.steps:,} steps"
            interval = f"{effect.mean:+.3f} ({effect.low:.3f} to {effect.high:.3f})"
            arm = finding.short_name if finding.key == task.name else arm  # "on" names the data
            preset = baseline.name.split()[0]  # its rate, which is tuned, is left out as it is of `arm`
            setting = f"{arm} against {preset} on {task.name or task.data}, {size}"
            yield f"Larger: {setting}: {interval}, {effect.verdict} (study {study.name})"

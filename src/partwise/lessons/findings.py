"""What a lesson shows of the stored answers: its picture, also as a table, and claims about larger models."""

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

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
from partwise.lessons.lesson import Lesson
from partwise.messages import quantity
from partwise.plots.text_table import TextTable

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_STEPS = 6
"""The columns of steps in a table."""


def picture_table(answer: StoredAnswer) -> TextTable:
    """The figure of a lesson as a table."""
    if answer.lesson.head.picture == "dots":
        rows = [[text, f"{mean(values):.4f}", f"{sd(values):.4f}"] for text, values in quantity_values(answer)]
        return TextTable(["over the stored seeds", "mean", "SD"], rows, "")
    series = answer.measured["main"]
    steps = curve_steps(series)
    shown = sorted({steps[round(i * (len(steps) - 1) / (MOST_STEPS - 1))] for i in range(MOST_STEPS)})
    rows = []
    for arm in series:
        curve = dict(zip(steps, mean_curve(series, arm), strict=True))
        rows.append([label(answer.lesson, arm), *(f"{curve[step]:.3f}" for step in shown)])
    return TextTable(["loss after steps", *(f"{step:,}" for step in shown)], rows, "")


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


def quantity_values(answer: StoredAnswer) -> list[tuple[str, list[float]]]:
    """The text of each quantity, with its value on each stored seed."""
    found = [(each.text, each) for each in answer.lesson.head.quantities.values()]
    return [(text, list(per_seed(each, answer.measured).values())) for text, each in found]


def draw_picture(answer: StoredAnswer) -> str:
    """The figure as SVG."""
    import matplotlib
    from matplotlib.figure import Figure

    from partwise.plots.plotting import STYLE, svg_file

    with matplotlib.rc_context(STYLE | {"svg.hashsalt": answer.lesson.name}):
        dots = answer.lesson.head.picture == "dots"
        height = 1.0 + 0.55 * len(answer.lesson.head.quantities) if dots else 3.6
        figure = Figure(figsize=(6.4, height), layout="constrained", facecolor="white")
        axes = figure.subplots()
        (draw_dots if dots else draw_curves)(axes, answer)
        return svg_file(figure)


def draw_curves(axes: "Axes", answer: StoredAnswer) -> None:
    """The mean loss of each arm by step, with each seed as a thin line."""
    from partwise.plots.plotting import COLORS

    series = answer.measured["main"]
    steps = curve_steps(series)
    for arm, color in zip(series, COLORS, strict=False):
        for seed in next(iter(series[arm].values())):
            axes.plot(steps, [series[arm][f"loss@{step}"][seed] for step in steps], color=color, lw=0.5, alpha=0.15)
        curve = mean_curve(series, arm)
        axes.plot(steps, curve, color=color, lw=2)
        at = (steps[-1], curve[-1])
        text = label(answer.lesson, arm)
        axes.annotate(text, at, (5, 0), textcoords="offset points", va="center", color=color)
    axes.set_xlabel("training steps")
    axes.set_ylabel("validation loss, nats per character")
    axes.set_xlim(0, steps[-1] * 1.3)
    axes.set_xticks(steps)


def draw_dots(axes: "Axes", answer: StoredAnswer) -> None:
    """One row of dots per quantity: its value on every stored seed, about its mean."""
    from partwise.plots.plotting import COLORS

    found = quantity_values(answer)
    for row, ((_, values), color) in enumerate(zip(found, COLORS, strict=False)):
        center = mean(values)
        heights = [row + 0.22 * math.sin(2.4 * number) for number in range(len(values))]  # apart, the same every time
        axes.plot([value - center for value in values], heights, "o", color=color, ms=4, alpha=0.7, mec="none")
    axes.axvline(0, color="#9aa0a6", lw=0.8, zorder=0)
    axes.set_yticks(range(len(found)), [text for text, _ in found])
    axes.set_ylim(len(found) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel("value on one seed minus the mean over all, nats per character")


def answer_table(answer: StoredAnswer, measured: Measured | None) -> Iterator[list[str]]:
    """A head and one row per quantity: yours if it is measured, that of the stored seeds, and where others' lie."""
    seeds = answer.expected(answer.lesson.asked).seeds
    yield ["quantity", *(["yours"] if measured else []), f"{seeds} seeds", "99.9% of readers"]
    for each in answer.lesson.head.quantities.values():
        found = answer.expected(each)
        digits = 4 if found.high - found.low < 1 else 2
        row = [each.text]
        if measured:
            value = find_value(each, measured)
            row.append(format_number(value, digits) + ("" if value in found else " !"))
        low, high = (format_number(end, digits) for end in (found.low, found.high))
        yield [*row, format_number(found.value, digits), f"{low} to {high}"]


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
    """What the library of claims found for the lesson's question with larger models, judged in the families of claims."""
    if not lesson.head.claims:
        return
    from partwise.concepts.results import library, outcomes

    for study in (each for each in library() if each.name in lesson.head.claims):
        for finding in outcomes(study.protocol, "" if study.protocol else study.name)[study.name]:
            effect, task = finding.effect, finding.results.task
            if effect.mean is None or effect.low is None or effect.high is None or task is None:
                continue
            size = f"{(finding.results.arms[0].parameters or 0) / 1e6:.2f} million parameters, {task.steps:,} steps"
            interval = f"{effect.mean:+.3f} ({effect.low:.3f} to {effect.high:.3f})"
            setting = f"{finding.short_name} on {task.name or task.data}, {size}"
            yield f"{setting}: {interval}, {effect.verdict} (study {study.name})"

"""The forest plot of all claims: each difference with its interval, its margin as a band, and its outcome in words."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from partwise.comparison.stats.effect import Effect
from partwise.plots.plotting import STYLE, set_difference_scale, shorten, shorten_middle, svg_file
from partwise.studies.claims import NO_PREDICTION, find_outcomes
from partwise.studies.study import NOT_BRACKETED, NOT_SEEN, OPPOSITE, SEEN, TOO_NOISY, Study

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLORS = {SEEN: "#1b7f4d", NOT_SEEN: "#41688a", OPPOSITE: "#b3382c", TOO_NOISY: "#9c6200"}
COLORS |= dict.fromkeys((NOT_BRACKETED, ""), "#6b6f76")
"""The color of each outcome; gray where the claim predicts nothing, or nothing was judged."""

ROW = 0.2  # inches
LABEL = 36
"""The characters of a claim's name that a row shows."""

Row = tuple[str, Effect | None, str]
"""A row's label, its effect (None for the heading of a study) and its outcome."""


def draw_claims(studies: Sequence[Study]) -> str:
    """An SVG of one row per claim under its study's name; a panel for each metric, losses first; '' without claims."""
    effects = [finding.effect for found in find_outcomes(studies).values() for finding in found]
    metrics = dict.fromkeys(each.metric for each in sorted(effects, key=lambda each: not each.lower_is_better))
    panels = [panel_rows(studies, metric) for metric in metrics]
    if not panels:
        return ""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(STYLE | {"svg.hashsalt": "claims"}):
        heights = [len(rows) + 3 for rows in panels]
        figure = Figure(figsize=(9.2, ROW * sum(heights)), layout="constrained", facecolor="white")
        grid = figure.subplots(len(panels), 1, squeeze=False, height_ratios=heights)
        for axes, rows in zip((row[0] for row in grid), panels, strict=True):
            draw_panel(axes, rows)
        return svg_file(figure)


def panel_rows(studies: Sequence[Study], metric: str) -> list[Row]:
    """The rows of one metric, in the order of the table."""
    rows: list[Row] = []
    outcomes = find_outcomes(studies)
    for study in studies:
        found = [each for each in outcomes[study.name] if each.effect.metric == metric]
        if found:
            rows.append((study.name, None, ""))
        names = [f"{each.key}: {each.short_name}" if len(study.entries) > 1 else each.short_name for each in found]
        beginnings = [shorten(name, LABEL) for name in names]
        for finding, name, beginning in zip(found, names, beginnings, strict=True):
            alike = beginnings.count(beginning) > 1  # arms that differ at their end
            label = shorten_middle(name, LABEL) if alike else beginning
            rows.append((label, finding.effect, finding.outcome))
    return rows


def draw_panel(axes: "Axes", rows: Sequence[Row]) -> None:
    """One axis for all rows; each row has its own margin as a band."""
    from matplotlib.patches import Rectangle

    effects = [effect for _, effect, _ in rows if effect]
    for row, (_, effect, outcome) in enumerate(rows):
        if effect is None:
            continue
        color = COLORS[outcome]
        axes.add_patch(Rectangle((-effect.margin, row - 0.5), 2 * effect.margin, 1, color="#dde6ee", linewidth=0))
        if effect.low is not None and effect.high is not None:
            axes.plot([effect.low, effect.high], [row, row], color=color, linewidth=2.2, solid_capstyle="butt")
        if effect.mean is not None:
            axes.plot([effect.mean], [row], "D", color=color, markersize=6, markeredgecolor="white")
        word = outcome or NO_PREDICTION
        axes.annotate(
            word,
            (1, row),
            (6, 0),
            xycoords=("axes fraction", "data"),
            textcoords="offset points",
            va="center",
            color=color,
        )
    axes.axvline(0, color="#3c4043", linewidth=1, zorder=1)
    axes.set_yticks(range(len(rows)), [label for label, _, _ in rows])
    for label, (_, effect, _) in zip(axes.get_yticklabels(), rows, strict=True):
        label.set_fontweight("normal" if effect else "bold")
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    ends = [abs(end) for each in effects for end in (each.mean, each.low, each.high) if end is not None]
    reach = max(ends, default=effects[0].margin)
    set_difference_scale(axes, reach)
    first = effects[0]
    metric = f"difference of {first.metric}" + (f", {first.unit}" if first.unit else "")
    axes.set_xlabel(f"← better · {metric} · worse →" if first.lower_is_better else f"← worse · {metric} · better →")

"""A comparison in a script or a notebook: as text, as a data frame, as a figure and as HTML."""

import html
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from partwise.comparison.report.own_parts import leak_sentence
from partwise.comparison.results import Results
from partwise.comparison.stats.verdict_text import headline
from partwise.config import ConfigError
from partwise.plots.colors import VERDICT_COLORS
from partwise.plots.plotting import new_figure, padded_limits, to_svg

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FRAME_PACKAGES = ("pandas", "polars")
COLUMNS = (
    "arm",
    "against",
    "role",
    "verdict",
    "mean",
    "low",
    "high",
    "p",
    "n",
    "failed_arm",
    "failed_against",
    "margin",
    "confidence",
    "metric",
    "unit",
)


def to_rows(results: Results) -> list[dict[str, Any]]:
    """One row per claim and control, with the keys of `COLUMNS`."""
    return [
        {key: claim.role if key == "role" else getattr(claim.effect, key) for key in COLUMNS}
        for claim in results.claims
    ]


def to_frame(results: Results, package: str | None = None) -> Any:
    """The rows as a data frame of `package` (default: pandas, or polars if only that is installed). Raises ConfigError."""
    installed = [name for name in FRAME_PACKAGES if find_spec(name)]
    if package is not None and package not in FRAME_PACKAGES:
        raise ConfigError(f"to_frame({package!r}): choose 'pandas' or 'polars'")
    chosen = [package] if package else installed
    if not find_spec("narwhals") or not chosen or chosen[0] not in installed:
        missing = package or "pandas or polars"
        raise ConfigError(f"to_frame needs narwhals and {missing}: `pip install 'partwise[frames]'`, or use `results`")
    import narwhals

    rows = to_rows(results)
    values = {key: [row[key] for row in rows] for key in COLUMNS}
    return narwhals.from_dict(values, backend=chosen[0]).to_native()  # type: ignore[arg-type]


def plot(results: Results) -> "Figure":
    """A forest plot: for each arm the mean difference and its interval, and the margin as a band."""
    effects = [claim.effect for claim in results.claims]
    figure, axes = new_figure(1.0 + 0.35 * len(effects), "forest", width=7.0)
    protocol = results.protocol
    axes.axvspan(-protocol.margin, protocol.margin, color="#dde6ee", linewidth=0, zorder=0)
    axes.axvline(0, color="#3c4043", linewidth=1, zorder=1)
    ends = [-protocol.margin, protocol.margin]
    labels = []
    for row, effect in enumerate(effects):
        color = VERDICT_COLORS[effect.verdict or "none"]
        labels.append(f"{effect.arm} minus {effect.against}\n{effect.verdict or 'no verdict'}")
        if effect.low is not None and effect.high is not None:
            axes.plot([effect.low, effect.high], [row, row], color=color, linewidth=2.2)
            ends += [effect.low, effect.high]
        if effect.mean is not None:
            axes.plot([effect.mean], [row], "D", color=color, markersize=6.5)
            ends.append(effect.mean)
    axes.set_xlim(*padded_limits(min(ends), max(ends)))
    axes.set_yticks(range(len(labels)), labels)
    axes.set_ylim(len(labels) - 0.4, -0.6)
    better = "← better · " if protocol.lower_is_better else "← worse · "
    worse = " · worse →" if protocol.lower_is_better else " · better →"
    axes.set_xlabel(f"{better}difference in {protocol.metric_with_unit}{worse}")
    return figure


def to_text(results: Results) -> str:
    """The question and the two lines of each verdict."""
    leak = leak_sentence(results)
    lines = ["\n    ".join(each) for each in _headlines(results)]
    return "\n".join([*([leak] if leak else []), results.question, *(f"  {line}" for line in lines)])


def to_html(results: Results) -> str:
    """The question, the forest plot and the two lines of each verdict."""
    titles = filter(None, [leak_sentence(results), results.question])
    head = "".join(f"<p><b>{html.escape(title)}</b></p>" for title in titles)
    items = "".join(f"<li>{'<br>'.join(map(html.escape, each))}</li>" for each in _headlines(results))
    picture = to_svg(plot(results), "forest") if results.claims else ""
    return f"{head}<div style='max-width:46em'>{picture}</div><ul>{items}</ul>"


def _headlines(results: Results) -> list[list[str]]:
    return [headline(claim.effect) for claim in results.claims if claim.role == "claim"]

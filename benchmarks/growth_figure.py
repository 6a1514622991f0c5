"""The figure of growth, docs/growth.svg, from the rows of docs/benchmarks.json: `make generate` draws it."""

from typing import Any

from partwise.plots.plotting import COLORS, new_subplots, set_log_scale, to_svg

OURS = "partwise"
KINDS = (("time", "ms per step"), ("memory", "peak MiB"))


def draw_growth(rows: list[dict[str, Any]]) -> str:
    """Time above and memory below, one column per sweep, both axes logarithmic, as SVG."""
    found = points(rows)
    sweeps = list(dict.fromkeys(sweep for _, sweep in found))
    figure, grid = new_subplots(4.6, "growth", rows=len(KINDS), columns=len(sweeps), width=12.5)
    for row, (kind, label) in enumerate(KINDS):
        for axes, sweep in zip(grid[row], sweeps, strict=True):
            by_value = found[kind, sweep]
            values = list(by_value)
            for color, name in zip(COLORS, by_value[values[0]], strict=False):
                figures = [by_value[value][name] for value in values]
                axes.plot(values, figures, "o-", color=color, ms=3, lw=1.4, label=name)
            axes.set_xscale("log", base=2)
            axes.set_xticks(values, [f"{value:,}" for value in values], minor=False)
            axes.minorticks_off()
            set_log_scale(axes)
            if row:
                axes.set_xlabel(sweep)
        grid[row][0].set_ylabel(label)
    figure.legend(*grid[0][0].get_legend_handles_labels(), loc="outside upper left", ncols=3, frameon=False)
    figure.set_facecolor("white")  # a file of its own has no page behind it, and may be read in a dark theme
    attributes = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
    return to_svg(figure, "growth").replace("<svg ", f"<svg {attributes} ", 1)


def points(rows: list[dict[str, Any]]) -> dict[tuple[str, str], dict[int, dict[str, float]]]:
    """(time or memory, sweep) -> size -> figure by system, from rows such as `time, width 64`."""
    found: dict[tuple[str, str], dict[int, dict[str, float]]] = {}
    for row in rows:
        if row["goal"] == "growth" and row.get("target") is None:
            kind, _, point = row["what"].partition(", ")
            sweep, _, value = point.rpartition(" ")
            found.setdefault((kind, sweep), {})[int(value)] = {OURS: row["ours"], **row["peers"]}
    return found

"""The speed chart of a page of benchmarks, such as docs/images/speed.svg from docs/benchmarks.json: `make generate` draws it.

A bar is the median ratio to the best peer over alternating rounds, a line its range; 1 is the speed of the peer. Ratios to
our own eager code, fractions of a peak and shares of a limit are not speeds against a peer and have no bar.
"""

from typing import Any

from partwise.plots.plotting import COLORS, new_figure, to_svg

LABELS = {
    ("training step", "seed"): "training step, mingpt",
    ("training step", "cpu-recipe"): "training step, nanoGPT's CPU recipe",
    ("training step", "width-384"): "training step, 6 layers of width 384",
    ("training step", "gpt2-124m"): "training step, GPT-2 124M",
    ("time to a loss", "1.886"): "training to a loss of 1.886",
    ("comparison", "2 arms x 5 seeds"): "a comparison of 2 arms x 5 seeds",
    ("arithmetic evaluation", "10,000 problems"): "10,000 problems answered",
    ("sampling", "batch 1, after 64 tokens"): "generation, 135M, batch 1",
    ("sampling", "batch 16, after 64 tokens"): "generation, 135M, batch 16",
}
"""Bars by goal and by the part of a row's name that identifies it; a training step is identified by its whole name."""


def bars(rows: list[dict[str, Any]]) -> list[tuple[str, float, float, float]]:
    """(label, median, lowest, highest ratio) of the first row of every label, in the order of LABELS."""
    found = []
    for (goal, key), label in LABELS.items():
        for row in rows:
            same = row["what"] == key if goal == "training step" else key in row["what"]
            if row["goal"] == goal and same:
                found.append((label, row["ratio"], row["low"], row["high"]))
                break
    return found


def draw(rows: list[dict[str, Any]]) -> str:
    """The chart as SVG."""
    values = bars(rows)[::-1]
    figure, axes = new_figure(0.6 + 0.28 * len(values), "speed", width=8.2)
    for place, (_, ratio, low, high) in enumerate(values):
        axes.barh(place, ratio - 1, left=1, height=0.6, color=COLORS[0])
        axes.plot([low, high], [place, place], color="#333333", linewidth=1.2)
        axes.annotate(f"{ratio:.3g}", (max(high, ratio), place), (5, 0), textcoords="offset points", va="center")
    axes.set_ylim(-0.6, len(values) - 0.4)
    axes.set_yticks(range(len(values)), [label for label, *_ in values])
    axes.set_xscale("log")
    axes.axvline(1, color="#333333", linewidth=0.8)
    axes.set_xticks([1, 2, 5, 10, 20, 50, 100], ["1", "2", "5", "10", "20", "50", "100"])
    axes.set_xlim(0.7, 250)
    axes.minorticks_off()
    axes.set_xlabel("times as fast as the best peer (median and range)")
    figure.set_facecolor("white")  # a file of its own has no page behind it, and may be read in a dark theme
    attributes = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" width="820"'
    return to_svg(figure, "speed").replace("<svg ", f"<svg {attributes} ", 1)

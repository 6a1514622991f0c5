"""The picture of the demo in README: the differences over training, from its results.

    python docs/record_demo.py [runs/demo]

Run `partwise demo` in a folder without other comparisons first.
"""

import sys
from pathlib import Path

from partwise.comparison.results import Results
from partwise.plots.colors import ARM_COLORS
from partwise.plots.plotting import STYLE

IMAGES = Path(__file__).parent / "images"


def draw_over_training(results: Results) -> None:
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(STYLE | {"svg.hashsalt": "demo", "svg.fonttype": "path"}):
        figure = Figure(figsize=(7.2, 3.6), layout="constrained", facecolor="white")
        axes = figure.subplots()
        margin = results.protocol.margin
        axes.axhspan(-margin, margin, color="#dde6ee", linewidth=0)
        axes.axhline(0, color="#3c4043", linewidth=1)
        for color, claim in zip(ARM_COLORS[1:], results.claims, strict=False):
            points = [each for each in claim.effect_over_training if each.mean is not None]
            steps = [each.step for each in points]
            axes.fill_between(steps, [p.low for p in points], [p.high for p in points], color=color, alpha=0.16, lw=0)
            axes.plot(steps, [each.mean for each in points], color=color, marker="o", markersize=4, linewidth=2)
            text = f" {claim.effect.arm}: {claim.effect.verdict}"
            above = 9 if abs(points[-1].mean) <= margin else 0  # off the line at 0
            end, offset = (steps[-1], points[-1].mean), (3, above)
            axes.annotate(text, end, offset, textcoords="offset points", va="center", color=color)
        axes.set_xlim(right=max(steps) * 1.36)
        axes.set_xticks(steps)
        axes.set_xlabel("training step")
        axes.set_ylabel("difference of validation losses\n(nats per character; below 0 is better)")
        figure.savefig(IMAGES / "overtraining.svg", metadata={"Date": None, "Creator": None})


if __name__ == "__main__":
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "runs/demo")
    results = Results.from_json(folder / "results.json")
    draw_over_training(results)

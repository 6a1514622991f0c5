"""The nine pictures of docs/nine-changes.md, docs/images/nine-*.svg.

python benchmarks/nine_changes.py    measures what two of them show, into docs/nine-changes.json
make generate                        draws all, from that file and from the stored results of the studies
"""

import json
import math
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from partwise.plots.plotting import COLORS, STYLE, set_difference_scale, svg_file
from partwise.plots.plotting import WIDTH as FIGURE_WIDTH
from partwise.studies.claims import ClaimOutcome, find_outcomes
from partwise.studies.study import Study

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from torch import Tensor

MEASURED = Path(__file__).parents[1] / "docs" / "nine-changes.json"
BLUE, ORANGE, GRAY, BAND = COLORS[0], COLORS[1], "#5f6368", "#dde6ee"
HEAD_WIDTHS = (1, 4, 16, 64, 256)
N_KEYS, N_QUERIES = 64, 1024
LAYERS, WIDTH, SEEDS = 12, 64, 5


def measure() -> dict[str, Any]:
    """What no study has stored; seconds on a CPU."""
    return {"attention": measure_attention(), "wiring": {name: measure_wiring(rule) for name, rule in WIRINGS.items()}}


def measure_attention() -> dict[str, list[float]]:
    """exp(entropy) of softmax(q k^T scale) for unit-variance q and k, by head width: how many keys share a query's weight."""
    import torch

    generator = torch.Generator().manual_seed(0)
    found: dict[str, list[float]] = {"scaled": [], "unscaled": []}
    for width in HEAD_WIDTHS:
        q, k = (torch.randn(rows, width, generator=generator).double() for rows in (N_QUERIES, N_KEYS))
        for name, scale in (("scaled", width**-0.5), ("unscaled", 1.0)):
            logs = torch.log_softmax(q @ k.T * scale, dim=-1)
            entropy = -(logs.exp() * logs).sum(-1).mean().item()
            found[name].append(round(math.exp(entropy), 2))
    return found


Wiring = Callable[[Any, Any, "Tensor"], "Tensor"]
WIRINGS: dict[str, Wiring] = {
    "pre-norm: x + f(norm(x))": lambda f, norm, x: x + f(norm(x)),
    "post-norm: norm(x + f(x))": lambda f, norm, x: norm(x + f(x)),
    "no residual: f(norm(x))": lambda f, norm, x: f(norm(x)),
}


def measure_wiring(rule: Wiring) -> list[float]:
    """The mean cosine between two tokens of a sequence after each layer of random weights: 1 if all are equal."""
    import torch
    from torch import nn

    cosines = torch.zeros(LAYERS)
    for seed in range(SEEDS):
        torch.manual_seed(seed)
        x = torch.randn(16, 32, WIDTH).double()
        for layer in range(LAYERS):
            heads = nn.MultiheadAttention(WIDTH, 4, batch_first=True).double()
            mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)).double()
            norms = [nn.LayerNorm(WIDTH).double() for _ in range(2)]
            x = rule(lambda y, heads=heads: heads(y, y, y, need_weights=False)[0], norms[0], x)
            x = rule(mlp, norms[1], x)
            units = nn.functional.normalize(x, dim=-1)
            alike = units @ units.transpose(1, 2)
            cosines[layer] += (alike.sum((1, 2)) - 32).mean() / (32 * 31) / SEEDS
    return [round(value, 3) for value in cosines.tolist()]


@dataclass(frozen=True)
class Inputs:
    """What the pictures show: the outcomes of the claims by study, and docs/nine-changes.json."""

    outcomes: dict[str, list[ClaimOutcome]]
    measured: dict[str, Any]

    def claim(self, study: str, name: str, key: str | None = None) -> ClaimOutcome:
        """The claim of a study whose arm is `name`, or else begins with it."""
        claims = [each for each in self.outcomes[study] if key in (None, each.key)]
        exact = [each for each in claims if each.short_name == name]
        (found,) = exact or [each for each in claims if each.short_name.startswith(name)]
        return found


def draw_activation(axes: "Axes", inputs: Inputs) -> None:
    claim = inputs.claim("swiglu", "ffn=swiglu", "shakespeare")
    (points,) = [each.effect_over_training for each in claim.results.claims]
    steps = [point.step for point in points]
    axes.fill_between(
        steps, [point.low or 0 for point in points], [point.high or 0 for point in points], color=BLUE, alpha=0.18, lw=0
    )
    axes.plot(steps, [point.mean or 0 for point in points], color=BLUE, marker="o", markersize=4, linewidth=2)
    axes.axhline(0, color="#3c4043", linewidth=1)
    axes.annotate("ReLU", (steps[-1], 0), (0, 4), textcoords="offset points", ha="right", color=GRAY)
    axes.annotate("SwiGLU", (steps[4], points[4].mean or 0), (6, 6), textcoords="offset points", color=BLUE)
    axes.set_xlabel("training step")
    axes.set_ylabel("difference in loss (nats)")


def draw_positions(axes: "Axes", inputs: Inputs) -> None:
    names = {"none": "none", "sinusoidal": "sinusoidal", "learned": "learned", "alibi": "ALiBi"}
    axes.barh([0], [1], color=BLUE, height=0.6)
    axes.annotate("1", (1, 0), (5, 0), textcoords="offset points", va="center")
    for row, part in enumerate(reversed(names), start=1):
        claim = inputs.claim("positions", f"positions={part}")
        assert claim.compute_saved is not None
        saved = claim.compute_saved.ratios["steps"]
        assert saved.low is not None and saved.high is not None
        axes.barh([row], [1 / saved.ratio], color=ORANGE, height=0.6)
        axes.plot([1 / saved.high, 1 / saved.low], [row, row], color="#333333", linewidth=1.2)
        axes.annotate(f"{1 / saved.ratio:.2f}", (1 / saved.low, row), (5, 0), textcoords="offset points", va="center")
    axes.set_yticks(range(5), ["rotary", *reversed(names.values())])
    axes.set_xlim(0, 4)
    axes.set_xlabel("steps to the same loss, rotary positions = 1 (line: 95% interval)")


def draw_attention(axes: "Axes", inputs: Inputs) -> None:
    for name, color, label in (("scaled", BLUE, "q·k / sqrt(d)"), ("unscaled", ORANGE, "q·k")):
        values = inputs.measured["attention"][name]
        axes.plot(HEAD_WIDTHS, values, color=color, marker="o", markersize=5, linewidth=2)
        axes.annotate(
            label, (HEAD_WIDTHS[-1], values[-1]), (8, 0), textcoords="offset points", va="center", color=color
        )
    axes.set_xscale("log", base=2)
    axes.set_xticks(HEAD_WIDTHS, [str(width) for width in HEAD_WIDTHS])
    axes.set_xlim(0.85, 1100)
    axes.set_ylim(-4, N_KEYS)
    axes.set_xlabel("width d of a head")
    axes.set_ylabel(f"keys attended to, of {N_KEYS}")


def draw_norm(axes: "Axes", inputs: Inputs) -> None:
    rows = [
        ("LayerNorm: also\nsubtracts the mean", inputs.claim("rmsnorm", "norm=layernorm"), BLUE),
        ("DyT: a tanh,\nno dividing", inputs.claim("dyt", "norm=dyt"), ORANGE),
    ]
    margin = rows[0][1].effect.margin
    axes.axvspan(-margin, margin, color=BAND, linewidth=0)
    axes.axvline(0, color="#3c4043", linewidth=1)
    for row, (_, claim, color) in enumerate(rows):
        values = [value for value in claim.effect.differences if value is not None]
        axes.plot(values, [row] * len(values), "o", color=color, markersize=6, alpha=0.65, markeredgewidth=0)
    axes.set_yticks(range(2), [label for label, *_ in rows])
    axes.set_ylim(1.6, -0.6)
    set_difference_scale(axes, 2.0)
    axes.set_xlim(-0.06, 2.4)
    axes.set_xlabel("loss minus that of RMSNorm, per seed (band: margin)")


def draw_wiring(axes: "Axes", inputs: Inputs) -> None:
    layers = range(1, LAYERS + 1)
    looks = zip((BLUE, ORANGE, GRAY), (-5, 5, 0), inputs.measured["wiring"].items(), strict=True)
    for color, above, (label, values) in looks:
        axes.plot(layers, values, color=color, marker="o", markersize=4, linewidth=2)
        axes.annotate(label, (LAYERS, values[-1]), (8, above), textcoords="offset points", va="center", color=color)
    axes.set_xlim(0.5, LAYERS + 9)
    axes.set_ylim(-0.05, 1.05)
    axes.set_xticks([1, 4, 8, 12])
    axes.set_xlabel("after layer")
    axes.set_ylabel("cosine of two tokens")


def draw_initialization(axes: "Axes", inputs: Inputs) -> None:
    rows = [(name, inputs.claim("activation-scale", "init.std=0.08", name)) for name in ("GELU", "ReLU")]
    draw_differences(axes, rows)
    axes.set_xlabel("loss with SD 0.08 minus that with 0.02 (band: margin)")


def draw_tying(axes: "Axes", inputs: Inputs) -> None:
    claim = inputs.claim("tying", "tie_embeddings=false")
    margin = claim.effect.margin
    axes.axhspan(-margin, margin, color=BAND, linewidth=0)
    axes.axhline(0, color="#3c4043", linewidth=1)
    for place, point in enumerate(claim.over_horizons):
        assert point.mean is not None and point.low is not None and point.high is not None
        axes.plot([place, place], [point.low, point.high], color=ORANGE, linewidth=2.2, solid_capstyle="butt")
        axes.plot([place], [point.mean], "D", color=ORANGE, markersize=6, markeredgecolor="white")
    axes.annotate("tied", (2.4, 0), (0, 3), textcoords="offset points", ha="right", color=BLUE)
    axes.set_xlim(-0.5, 2.5)
    axes.set_ylim(bottom=-0.022)
    axes.set_xticks(range(3), [f"{point.step:,}" for point in claim.over_horizons])
    axes.set_xlabel("steps of the run (line: 95% interval, band: margin)")
    axes.set_ylabel("loss, untied minus tied")


def draw_kv_heads(axes: "Axes", inputs: Inputs) -> None:
    rows = [(4, None), *((heads, inputs.claim("kv-heads", f"attention.n_kv_heads={heads}")) for heads in (2, 1))]
    margin = 0.02
    axes.axhspan(-margin, margin, color=BAND, linewidth=0)
    axes.axhline(0, color="#3c4043", linewidth=1)
    for heads, claim in rows:
        cache, mean = cache_bytes(heads), claim.effect.mean if claim else 0.0
        if claim:
            axes.plot(
                [cache] * 2, [claim.effect.low, claim.effect.high], color=BLUE, linewidth=2.2, solid_capstyle="butt"
            )
        axes.plot([cache], [mean], "D", color=BLUE if claim else GRAY, markersize=7, markeredgecolor="white")
        axes.annotate(f"{heads} head{'s' if heads > 1 else ''}", (cache, mean), (8, 6), textcoords="offset points")
    axes.set_xlim(0, 2400)
    axes.set_xticks([cache_bytes(heads) for heads, _ in rows])
    axes.set_xlabel("bytes that the cache keeps of a token (band: margin)")
    axes.set_ylabel("difference in loss (nats)")


def cache_bytes(n_kv_heads: int) -> int:
    """Keys and values of a token in bfloat16, in the four layers of the study, whose heads have a width of 32."""
    return 2 * 4 * n_kv_heads * 32 * 2


def draw_optimizer(axes: "Axes", inputs: Inputs) -> None:
    claim = inputs.claim("muon", "optimizer=muon")
    curves = []
    for arm, color, label in zip(claim.results.arms, (GRAY, BLUE), ("AdamW", "Muon"), strict=True):
        lengths = [step for step, _ in arm.trials[0].horizons]
        losses = [math.fsum(dict(trial.horizons)[step] for trial in arm.trials) / len(arm.trials) for step in lengths]
        axes.plot(lengths, losses, color=color, marker="o", markersize=5, linewidth=2)
        axes.annotate(
            label, (lengths[0], losses[0]), (-6, 0), textcoords="offset points", ha="right", va="center", color=color
        )
        curves.append((lengths, losses))
    assert claim.compute_saved is not None
    ratio, (lengths, losses) = claim.compute_saved.ratios["steps"].ratio, curves[0]
    end = (lengths[-1], losses[-1])
    axes.annotate("", (end[0] / ratio, end[1]), end, arrowprops={"arrowstyle": "->", "color": "#3c4043"})
    beside = {"textcoords": "offset points", "ha": "right", "va": "top", "fontsize": 9}  # below both curves
    axes.annotate(f"AdamW: {ratio:.2f} times as many", (end[0] / ratio, end[1]), (-2, -2), **beside)
    axes.set_xscale("log")
    axes.set_xticks(lengths, [f"{length:,}" for length in lengths])
    axes.minorticks_off()
    axes.set_xlim(lengths[0] / 1.5, lengths[-1] * 1.05)
    axes.set_xlabel("steps of the run")
    axes.set_ylabel("validation loss (nats)")


def draw_differences(axes: "Axes", rows: Sequence[tuple[str, ClaimOutcome]]) -> None:
    """A row for each claim: its difference and interval, above the margin as a band."""
    margin = rows[0][1].effect.margin
    axes.axvspan(-margin, margin, color=BAND, linewidth=0)
    axes.axvline(0, color="#3c4043", linewidth=1)
    for row, (_, claim) in enumerate(rows):
        effect, color = claim.effect, GRAY if claim.effect.verdict == "equivalent" else BLUE
        assert effect.mean is not None and effect.low is not None and effect.high is not None
        axes.plot([effect.low, effect.high], [row, row], color=color, linewidth=2.2, solid_capstyle="butt")
        axes.plot([effect.mean], [row], "D", color=color, markersize=7, markeredgecolor="white")
        axes.annotate(
            effect.verdict or "", (effect.high, row), (6, 0), textcoords="offset points", va="center", color=color
        )
    axes.set_yticks(range(len(rows)), [name for name, _ in rows])
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_xlim(-0.045, 0.045)


@dataclass(frozen=True)
class Picture:
    """A picture: its message, the function that draws it, and its height in inches."""

    title: str
    draw: Callable[["Axes", Inputs], None]
    height: float = 2.5


PICTURES = {
    "activation": Picture("The gain of a gate shows after 1,000 steps", draw_activation),
    "positions": Picture("Without positions: three times as many steps", draw_positions, 2.4),
    "attention": Picture("Without the scale a wide head sees one key", draw_attention),
    "norm": Picture("Without the mean: equal. Without dividing: worse", draw_norm, 2.1),
    "wiring": Picture("Without x + f(x) all tokens become alike", draw_wiring),
    "initialization": Picture("A larger start helps GELU, not ReLU", draw_initialization, 1.7),
    "tying": Picture("A second matrix makes the loss worse", draw_tying),
    "kv-heads": Picture("Half the cache: same loss; a quarter: undecided", draw_kv_heads),
    "optimizer": Picture("Muon gets there in far fewer steps", draw_optimizer, 2.9),
}


def read_inputs(studies: Sequence[Study]) -> Inputs:
    return Inputs(find_outcomes(studies), json.loads(MEASURED.read_text(encoding="utf-8")))


def draw(name: str, inputs: Inputs) -> str:
    """One picture as an SVG file, on white: a page in a dark theme shows it as well."""
    import matplotlib
    from matplotlib.figure import Figure

    picture = PICTURES[name]
    with matplotlib.rc_context(STYLE | {"svg.hashsalt": f"nine-{name}"}):
        figure = Figure(figsize=(FIGURE_WIDTH, picture.height), layout="constrained", facecolor="white")
        axes = figure.subplots()
        picture.draw(axes, inputs)
        axes.set_xlabel(textwrap.fill(axes.get_xlabel(), 46))
        figure.suptitle(picture.title, x=0.01, ha="left", fontsize=10, fontweight="bold")
        return svg_file(figure)


if __name__ == "__main__":
    MEASURED.write_text(json.dumps(measure(), indent=1) + "\n", encoding="utf-8")
    print(f"wrote {MEASURED.name}: `make generate` draws it")

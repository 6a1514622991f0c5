"""What a model has made of positions: which are alike, how far RoPE turns, and which distances each head prefers."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from partwise.compute.float64 import to_float64
from partwise.inspection.attention import AttentionCall, kind_and_layer, record_calls
from partwise.inspection.map_figures import pick_evenly
from partwise.model import Transformer
from partwise.parts.positions.angles import AngleTable
from partwise.plots.drawing import draw
from partwise.plots.page import PageFigure
from partwise.plots.plotting import (
    COLORS,
    add_color_scale,
    new_subplots,
    set_integer_ticks,
    step_colors,
)

MOST_POSITIONS = 512  # of the map of vectors
SHOWN_LAYERS, SHOWN_HEADS = 4, 8
SHOWN_PAIRS, SHOWN_TURNS = 4, 8
LEAST_PAIRS = 8  # of query and key at a distance, per row: the mean of fewer is noise


def vectors_figure(vectors: Tensor, suffix: str = "") -> PageFigure:
    """Position vectors (T, D) as a map, and the cosine of every two of them."""
    vectors = to_float64(vectors[:MOST_POSITIONS])
    directions = vectors / vectors.norm(dim=-1, keepdim=True).clamp(min=1e-30)
    cosines = directions @ directions.T
    key = f"vectors{suffix.replace(', ', '-')}"
    figure, [[left, right]] = new_subplots(4.2, key, columns=2, width=9)
    largest = vectors.abs().max().item() or 1.0
    for axes, values, limit, label, x_label in (
        (left, cosines, 1.0, "cosine of two positions", "position"),
        (right, vectors, largest, "value", "dimension"),
    ):
        image = axes.imshow(
            values.numpy(), aspect="auto", cmap="RdBu", vmin=-limit, vmax=limit, interpolation="nearest"
        )
        axes.set_xlabel(x_label)
        axes.set_ylabel("position")
        set_integer_ticks(axes, y=True)
        add_color_scale(figure, image, axes, label)
    return PageFigure(
        f"Which positions are alike{suffix}",
        draw(figure, key),
        "Left: blue where two positions have the same direction, white where they are at right angles. Right: the vector "
        "of each position. Neighbors that are alike show as a blue band along the diagonal; a diagonal alone says that the "
        "model does not know which positions are near each other.",
    )


def turns_figure(layer: AngleTable, suffix: str = "") -> PageFigure:
    """The angle of several pairs of dimensions at the first positions."""
    pairs = pick_evenly([*range(len(layer.frequencies))], SHOWN_PAIRS)
    key = f"turns{suffix.replace(', ', '-')}"
    figure, [panels] = new_subplots(2.6, key, columns=len(pairs), width=9)
    colors = step_colors(SHOWN_TURNS)
    around = [2 * math.pi * step / 90 for step in range(91)]
    for axes, pair in zip(panels, pairs, strict=True):
        frequency = layer.frequencies[pair]
        axes.plot([*map(math.cos, around)], [*map(math.sin, around)], color="#9aa0a6", linewidth=0.8)
        for position, color in enumerate(colors):
            x, y = math.cos(position * frequency), math.sin(position * frequency)
            axes.plot([0, x], [0, y], color=color, linewidth=1.5, label=f"position {position}")
            axes.plot([x], [y], "o", color=color, markersize=4)
        axes.set_title(f"pair {pair}: {describe_turn(frequency)}", fontsize=9)
        axes.set_aspect("equal")
        axes.set_axis_off()
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper left", ncols=4, frameon=False, fontsize=8, handlelength=1.2)
    return PageFigure(
        f"How far RoPE turns from one token to the next{suffix}",
        draw(figure, key),
        "A query or key points to the right at position 0; the lines are its directions at positions 0 to "
        f"{SHOWN_TURNS - 1}, in several pairs of dimensions. The first tell neighbors apart, the last hardly move.",
    )


def describe_turn(frequency: float) -> str:
    """`6.3 tokens per turn`."""
    if not frequency:
        return "never turns"
    length = 2 * math.pi / frequency
    return f"{length:,.1f} tokens per turn" if length < 100 else f"{length:,.0f} tokens per turn"


@torch.no_grad()
def scores_by_distance(calls: Sequence[AttentionCall], least: int = LEAST_PAIRS) -> Tensor:
    """(H, distances): the mean score of visible keys by their distance to the query, minus each head's mean over distances.

    A score is q k^T times the scale plus the bias; a layer with several maps per head has them side by side. Distances with
    fewer than `least` queries are left out.
    """
    heads = []
    for call in calls:
        groups = call.q.shape[1] // call.k.shape[1]
        scores = to_float64(call.q @ call.k.repeat_interleave(groups, dim=1).transpose(2, 3) * call.core.scale)
        bias = call.mask.bias()
        if bias is not None:
            scores = scores + to_float64(bias)
        n = scores.shape[-1]
        means = []
        for distance in range(max(1, n - least + 1)):
            diagonal = scores.diagonal(-distance, dim1=2, dim2=3)  # (B, H, n - distance)
            visible = diagonal > -math.inf
            total = torch.where(visible, diagonal, 0.0).sum(dim=(0, 2))
            means.append(total / visible.sum(dim=(0, 2)).expand_as(total))
        heads.append(torch.stack(means, dim=-1))
    table = torch.stack(heads, dim=1).flatten(0, 1)
    return table - table.nanmean(dim=-1, keepdim=True)


def distance_figure(model: Transformer, inputs: Tensor, source: Tensor | None) -> list[PageFigure]:
    """The score by distance of the heads of several layers; none without causal attention."""
    calls = {kind_and_layer(name): each for name, each in record_calls(model, inputs, source).items()}
    layers = pick_evenly([layer for kind, layer in calls if kind == "self"], SHOWN_LAYERS)
    if not layers or inputs.shape[1] <= LEAST_PAIRS:
        return []
    reach = 1e-6
    figure, [panels] = new_subplots(2.9, "distance", columns=len(layers), width=9)
    for axes, layer in zip(panels, layers, strict=True):
        table = scores_by_distance(calls["self", layer])[:SHOWN_HEADS]
        bins = distance_bins(table.shape[1])
        for head, (color, values) in enumerate(zip(COLORS, table, strict=False)):
            means = [values[each.start : each.stop].mean().item() for each in bins]
            places = [(each.start + each.stop - 1) / 2 for each in bins]
            axes.plot(places, means, color=color, linewidth=1.2, label=f"head {head}")
            reach = max([reach, *(abs(mean) for mean in means if math.isfinite(mean))])
        axes.axhline(0, color="#9aa0a6", linewidth=0.8)
        axes.set_title(f"layer {layer}", fontsize=9, loc="right")
        axes.set_xlabel("distance in tokens")
        set_integer_ticks(axes)
    for axes in panels:  # one scale: what is noise in one layer may not look like a preference
        axes.set_ylim(-1.08 * reach, 1.08 * reach)
    panels[0].set_ylabel("score")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper left", ncols=4, frameon=False, fontsize=8, handlelength=1.2)
    return [
        PageFigure(
            "Which distances each head prefers",
            draw(figure, "distance"),
            "The score q.k of a query and a key, times the scale and with any bias, by the distance between them: the mean "
            "over a sample, minus the head's own mean; beyond distance 16 also over neighboring distances. A line that falls "
            "prefers near tokens, a peak at 1 the token before; a flat line ignores distance.",
        )
    ]


def distance_bins(n: int) -> list[range]:
    """The distances below `n`: each alone up to 16, then an eighth of the distance together, whose mean is less noisy."""
    bins, start = [], 0
    while start < n:
        stop = min(n, start + max(1, start // 8))
        bins.append(range(start, stop))
        start = stop
    return bins

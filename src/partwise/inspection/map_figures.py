"""Figures of attention maps."""

import math
from collections.abc import Collection, Sequence

from torch import Tensor

from partwise.plots.drawing import Drawing, draw
from partwise.plots.page import PageFigure
from partwise.plots.plotting import new_subplots, set_integer_ticks

SHOWN_LAYERS, SHOWN_HEADS = 4, 6  # maps per kind of attention
MAX_LABELS = 24  # tokens that fit as labels on the axes of an enlarged map
ENLARGED_LAYERS, ENLARGED_HEADS = 2, 4


def map_figures(
    kind: str, maps: dict[tuple[str, int], Tensor], heads: dict[int, list[str]], labels: dict[str, list[str]]
) -> list[PageFigure]:
    """Maps of heads and layers for one row: the first tokens enlarged, named on both axes, and what these leave out.

    A row that is longer is shown again in full; otherwise the second figure has further heads and layers, if there are any.
    `maps` by kind and layer are (H, T, S), `heads` the labels of each layer's heads, `labels` the tokens of each stack.
    """
    if not heads:
        return []
    queries = labels["encoder" if kind == "encoder" else "self"]
    keys = labels["self" if kind == "self" else "encoder"]
    title = {"self": "Attention maps", "cross": "Cross-attention maps"}.get(kind, "Attention maps of the encoder")
    read = "Rows are queries, columns are keys. Darker means more weight, relative to the largest weight of the row."

    def choose(n_layers: int, n_heads: int) -> dict[tuple[int, int], tuple[str, Tensor]]:
        return {
            (layer, head): (f"layer {layer}, head {heads[layer][head]}", maps[kind, layer][head])
            for layer in pick_evenly([*heads], n_layers)
            for head in range(min(n_heads, len(heads[layer])))  # the first ones: none between them is missing
        }

    enlarged, more = choose(ENLARGED_LAYERS, ENLARGED_HEADS), choose(SHOWN_LAYERS, SHOWN_HEADS)
    most = max(map(len, heads.values()))
    columns = min(ENLARGED_HEADS, most)
    long = max(len(queries), len(keys)) > MAX_LABELS
    figures = [
        PageFigure(
            f"{title}, {f'first {MAX_LABELS} tokens' if long else 'by token'}",
            draw_maps([*enlarged.values()], f"tokens-{kind}", columns, queries[:MAX_LABELS], keys[:MAX_LABELS]),
            read + count_shown(enlarged, heads),
        )
    ]
    if not long:
        more = {place: each for place, each in more.items() if place not in enlarged}
    if more:
        figures.append(
            PageFigure(
                f"{title}, all {max(len(queries), len(keys))} tokens" if long else f"{title} of more heads",
                draw_maps([*more.values()], f"maps-{kind}", min(SHOWN_HEADS, most) if long else columns),
                f"{read} Axes are token positions.{count_shown(more, heads) if long else ''}",
            )
        )
    return figures


def count_shown(shown: Collection[tuple[int, int]], heads: dict[int, list[str]]) -> str:
    """What part of all maps a figure shows; nothing if it shows all."""
    total = sum(map(len, heads.values()))
    return "" if len(shown) == total else f" {len(shown)} of {total} maps are shown."


def draw_maps(
    chosen: list[tuple[str, Tensor]], key: str, columns: int, queries: Sequence[str] = (), keys: Sequence[str] = ()
) -> Drawing:
    """Titled maps (T, S) in a grid; with labels, only the first queries and keys, relative to their row's largest weight."""
    T, S = (len(queries), len(keys)) if queries else chosen[0][1].shape
    rows, width = math.ceil(len(chosen) / columns), 9 / columns
    height = 0.35 + width * min(2.0, max(0.35, T / S))
    figure, grid = new_subplots(0.2 + height * rows, key, rows, columns, width=9)
    panels = [axes for row in grid for axes in row]
    for axes in panels[len(chosen) :]:
        axes.set_axis_off()
    for axes, (title, weights) in zip(panels, chosen, strict=False):
        # otherwise late queries, which see more keys, would be pale
        normalized = weights / weights.amax(-1, keepdim=True).clamp(min=1e-30)
        image = normalized[:T, :S].numpy()
        axes.imshow(image, aspect="auto", cmap="Blues", vmin=0, vmax=1, interpolation="nearest")
        axes.set_title(title, fontsize=9)
        axes.tick_params(length=0 if queries else 2, labelsize=7)
        if queries:
            axes.set_xticks(range(S), keys, rotation=90 if max(map(len, keys)) > 1 else 0)
            axes.set_yticks(range(T), queries)
        else:
            set_integer_ticks(axes, y=True)
    return draw(figure, key)


def pick_evenly(items: list[int], n: int) -> list[int]:
    """At most `n` items, evenly spaced from the first to the last."""
    if len(items) <= n:
        return items
    return [items[round(index * (len(items) - 1) / (n - 1))] for index in range(n)]

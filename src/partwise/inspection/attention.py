"""Where attention looks: its maps, how spread they are, and what they would be without the scale of the scores."""

import math
import re
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from partwise.config import ConfigError
from partwise.drawing import COLOURS, canvases, cut, svg
from partwise.inspection.page import Figure, Look
from partwise.inspection.recording import watching
from partwise.inspection.subject import Subject
from partwise.model import Transformer
from partwise.parts.scores import Scores
from partwise.parts.sight import Sight

SITES = r"(encoder\.)?blocks\.(\d+)\.(attention|cross)\.scores"
KINDS = ("self", "cross", "encoder")
SIDES = {1: ("",), 2: ("+", "−")}  # of a head, by how many maps it has: a differential one subtracts the second
COLUMNS = ("layer", "entropy", "of most", "largest", "distance", "on first")
TOKENS = 2048  # of the sample
MAPS = (4, 6)  # layers and heads of a kind that are drawn
FEW = 28  # tokens that still fit as labels beside a map
WIDTHS = [2**power for power in range(11)]  # of a head
KEYS, QUERIES = 64, 256  # of the random heads


class Call(NamedTuple):
    """What an attention layer compared: queries (B, H, T, E), keys (B, K, S, E), and what a query may look at."""

    scores: Scores
    q: Tensor
    k: Tensor
    sight: Sight

    def weights(self, scale: float) -> Tensor:
        """(B, H, T, S): softmax(cap(q k^T scale) + bias), sinks taking their share."""
        groups = self.q.shape[1] // self.k.shape[1]
        products = self.q @ self.k.repeat_interleave(groups, dim=1).transpose(2, 3) * scale
        cap, bias = self.scores.softcap, self.sight.bias()
        products = products if cap is None else cap * torch.tanh(products / cap)
        return self.scores.softmax(products if bias is None else products + bias)

    def visible(self) -> Tensor:
        """How many keys each query may look at, the same for all heads, in a shape that broadcasts to (B, 1, T)."""
        bias = self.sight.bias()
        if bias is None:
            return torch.tensor(float(self.k.shape[2]))
        seen = (bias > float("-inf")).sum(-1).double()
        return seen if seen.dim() == 1 else seen[..., :1, :]


@dataclass(frozen=True)
class Habits:
    """How the heads of one layer look, over all queries of a sample that are no padding. Tensors are float64 (H,)."""

    kind: str  # self, cross or encoder
    layer: int
    heads: list[str]
    entropy: Tensor  # nats, its mean; what a sink takes counts as one more key
    most: float  # nats: the mean logarithm of the number of keys in sight, which entropy cannot exceed
    largest: Tensor  # the mean of a query's largest weight
    distance: Tensor  # places between query and key, the mean over all weight
    first: Tensor  # the weight on the first key
    sink: Tensor  # the weight on nothing
    raw_entropy: Tensor  # entropy and largest weight of the same queries and keys without the scale
    raw_largest: Tensor


@torch.no_grad()
def calls_of(model: Transformer, inputs: Tensor, source: Tensor | None = None) -> dict[str, list[Call]]:
    """What each attention layer compares over tokens (B, T) and a source (B, M), by the name of its `scores`.

    Call by call, where a layer makes several maps.
    """
    calls: dict[str, list[Call]] = {}

    def take(name: str, inputs: tuple[Any, ...], output: object) -> None:
        scores = model.get_submodule(name)
        if isinstance(scores, Scores):
            q, k, _, sight = inputs
            calls.setdefault(name, []).append(Call(scores, q, k, sight))

    with watching(model, SITES, take):
        model(inputs, source=source)
    return calls


@torch.no_grad()
def maps(calls: list[Call], raw: bool = False) -> Tensor:
    """The weights of one layer, (B, H, T, S); the two maps of a differential head stand side by side.

    `raw` leaves out the scale of the scores, and keeps all else: bias, cap, sinks.
    """
    each = [call.weights(1.0 if raw else call.scores.scale) for call in calls]
    return torch.stack(each, dim=2).flatten(1, 2)


def place_of(name: str) -> tuple[str, int]:
    """`encoder.blocks.3.attention.scores` -> ('encoder', 3)."""
    found = re.fullmatch(SITES, name)
    assert found is not None
    return "encoder" if found[1] else {"attention": "self", "cross": "cross"}[found[3]], int(found[2])


@torch.no_grad()
def habits(model: Transformer, inputs: Tensor, source: Tensor | None = None) -> list[Habits]:
    """How every layer looks over tokens (B, T) and a source (B, M): by kind, then from the first layer to the last."""
    padding = model.config.padding_idx
    found = []
    for name, calls in calls_of(model, inputs, source).items():
        kind, layer = place_of(name)
        queries = source if kind == "encoder" else inputs
        assert queries is not None
        counted = torch.ones_like(queries, dtype=torch.bool) if padding is None else queries != padding
        found.append(habits_of(kind, layer, calls, counted))
    return sorted(found, key=lambda each: (KINDS.index(each.kind), each.layer))


def habits_of(kind: str, layer: int, calls: list[Call], counted: Tensor) -> Habits:
    """Of the calls of one layer; queries where (B, T) `counted` is false are left out."""
    weights = maps(calls)
    B, H, T, S = weights.shape
    share = (counted / counted.sum()).double()[:, None, :]  # (B, 1, T)

    def mean(values: Tensor) -> Tensor:
        return (values.double() * share).sum(dim=(0, 2))  # (B, H, T) -> (H,)

    visible = calls[0].visible() + (0 if calls[0].scores.sinks is None else 1)
    entropy, largest, sink = spread(weights, calls[0].scores)
    distances = (torch.arange(T)[:, None] - torch.arange(S)).abs().to(weights.dtype)
    walked = mean((weights * distances).sum(-1)) / mean(weights.sum(-1))
    raw = spread(maps(calls, raw=True), calls[0].scores)
    return Habits(
        kind,
        layer,
        [f"{head}{side}" for head in range(H // len(calls)) for side in SIDES[len(calls)]],
        mean(entropy),
        mean(visible.log().expand(B, 1, T)).item(),
        mean(largest),
        walked,
        mean(weights[..., 0]),
        mean(sink),
        mean(raw[0]),
        mean(raw[1]),
    )


def spread(weights: Tensor, scores: Scores) -> tuple[Tensor, Tensor, Tensor]:
    """(B, H, T, S) weights -> entropy in nats, largest weight, and what a sink takes, each (B, H, T)."""
    sink = torch.zeros_like(weights[..., 0]) if scores.sinks is None else (1 - weights.sum(-1)).clamp(min=0)
    return torch.special.entr(weights).sum(-1) + torch.special.entr(sink), weights.amax(-1), sink


class Saturation(NamedTuple):
    """What softmax makes of random scores: the means of entropy / log(keys), largest weight, and gradient norm."""

    entropy: float
    largest: float
    gradient: float  # Frobenius norm of the Jacobian of the weights by the scores


def saturation(width: int, scaled: bool, keys: int = KEYS, queries: int = QUERIES) -> Saturation:
    """For queries and keys of `width` independent numbers of mean 0 and variance 1.

    Their product has variance `width`: Vaswani et al. 2017, arXiv:1706.03762, footnote 4. The same draw every time.
    """
    generator = torch.Generator().manual_seed(0)
    q, k = (torch.randn(n, width, generator=generator, dtype=torch.float64) for n in (queries, keys))
    scores = q @ k.T / (math.sqrt(width) if scaled else 1.0)
    weights = scores.softmax(-1)
    return Saturation(
        torch.special.entr(weights).sum(-1).mean().item() / math.log(keys),
        weights.amax(-1).mean().item(),
        jacobian_norm(weights).mean().item(),
    )


def jacobian_norm(weights: Tensor) -> Tensor:
    """(..., S) softmax weights p -> (...): the Frobenius norm of diag(p) - p p^T."""
    squares = weights.square().sum(-1)
    return (squares - 2 * weights.pow(3).sum(-1) + squares.square()).clamp(min=0).sqrt()


def look(subject: Subject) -> Look:
    model = subject.model
    sample = subject.sample(TOKENS)
    found = habits(model, *subject.tensors(sample))
    if not found:
        raise ConfigError(f"{subject.name} has no attention whose weights could be seen: choose another look")
    row = subject.row()
    inputs, source = subject.tensors(row)
    shown = {place_of(name): maps(calls)[0] for name, calls in calls_of(model, inputs, source).items()}
    labels = {"self": [*map(cut, subject.symbols(row.inputs[0]))]}
    if row.source is not None:
        labels["encoder"] = [*map(cut, subject.symbols(row.source[0]))]
    sinks = any(bool(each.sink.any()) for each in found)
    return Look(
        f"where attention looks, over {sample.count:,} tokens of the validation split",
        "Means over heads and queries. Entropy is in nats, and in percent of that of an even look at every key in sight; "
        "distance is in places, weighted; raw is what the same queries and keys would give without the scale of their "
        "scores, 1/sqrt(head width) where not set otherwise."
        + (" A sink takes weight and gives nothing; for the entropy it is one more key." if sinks else ""),
        [*COLUMNS, *["on sink"] * sinks, "raw entropy", "raw largest"],
        [row_of(each, sinks) for each in found],
        [
            *(figure for kind in KINDS if (figure := entropies(kind, [each for each in found if each.kind == kind]))),
            *(figure for kind in KINDS if (figure := map_figure(kind, shown, found, labels))),
            saturation_figure(found),
        ],
    )


def row_of(each: Habits, sinks: bool) -> list[str]:
    return [
        f"{each.kind} {each.layer}",
        f"{each.entropy.mean():.3g}",
        f"{each.entropy.mean() / each.most:.1%}" if each.most else "",
        f"{each.largest.mean():.3g}",
        "" if each.kind == "cross" else f"{each.distance.mean():.3g}",
        f"{each.first.mean():.3g}",
        *[f"{each.sink.mean():.3g}"] * sinks,
        f"{each.raw_entropy.mean():.3g}",
        f"{each.raw_largest.mean():.3g}",
    ]


def entropies(kind: str, found: list[Habits]) -> Figure | None:
    """Entropy of each head of each layer, as a share of the largest possible."""
    if not found or not any(each.most for each in found):
        return None
    heads, key = max(len(each.heads) for each in found), f"entropy-{kind}"
    table = torch.full((len(found), heads), math.nan)
    for row, each in enumerate(found):
        table[row, : len(each.heads)] = each.entropy / each.most
    figure, [[axes]] = canvases(0.9 + 0.27 * len(found), key, width=8)
    image = axes.imshow(100 * table.numpy(), aspect="auto", cmap="viridis", vmin=0, vmax=100)
    if heads <= 16:
        for row, head in zip(*torch.where(~table.isnan()), strict=True):
            share = table[row, head].item()
            colour = "white" if share < 0.6 else "black"
            axes.text(head.item(), row.item(), f"{100 * share:.0f}", ha="center", va="center", fontsize=8, color=colour)
        axes.set_xticks(range(heads), max((each.heads for each in found), key=len))
    axes.set_yticks(range(len(found)), [str(each.layer) for each in found])
    axes.set_xlabel("head")
    axes.set_ylabel("layer")
    figure.colorbar(image, ax=axes, label="% of the most")
    title = {"self": "Entropy of each head", "cross": "Entropy of each head over the source"}
    return Figure(
        title.get(kind, "Entropy of each head of the encoder"),
        svg(figure, key),
        "In percent of the entropy of an even look: at 0 every query looks at one key, at 100 at all in sight alike.",
    )


def map_figure(
    kind: str, shown: dict[tuple[str, int], Tensor], found: list[Habits], labels: dict[str, list[str]]
) -> Figure | None:
    """Maps of some heads of some layers, evenly chosen, over one row."""
    heads = {each.layer: each.heads for each in found if each.kind == kind}
    if not heads:
        return None
    chosen = [
        (layer, head) for layer in evenly([*heads], MAPS[0]) for head in evenly([*range(len(heads[layer]))], MAPS[1])
    ]
    side = min(MAPS[1], max(map(len, heads.values())))
    columns = MAPS[1] // side * side  # a layer's heads in one row
    queries = labels["encoder" if kind == "encoder" else "self"]
    keys = labels["self" if kind == "self" else "encoder"]
    few, key = max(len(queries), len(keys)) <= FEW, f"maps-{kind}"
    rows = math.ceil(len(chosen) / columns)
    width = 9 / columns
    tall = 0.35 + width * min(2.0, max(0.35, len(queries) / len(keys)))
    figure, grid = canvases(0.2 + tall * rows, key, rows, columns, width=9)
    panels = [axes for row in grid for axes in row]
    for axes in panels[len(chosen) :]:
        axes.set_axis_off()
    for axes, (layer, head) in zip(panels, chosen, strict=False):
        weights = shown[kind, layer][head]
        rows_alike = weights / weights.amax(-1, keepdim=True).clamp(
            min=1e-30
        )  # else late queries, who see more, are pale
        axes.imshow(rows_alike.numpy(), aspect="auto", cmap="Blues", vmin=0, vmax=1, interpolation="nearest")
        axes.set_title(f"layer {layer}, head {heads[layer][head]}", fontsize=8)
        axes.tick_params(length=0 if few else 2, labelsize=5 if few else 7)
        if few:
            axes.set_xticks(range(len(keys)), keys, rotation=90 if max(map(len, keys)) > 1 else 0)
            axes.set_yticks(range(len(queries)), queries)
    title = {"self": "Maps", "cross": "Maps over the source"}.get(kind, "Maps of the encoder")
    return Figure(
        title,
        svg(figure, key),
        "Each row of a map is a query, each column a key; the darker, the more weight, up to the largest of its row."
        + ("" if few else " Axes count places."),
    )


def evenly(items: list[int], number: int) -> list[int]:
    """At most so many, from the first to the last."""
    if len(items) <= number:
        return items
    return [items[round(place * (len(items) - 1) / (number - 1))] for place in range(number)]


def saturation_figure(found: list[Habits]) -> Figure:
    """Random queries and keys of every width, with and without the scale."""
    figure, [grid] = canvases(2.6, "saturation", columns=3, width=9)
    for scaled, name, colour in ((False, "without", COLOURS[1]), (True, "divided by sqrt(width)", COLOURS[0])):
        points = [saturation(width, scaled) for width in WIDTHS]
        for axes, values in zip(grid, zip(*points, strict=True), strict=True):
            axes.plot(WIDTHS, values, color=colour, marker="o", markersize=3, label=name)
    for axes, name in zip(grid, ("entropy, share of the most", "largest weight", "norm of the gradient"), strict=True):
        axes.set_xscale("log", base=2)
        axes.set_xticks([1, 16, 128, 1024], ["1", "16", "128", "1024"])
        axes.minorticks_off()
        axes.set_xlabel("width of a head")
        axes.set_title(name, fontsize=10)
        axes.set_ylim(bottom=0)
    grid[1].legend(frameon=False, fontsize=8, loc="center right", bbox_to_anchor=(1, 0.32))
    return Figure(
        "Why scores are scaled",
        svg(figure, "saturation"),
        f"Softmax over the products of a random query with {KEYS} random keys, all numbers of variance 1. A product sums as "
        "many terms as a head is wide, so its variance is that width: without the scale softmax comes to pick one key, and "
        "its gradient (the Frobenius norm of its Jacobian) goes to zero. Vaswani et al. 2017, footnote 4.",
    )

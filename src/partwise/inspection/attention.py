"""Attention maps, their entropy, and what they would be without the scale of the scores."""

import math
import re
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from partwise.compute.float64 import to_float64
from partwise.config import ConfigError
from partwise.inspection.hooks import watch_modules
from partwise.inspection.map_figures import map_figures
from partwise.inspection.subject import Subject
from partwise.model import Transformer
from partwise.model.cache import Cache
from partwise.parts.attention.core import AttentionCore
from partwise.parts.attention.mask import AttentionMask
from partwise.plots.drawing import draw
from partwise.plots.page import Page, PageFigure
from partwise.plots.plotting import COLORS, add_color_scale, new_subplots, shorten

MODULE_PATTERN = r"(encoder\.)?blocks\.(\d+)\.(attention|cross)\.scores"
KINDS = ("self", "cross", "encoder")
HEAD_SUFFIXES = {1: ("",), 2: ("+", "−")}  # by number of maps per head; differential attention subtracts the second
COLUMNS = ("layer", "entropy", "% of max", "max weight", "distance", "first key")
TOKENS = 2048  # sample size
HEAD_DIMS = [2**power for power in range(11)]
N_KEYS, N_QUERIES = 64, 256  # random vectors in the saturation figure


class AttentionCall(NamedTuple):
    """The inputs of one call of an attention core: queries (B, H, T, E), keys (B, K, S, E) and the mask."""

    core: AttentionCore
    q: Tensor
    k: Tensor
    mask: AttentionMask

    def weights(self, scale: float) -> Tensor:
        """(B, H, T, S): softmax(cap(q k^T scale) + bias); with sinks, rows sum to less than 1."""
        groups = self.q.shape[1] // self.k.shape[1]
        scores = self.q @ self.k.repeat_interleave(groups, dim=1).transpose(2, 3) * scale
        cap, bias = self.core.softcap, self.mask.bias()
        scores = scores if cap is None else cap * torch.tanh(scores / cap)
        return self.core.softmax(scores if bias is None else scores + bias)

    def n_visible(self) -> Tensor:
        """The number of keys each query may attend to, equal for all heads; broadcasts to (B, 1, T)."""
        bias = self.mask.bias()
        if bias is None:
            return torch.tensor(float(self.k.shape[2]))
        n_visible = to_float64((bias > float("-inf")).sum(-1))
        return n_visible if n_visible.dim() == 1 else n_visible[..., :1, :]


@dataclass(frozen=True)
class AttentionStatistics:
    """Means over all non-padding queries of a sample, for the heads of one layer. Tensors are float64 (H,)."""

    kind: str  # self, cross or encoder
    layer: int
    heads: list[str]  # labels
    entropy: Tensor  # nats; a sink counts as one more key
    max_entropy: float  # nats: the log of the number of visible keys, an upper bound of the entropy
    max_weight: Tensor  # a query's largest weight
    distance: Tensor  # tokens between query and key, weighted by attention
    first_key: Tensor  # weight on the first key
    sink: Tensor  # weight on the learned sink, which has no value
    unscaled_entropy: Tensor  # entropy and largest weight of the same queries and keys without the scale
    unscaled_max_weight: Tensor


@torch.no_grad()
def record_calls(
    model: Transformer, inputs: Tensor, source: Tensor | None = None, cache: Cache | None = None
) -> dict[str, list[AttentionCall]]:
    """The calls of each attention core over tokens (B, T), which continue a `cache`, and a source (B, M), by module name.

    A layer with several maps per head calls its core once per map.
    """
    calls: dict[str, list[AttentionCall]] = {}

    def record(name: str, inputs: tuple[Any, ...], output: object) -> None:
        core = model.get_submodule(name)
        if isinstance(core, AttentionCore):
            q, k, _, mask = inputs
            calls.setdefault(name, []).append(AttentionCall(core, q, k, mask))

    with watch_modules(model, MODULE_PATTERN, record):
        model(inputs, cache, source=source)
    return calls


@torch.no_grad()
def attention_maps(calls: list[AttentionCall], unscaled: bool = False) -> Tensor:
    """The weights of one layer, (B, H, T, S); the two maps of a differential head are adjacent.

    `unscaled` omits the scale of the scores, but keeps bias, cap and sinks.
    """
    maps = [call.weights(1.0 if unscaled else call.core.scale) for call in calls]
    return torch.stack(maps, dim=2).flatten(1, 2)


def kind_and_layer(name: str) -> tuple[str, int]:
    """`encoder.blocks.3.attention.scores` -> ('encoder', 3)."""
    match = re.fullmatch(MODULE_PATTERN, name)
    assert match is not None
    return "encoder" if match[1] else {"attention": "self", "cross": "cross"}[match[3]], int(match[2])


@torch.no_grad()
def attention_statistics(model: Transformer, inputs: Tensor, source: Tensor | None = None) -> list[AttentionStatistics]:
    """Statistics of every attention layer over tokens (B, T) and a source (B, M), sorted by kind and layer."""
    padding_idx = model.config.padding_idx
    statistics = []
    for name, calls in record_calls(model, inputs, source).items():
        kind, layer = kind_and_layer(name)
        queries = source if kind == "encoder" and model.config.takes_source else inputs
        assert queries is not None
        mask = torch.ones_like(queries, dtype=torch.bool) if padding_idx is None else queries != padding_idx
        statistics.append(layer_statistics(kind, layer, calls, mask))
    return sorted(statistics, key=lambda each: (KINDS.index(each.kind), each.layer))


def layer_statistics(kind: str, layer: int, calls: list[AttentionCall], mask: Tensor) -> AttentionStatistics:
    """Statistics of one layer's calls over the queries where `mask` (B, T) is true."""
    weights = attention_maps(calls)
    B, H, T, S = weights.shape
    weight = to_float64(mask / mask.sum())[:, None, :]  # (B, 1, T)

    def mean(values: Tensor) -> Tensor:
        return (to_float64(values) * weight).sum(dim=(0, 2))  # (B, H, T) -> (H,)

    n_visible = calls[0].n_visible() + (0 if calls[0].core.sinks is None else 1)
    entropy, max_weight, sink = entropy_max_and_sink(weights, calls[0].core)
    distances = (torch.arange(T)[:, None] - torch.arange(S)).abs().to(weights)
    mean_distance = mean((weights * distances).sum(-1)) / mean(weights.sum(-1))
    unscaled = entropy_max_and_sink(attention_maps(calls, unscaled=True), calls[0].core)
    return AttentionStatistics(
        kind,
        layer,
        [f"{head}{suffix}" for head in range(H // len(calls)) for suffix in HEAD_SUFFIXES[len(calls)]],
        mean(entropy),
        mean(n_visible.log().expand(B, 1, T)).item(),
        mean(max_weight),
        mean_distance,
        mean(weights[..., 0]),
        mean(sink),
        mean(unscaled[0]),
        mean(unscaled[1]),
    )


def entropy_max_and_sink(weights: Tensor, core: AttentionCore) -> tuple[Tensor, Tensor, Tensor]:
    """(B, H, T, S) weights -> entropy in nats, largest weight, and weight on the sink, each (B, H, T)."""
    sink = torch.zeros_like(weights[..., 0]) if core.sinks is None else (1 - weights.sum(-1)).clamp(min=0)
    return torch.special.entr(weights).sum(-1) + torch.special.entr(sink), weights.amax(-1), sink


class Saturation(NamedTuple):
    """Softmax of random scores: the means of entropy / log(n_keys), largest weight, and gradient norm."""

    entropy: float
    max_weight: float
    gradient_norm: float  # Frobenius norm of the Jacobian of the weights by the scores


def softmax_saturation(head_dim: int, scaled: bool, n_keys: int = N_KEYS, n_queries: int = N_QUERIES) -> Saturation:
    """For random queries and keys: `head_dim` entries with mean 0 and variance 1 and a fixed seed.

    Their dot product has variance `head_dim`: Vaswani et al. 2017, arXiv:1706.03762, footnote 4.
    """
    generator = torch.Generator().manual_seed(0)
    q, k = (torch.randn(n, head_dim, generator=generator, dtype=torch.float64) for n in (n_queries, n_keys))
    scores = q @ k.T / (math.sqrt(head_dim) if scaled else 1.0)
    weights = scores.softmax(-1)
    return Saturation(
        torch.special.entr(weights).sum(-1).mean().item() / math.log(n_keys),
        weights.amax(-1).mean().item(),
        softmax_jacobian_norm(weights).mean().item(),
    )


def softmax_jacobian_norm(weights: Tensor) -> Tensor:
    """(..., S) softmax weights p -> (...): the Frobenius norm of diag(p) - p p^T."""
    squares = weights.square().sum(-1)
    return (squares - 2 * weights.pow(3).sum(-1) + squares.square()).clamp(min=0).sqrt()


def inspect(subject: Subject) -> Page:
    """Attention statistics and maps, and the effect of scaling the scores."""
    model = subject.model
    sample = subject.sample(TOKENS)
    statistics = attention_statistics(model, *subject.tensors(sample))
    if not statistics:
        raise ConfigError(f"{subject.name} has no attention weights to show: choose another inspection")
    row = subject.row()
    inputs, source = subject.tensors(row)
    maps = {
        kind_and_layer(name): attention_maps(calls)[0] for name, calls in record_calls(model, inputs, source).items()
    }
    labels = {"self": [*map(shorten, subject.token_labels(row.inputs[0]))]}
    if model.config.encoder_only:
        labels["encoder"] = labels["self"]
    if row.source is not None:
        labels["encoder"] = [*map(shorten, subject.token_labels(row.source[0]))]
    has_sinks = any(bool(each.sink.any()) for each in statistics)
    return Page(
        f"attention statistics over {sample.n_targets:,} tokens of the validation split",
        "Means over heads and queries. Entropy is in nats, and as a percentage of its maximum, uniform attention over all "
        "visible keys; max weight is a query's largest weight; distance is in tokens, weighted by attention; first key is "
        "the weight on the first token, large if it acts as an attention sink. Unscaled: the same queries and keys without "
        "the scale of the scores, by default 1/sqrt(head_dim)."
        + (
            " Sink: weight on the learned sink, which has no value; the entropy counts it as a key."
            if has_sinks
            else ""
        ),
        [*COLUMNS, *["sink"] * has_sinks, "unscaled entropy", "unscaled max"],
        [table_row(each, has_sinks) for each in statistics],
        [
            *(
                figure
                for kind in KINDS
                if (figure := entropy_figure(kind, [each for each in statistics if each.kind == kind]))
            ),
            *(
                figure
                for kind in KINDS
                for figure in map_figures(
                    kind, maps, {each.layer: each.heads for each in statistics if each.kind == kind}, labels
                )
            ),
            saturation_figure(),
        ],
    )


def table_row(each: AttentionStatistics, has_sinks: bool) -> list[str]:
    return [
        f"{each.kind} {each.layer}",
        f"{each.entropy.mean():.3g}",
        f"{each.entropy.mean() / each.max_entropy:.1%}" if each.max_entropy else "",
        f"{each.max_weight.mean():.3g}",
        "" if each.kind == "cross" else f"{each.distance.mean():.3g}",
        f"{each.first_key.mean():.3g}",
        *[f"{each.sink.mean():.3g}"] * has_sinks,
        f"{each.unscaled_entropy.mean():.3g}",
        f"{each.unscaled_max_weight.mean():.3g}",
    ]


def entropy_figure(kind: str, statistics: list[AttentionStatistics]) -> PageFigure | None:
    """Entropy of each head of each layer, relative to its maximum."""
    if not statistics or not any(each.max_entropy for each in statistics):
        return None
    heads, key = max(len(each.heads) for each in statistics), f"entropy-{kind}"
    table = torch.full((len(statistics), heads), math.nan)
    for row, each in enumerate(statistics):
        table[row, : len(each.heads)] = each.entropy / each.max_entropy
    figure, [[axes]] = new_subplots(0.9 + 0.27 * len(statistics), key, width=8)
    image = axes.imshow(100 * table.numpy(), aspect="auto", cmap="viridis", vmin=0, vmax=100)
    if heads <= 16:
        for row, head in zip(*torch.where(~table.isnan()), strict=True):
            fraction = table[row, head].item()
            color = "white" if fraction < 0.6 else "#202124"  # a color that dark pages keep
            axes.text(
                head.item(), row.item(), f"{100 * fraction:.0f}", ha="center", va="center", fontsize=8, color=color
            )
        axes.set_xticks(range(heads), max((each.heads for each in statistics), key=len))
    axes.set_yticks(range(len(statistics)), [str(each.layer) for each in statistics])
    axes.set_xlabel("head")
    axes.set_ylabel("layer")
    add_color_scale(figure, image, axes, "% of maximum")
    title = {"self": "Attention entropy of each head", "cross": "Cross-attention entropy of each head"}
    return PageFigure(
        title.get(kind, "Attention entropy of each encoder head"),
        draw(figure, key),
        "In percent of the maximum: 0 means that every query attends to one key, 100 that it attends to all visible keys "
        "equally.",
    )


def saturation_figure() -> PageFigure:
    """Softmax of random queries and keys by head_dim, with and without the scale."""
    figure, [grid] = new_subplots(2.6, "saturation", columns=3, width=9)
    for scaled, name, color in ((False, "unscaled", COLORS[1]), (True, "divided by sqrt(head_dim)", COLORS[0])):
        points = [softmax_saturation(head_dim, scaled) for head_dim in HEAD_DIMS]
        for axes, values in zip(grid, zip(*points, strict=True), strict=True):
            axes.plot(HEAD_DIMS, values, color=color, marker="o", markersize=3, label=name)
    for axes, name in zip(grid, ("entropy / maximum", "largest weight", "gradient norm"), strict=True):
        axes.set_xscale("log", base=2)
        axes.set_xticks([1, 16, 128, 1024], ["1", "16", "128", "1024"])
        axes.minorticks_off()
        axes.set_xlabel("head_dim")
        axes.set_title(name, fontsize=10)
        axes.set_ylim(bottom=0)
    grid[1].legend(frameon=False, fontsize=8, loc="center right", bbox_to_anchor=(1, 0.32))
    return PageFigure(
        "Why scores are scaled",
        draw(figure, "saturation"),
        f"Softmax over the dot products of a random query with {N_KEYS} random keys, all entries with variance 1. A dot "
        "product sums head_dim terms, so its variance is head_dim: without the scale, softmax saturates at a single key and "
        "its gradient (the Frobenius norm of its Jacobian) vanishes. Vaswani et al. 2017, arXiv:1706.03762, footnote 4.",
    )

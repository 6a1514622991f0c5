"""How a model encodes positions: vectors added to its inputs, rotations in its heads, or biases added to its scores."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from partwise.compute.float64 import to_float64
from partwise.config import recipes_by_layer
from partwise.inspection.position_maps import distance_figure, turns_figure, vectors_figure
from partwise.inspection.subject import Subject
from partwise.model.stack import Stack
from partwise.model.transformer import ModelConfig, Transformer
from partwise.parts.contracts import PositionLayer
from partwise.parts.positions.angles import AngleTable
from partwise.parts.roles import TensorSpec
from partwise.plots.drawing import Drawing, draw
from partwise.plots.page import Page, PageFigure
from partwise.plots.plotting import (
    COLORS,
    legend_above,
    new_figure,
    new_subplots,
    set_integer_ticks,
    set_log_scale,
)

MAX_POSITIONS = 4096  # position vectors measured
ROTARY_DISTANCE = 512  # largest distance between query and key in the figure of rotary positions
BIAS_DISTANCE = 160  # the same in the figure of score biases
WIDTHS = [2**power for power in range(4, 13)]
MAX_TABLE_SIZE = 2**26  # elements of the largest table initialized for measurement
MAX_HEADS = 8  # lines in a figure
DESCRIPTIONS = {
    "at_input": "Positions are vectors added to the embeddings; if their norm is much larger, they dominate the embeddings.",
    "on_heads": "Positions rotate pairs of dimensions of queries and keys. A pair completes a rotation after one wavelength; "
    "pairs with a wavelength above context_length never do.",
    "on_scores": "Positions add a bias to the attention scores, by the distance between query and key.",
}


@dataclass(frozen=True)
class InputNorms:
    """L2 norms at the input of one stack: of its embeddings, and of the position vectors added to them."""

    embeddings: Tensor  # (N,) norm of each token of a sample, after scaling by the stack's embedding_scale
    by_position: Tensor  # (T,) the same, averaged at each position of the sample
    positions: Tensor | None  # (n_positions,), None if positions add nothing to the inputs

    @property
    def ratio(self) -> Tensor | None:
        """(T,) embedding norm / position norm at each position."""
        return None if self.positions is None else self.by_position / self.positions[: len(self.by_position)]


def implements(layer: PositionLayer, method: str) -> bool:
    """Whether a position layer implements `at_input`, `on_heads` or `on_scores`."""
    return getattr(type(layer), method) is not getattr(PositionLayer, method)


def stacks_by_prefix(model: Transformer) -> dict[str, Stack]:
    """The decoder as '', and the encoder as 'encoder '."""
    stacks: dict[str, Stack] = {} if model.config.encoder_only else {"": model}
    return stacks if model.encoder is None else {**stacks, "encoder ": model.encoder}


@torch.no_grad()
def input_norms(stack: Stack, tokens: Tensor, context_length: int, padding_idx: int | None = None) -> InputNorms:
    """Norms of the embeddings of tokens (B, T) without padding, and of the position vectors up to context_length."""
    table = stack.embed
    assert isinstance(table, torch.nn.Embedding)
    norms = (table(tokens) * stack.embedding_scale).norm(dim=-1)  # (B, T)
    mask = torch.ones_like(tokens, dtype=torch.bool) if padding_idx is None else tokens != padding_idx
    by_position = (norms * mask).sum(0) / mask.sum(0)
    n_positions = min(context_length, MAX_POSITIONS)
    return InputNorms(norms[mask], by_position, position_norms(stack.positions, n_positions, table.weight))


@torch.no_grad()
def position_norms(layer: PositionLayer, n_positions: int, table: Tensor) -> Tensor | None:
    """The norms (n_positions,) of the vectors added to inputs as wide as the rows of the embedding table."""
    vectors = position_vectors(layer, n_positions, table)
    return None if vectors is None else vectors.norm(dim=-1)


@torch.no_grad()
def position_vectors(layer: PositionLayer, n_positions: int, table: Tensor) -> Tensor | None:
    """The vectors (n_positions, D) added to inputs as wide as the rows of the embedding table."""
    if not implements(layer, "at_input"):
        return None
    zeros = table.new_zeros(1, n_positions, table.shape[1])
    return layer.at_input(zeros, torch.arange(n_positions, device=table.device))[0]


@torch.no_grad()
def rotary_decay(layer: PositionLayer, head_dim: int, n_positions: int) -> Tensor:
    """(n_positions,): q k^T by distance, for q and k with all entries 1 / sqrt(head_dim). Su et al. 2021, 3.4.3."""
    vectors = torch.full((1, 1, n_positions, head_dim), head_dim**-0.5, dtype=torch.float64)
    heads = layer.on_heads(vectors, torch.arange(n_positions))
    return heads[0, 0] @ heads[0, 0, 0]


@torch.no_grad()
def score_bias(layer: PositionLayer, n_positions: int, causal: bool) -> tuple[Tensor, Tensor]:
    """Distances (S,) from query to key, and score biases (H, S); distances to keys after the query are negative."""
    query = torch.tensor([n_positions - 1])
    keys = torch.arange(n_positions if causal else 2 * n_positions - 1)
    bias = layer.on_scores(query, keys, torch.zeros(()))
    assert bias is not None
    return query - keys, bias[:, 0]


def initial_norm(config: ModelConfig, rows: int, width: int) -> float | None:
    """The mean norm of the rows of a freshly initialized table (rows, width); None if the table is too large."""
    if rows * width > MAX_TABLE_SIZE:
        return None
    values, spec = torch.empty(rows, width), TensorSpec("table", 1, 1, width, (config.n_layers, config.encoder_layers))
    config.init.fill(values, spec, torch.Generator().manual_seed(0))
    return values.norm(dim=1).mean().item() * config.residual.gain(spec)


def inspect(subject: Subject) -> Page:
    """Norms of embeddings and positions, rotary wavelengths, and score biases."""
    config, model = subject.config.model, subject.model
    inputs, source = subject.tensors(subject.sample())
    rows: list[list[str]] = []
    figures: list[PageFigure] = []
    norms = {}
    for prefix, stack in stacks_by_prefix(model).items():
        tokens = source if prefix and config.takes_source else inputs
        assert tokens is not None
        stack_norms = norms[prefix] = input_norms(stack, tokens, config.context_length, config.padding_idx)
        causal = not prefix
        rows += [*norm_rows(prefix, stack_norms), *layer_rows(prefix, stack.positions, config.context_length, causal)]
        figures += stack_figures(prefix, stack, stack_norms, config)
    stack = next(iter(stacks_by_prefix(model).values()))
    descriptions = [text for method, text in DESCRIPTIONS.items() if implements(stack.positions, method)]
    factor = f", times sqrt({config.d_model}) = {stack.embedding_scale:.3g}" if config.scale_embeddings else ""
    none = "No position encoding: " + (
        "an encoder alone sees its text as a set."
        if config.encoder_only
        else "only the causal mask reveals the order of tokens."
    )
    return Page(
        f"positions={config.positions.name}",
        " ".join(descriptions or [none])
        + f" Norms are L2 norms of token embeddings{factor}, over a sample of the validation split.",
        ["quantity", "median", "min", "max"],
        rows,
        [
            *figures[:1],
            *distance_figure(model, inputs, source),
            *figures[1:],
            width_figure(config, next(iter(norms.values()))),
        ],
    )


def norm_rows(prefix: str, norms: InputNorms) -> list[list[str]]:
    measured = {
        "embedding norm": norms.embeddings,
        "position norm": norms.positions,
        "embedding norm / position norm": norms.ratio,
    }
    return [table_row(f"{prefix}{name}", values) for name, values in measured.items() if values is not None]


def layer_rows(prefix: str, layer: PositionLayer, context_length: int, causal: bool) -> list[list[str]]:
    rows = []
    if implements(layer, "on_heads") and isinstance(layer, AngleTable):
        waves = wavelengths(layer)
        complete = int((waves <= context_length).sum())
        name = (
            f"{prefix}rotary wavelength in tokens ({complete} of {len(waves)} pairs complete within {context_length:,})"
        )
        rows.append(table_row(name, waves))
    if implements(layer, "on_scores"):
        distances, bias = score_bias(layer, min(context_length, BIAS_DISTANCE), causal)
        rows += [
            table_row(f"{prefix}score bias at distance {distance}", bias[:, distances == distance])
            for distance in sorted({0, 1, 16, 128, int(distances.max())})
            if distance <= distances.max()
        ]
    return rows


def table_row(name: str, values: Tensor) -> list[str]:
    return [
        name,
        *(f"{value:,.0f}" if abs(value) >= 1e4 else f"{value:.4g}" for value in median_min_max(values)),
    ]


def median_min_max(values: Tensor) -> list[float]:
    return [to_float64(values).quantile(q).item() + 0.0 for q in (0.5, 0, 1)]  # + 0.0 avoids -0


def wavelengths(layer: AngleTable) -> Tensor:
    """(pairs,): the number of tokens after which each pair returns to its angle."""
    return 2 * math.pi / torch.tensor(layer.frequencies, dtype=torch.float64)


def stack_figures(prefix: str, stack: Stack, norms: InputNorms, config: ModelConfig) -> list[PageFigure]:
    layer, key = stack.positions, prefix.strip() or "decoder"
    suffix = f", {prefix.strip()}" if prefix else ""
    figures = []
    table = stack.embed
    assert isinstance(table, torch.nn.Embedding)
    vectors = position_vectors(layer, min(config.context_length, MAX_POSITIONS), table.weight)
    if vectors is not None:
        figures.append(vectors_figure(vectors, suffix))
        figures.append(PageFigure(f"Norm by position{suffix}", draw_norms(norms, f"norms-{key}")))
    if implements(layer, "on_heads"):
        if isinstance(layer, AngleTable):
            figures.append(turns_figure(layer, suffix))
        heads = recipes_by_layer(config.attention, len(stack.blocks))[0].heads(config.d_model)
        figures.append(
            PageFigure(
                f"Wavelengths of RoPE, and what they do to q.k{suffix}",
                draw_rotation(layer, heads.head_dim, config.context_length, f"rotation-{key}"),
                "Left: the wavelength of each pair; the dashed line is context_length. Right: the dot product of a query and "
                "a key, both of norm 1 with equal entries, by their distance.",
            )
        )
    if implements(layer, "on_scores"):
        image = draw_bias(layer, min(config.context_length, BIAS_DISTANCE), not prefix, f"scores-{key}")
        figures.append(
            PageFigure(f"Score bias{suffix}", image, "Negative distances are keys after the query." if prefix else "")
        )
    return figures


def draw_norms(norms: InputNorms, key: str) -> Drawing:
    assert norms.positions is not None
    figure, axes = new_figure(2.6, key, width=8)
    axes.plot(norms.by_position.numpy(), color=COLORS[0], label="embeddings, sample mean")
    axes.plot(norms.positions.numpy(), color=COLORS[1], label="positions")
    axes.set_ylim(0, 1.25 * max(norms.by_position.max().item(), norms.positions.max().item()))
    axes.set_xlabel("position")
    set_integer_ticks(axes)
    axes.set_ylabel("norm")
    axes.legend(frameon=False, fontsize=9, ncols=2, loc="upper right")
    return draw(figure, key)


def draw_rotation(layer: PositionLayer, head_dim: int, context_length: int, key: str) -> Drawing:
    figure, [[left, right]] = new_subplots(2.7, key, columns=2, width=8)
    if isinstance(layer, AngleTable):
        waves = wavelengths(layer)
        left.plot(waves.numpy(), color=COLORS[0], marker="o", markersize=3)
        set_log_scale(left)
        left.axhline(context_length, color=COLORS[7], linewidth=1, linestyle="--")
    left.set_xlabel("pair of dimensions")
    left.set_ylabel("wavelength in tokens")
    right.plot(rotary_decay(layer, head_dim, min(context_length, ROTARY_DISTANCE)).numpy(), color=COLORS[0])
    right.axhline(0, color=COLORS[7], linewidth=0.8)
    right.set_xlabel("distance in tokens")
    set_integer_ticks(left, right)
    right.set_ylabel("dot product")
    return draw(figure, key)


def draw_bias(layer: PositionLayer, n_positions: int, causal: bool, key: str) -> Drawing:
    distances, bias = score_bias(layer, n_positions, causal)
    figure, axes = new_figure(2.9, key, width=8)
    n = min(MAX_HEADS, len(bias))
    heads = sorted({round(index * (len(bias) - 1) / max(1, n - 1)) for index in range(n)})
    for line, head in enumerate(heads):
        axes.plot(distances.numpy(), bias[head].numpy(), color=COLORS[line % len(COLORS)], label=f"head {head}")
    axes.set_xlabel("distance in tokens")
    set_integer_ticks(axes)
    axes.set_ylabel("score bias")
    legend_above(axes, 4)
    return draw(figure, key)


def width_figure(config: ModelConfig, norms: InputNorms) -> PageFigure:
    """Norms of embeddings and positions by width, with this model's initialization."""
    figure, axes = new_figure(3.4, "width", width=8)
    tokens = {width: initial_norm(config, config.vocab_size, width) for width in WIDTHS}
    learned = {width: initial_norm(config, min(config.context_length, MAX_POSITIONS), width) for width in WIDTHS}
    lines: list[tuple[str, dict[int, float], str, float]] = [
        ("embeddings", {width: norm for width, norm in tokens.items() if norm}, "o-", 3),
        ("learned positions", {width: norm for width, norm in learned.items() if norm}, "--", 1.5),
        ("embeddings x sqrt(width)", {width: norm * width**0.5 for width, norm in tokens.items() if norm}, "o-", 1.5),
        ("sinusoidal positions", {width: math.sqrt(width / 2) for width in WIDTHS}, "o-", 1.5),
    ]
    for color, (name, points, style, linewidth) in zip(COLORS, lines, strict=False):
        axes.plot([*points], [*points.values()], style, color=color, linewidth=linewidth, markersize=3, label=name)
    own = [norms.embeddings.mean().item(), *([] if norms.positions is None else [norms.positions.mean().item()])]
    for value, marker, name in zip(own, "*X", ("this model's embeddings", "this model's positions"), strict=False):
        axes.plot([config.d_model], [value], marker, color="#3c4043", markersize=9, label=name)
    axes.set_xscale("log", base=2)
    axes.set_xticks(WIDTHS, map(str, WIDTHS))
    axes.minorticks_off()
    set_log_scale(axes)
    axes.set_xlabel("width of the model")
    axes.set_ylabel("norm")
    legend_above(axes)
    return PageFigure(
        "Norm by width",
        draw(figure, "width"),
        f"Embeddings and learned positions initialized with init={config.init.name}, and sinusoidal positions. The norm of "
        "the latter is exactly sqrt(width / 2): each sine-cosine pair adds 1 to its square. The original Transformer "
        "multiplies embeddings by sqrt(width) (Vaswani et al. 2017, arXiv:1706.03762, 3.4); with a small initialization and "
        "without that factor they would be far smaller than such positions. Star and cross: this model.",
    )

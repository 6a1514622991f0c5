"""How a model knows the order of its tokens: what positions add to its inputs, turn in its heads, or add to its scores."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from partwise.config import recipes_by_layer
from partwise.drawing import COLOURS, canvas, canvases, logarithmic, svg
from partwise.inspection.page import Figure, Look
from partwise.inspection.subject import Subject
from partwise.model import ModelConfig, Stack, Transformer
from partwise.parts.families import PositionLayer
from partwise.parts.positions import AngleTable
from partwise.parts.roles import TensorSpec

PLACES = 4096  # whose vectors are measured
FAR = 512  # places between a query and a key that are turned, in figures
BIASED = 160  # the same for what is added to scores
WIDTHS = [2**power for power in range(4, 13)]
NUMBERS = 2**26  # of the largest table that is drawn to be measured
LINES = 8  # heads in a figure
BY_KIND = {
    "at_input": "Positions are vectors added to the embeddings: where their norm is far larger, a token drowns in its place.",
    "on_heads": "Positions turn pairs of dimensions of queries and keys: a pair comes back to its angle after a wavelength, "
    "and what is slower than max_len never does.",
    "on_scores": "Positions add to the scores of attention, by the distance of query and key.",
}


@dataclass(frozen=True)
class Norms:
    """Euclidean norms in one stack: of its embeddings as they enter, and of the vectors that positions add to them."""

    embeddings: Tensor  # (N,) of the tokens of a sample, after the stack's own factor
    by_place: Tensor  # (T,) the same, averaged at each place of the sample
    positions: Tensor | None  # (places,), None where positions add nothing to inputs

    @property
    def ratio(self) -> Tensor | None:
        """(T,) embeddings over positions, place by place."""
        return None if self.positions is None else self.by_place / self.positions[: len(self.by_place)]


def has(layer: PositionLayer, hook: str) -> bool:
    """Whether positions do anything at `at_input`, `on_heads` or `on_scores`."""
    return getattr(type(layer), hook) is not getattr(PositionLayer, hook)


def stacks(model: Transformer) -> dict[str, Stack]:
    """The decoder under the name '', and an encoder."""
    return {"": model} if model.encoder is None else {"": model, "encoder ": model.encoder}


@torch.no_grad()
def norms(stack: Stack, tokens: Tensor, max_len: int, padding: int | None = None) -> Norms:
    """Of the embeddings of tokens (B, T), padding left out, and of the position vectors up to max_len."""
    table = stack.embed
    assert isinstance(table, torch.nn.Embedding)
    lengths = (table(tokens) * stack.scale).norm(dim=-1)  # (B, T)
    kept = torch.ones_like(tokens, dtype=torch.bool) if padding is None else tokens != padding
    by_place = (lengths * kept).sum(0) / kept.sum(0)
    return Norms(lengths[kept], by_place, added(stack.positions, min(max_len, PLACES), table.weight))


@torch.no_grad()
def added(layer: PositionLayer, places: int, table: Tensor) -> Tensor | None:
    """The norms (places,) of the vectors that positions add to inputs as wide as the table's rows."""
    if not has(layer, "at_input"):
        return None
    nothing = table.new_zeros(1, places, table.shape[1])
    return layer.at_input(nothing, torch.arange(places))[0].norm(dim=-1)


@torch.no_grad()
def decay(layer: PositionLayer, width: int, places: int) -> Tensor:
    """(places,): the product of a query and a key, both all 1 / sqrt(width), so many places apart. Su et al. 2021, 3.4.3."""
    heads = layer.on_heads(torch.full((1, 1, places, width), width**-0.5, dtype=torch.float64), torch.arange(places))
    return heads[0, 0] @ heads[0, 0, 0]


@torch.no_grad()
def added_scores(layer: PositionLayer, places: int, causal: bool) -> tuple[Tensor, Tensor]:
    """Distances (S,) of query and key, and what is added to their score, (H, S); a key behind the query counts below 0."""
    query = torch.tensor([places - 1])
    keys = torch.arange(places if causal else 2 * places - 1)
    scores = layer.on_scores(query, keys, torch.zeros(()))
    assert scores is not None
    return query - keys, scores[:, 0]


def drawn_norm(config: ModelConfig, rows: int, width: int) -> float | None:
    """The mean norm of the rows of a table (rows, width) as the init draws it; None where the table is too large."""
    if rows * width > NUMBERS:
        return None
    values, spec = torch.empty(rows, width), TensorSpec("table", 1, 1, width, (config.n_layers, config.encoder_layers))
    config.init.fill(values, spec, torch.Generator().manual_seed(0))
    return values.norm(dim=1).mean().item() * config.residual.gain(spec)


def look(subject: Subject) -> Look:
    config, model = subject.config.model, subject.model
    inputs, source = subject.tensors(subject.sample())
    rows: list[list[str]] = []
    figures: list[Figure] = []
    measured = {}
    for side, stack in stacks(model).items():
        tokens = source if side else inputs
        assert tokens is not None
        found = measured[side] = norms(stack, tokens, config.max_len, config.padding_idx)
        rows += [*norm_rows(side, found), *hook_rows(side, stack.positions, config.max_len, not side)]
        figures += figures_of(side, stack, found, config)
    kinds = [text for hook, text in BY_KIND.items() if has(model.positions, hook)]
    factor = f", times sqrt({config.d_model}) = {model.scale:.3g}" if config.embed_scale else ""
    return Look(
        f"positions={config.positions.name}",
        " ".join(kinds or ["There are no positions: order is known from the causal mask alone."])
        + f" Norms are Euclidean, of token embeddings as they enter{factor}, over some of the validation split.",
        ["what", "median", "smallest", "largest"],
        rows,
        [*figures, by_width(config, measured[""])],
    )


def norm_rows(side: str, found: Norms) -> list[list[str]]:
    rows = [row(f"{side}norm of embeddings", found.embeddings)]
    if found.positions is not None and found.ratio is not None:
        rows.append(row(f"{side}norm of positions", found.positions))
        rows.append(row(f"{side}embeddings / positions", found.ratio))
    return rows


def hook_rows(side: str, layer: PositionLayer, max_len: int, causal: bool) -> list[list[str]]:
    rows = []
    if has(layer, "on_heads") and isinstance(layer, AngleTable):
        waves = wavelengths(layer)
        whole = int((waves <= max_len).sum())
        name = f"{side}wavelength in places ({whole} of {len(waves)} pairs turn fully within {max_len:,})"
        rows.append(row(name, waves))
    if has(layer, "on_scores"):
        distances, scores = added_scores(layer, min(max_len, BIASED), causal)
        for distance in sorted({0, 1, 16, 128, int(distances.max())}):
            if distance <= distances.max():
                rows.append(row(f"{side}added to scores at distance {distance}", scores[:, distances == distance]))
    return rows


def row(name: str, values: Tensor) -> list[str]:
    return [name, *(f"{value:,.0f}" if abs(value) >= 1e4 else f"{value:.4g}" for value in three(values))]


def three(values: Tensor) -> list[float]:
    return [values.double().quantile(q).item() + 0.0 for q in (0.5, 0, 1)]  # and no negative zero


def wavelengths(layer: AngleTable) -> Tensor:
    """(pairs,): after how many places each pair is back at its angle."""
    return 2 * math.pi / torch.tensor(layer.frequencies, dtype=torch.float64)


def figures_of(side: str, stack: Stack, found: Norms, config: ModelConfig) -> list[Figure]:
    layer, key = stack.positions, side.strip() or "decoder"
    title = f", {side.strip()}" if side else ""
    figures = []
    if found.positions is not None:
        figures.append(Figure(f"Norms at each place{title}", draw_norms(found, f"norms-{key}")))
    if has(layer, "on_heads"):
        heads = recipes_by_layer(config.attention, len(stack.blocks))[0].heads(config.d_model)
        figures.append(
            Figure(
                f"How heads are turned{title}",
                draw_turns(layer, heads.width, config.max_len, f"turns-{key}"),
                "Left: after how many places each pair is back at its angle; the line is max_len. Right: the product of a "
                "query and a key, both of norm 1 and of equal numbers, by the places between them.",
            )
        )
    if has(layer, "on_scores"):
        drawn = draw_scores(layer, min(config.max_len, BIASED), not side, f"scores-{key}")
        figures.append(
            Figure(
                f"Added to the scores{title}", drawn, "Distances to keys behind the query are below 0." if side else ""
            )
        )
    return figures


def draw_norms(found: Norms, key: str) -> str:
    assert found.positions is not None
    figure, axes = canvas(2.6, key, width=8)
    axes.plot(found.by_place.numpy(), color=COLOURS[0], label="embeddings, mean over the sample")
    axes.plot(found.positions.numpy(), color=COLOURS[1], label="positions")
    axes.set_ylim(0, 1.25 * max(found.by_place.max().item(), found.positions.max().item()))
    axes.set_xlabel("place")
    axes.set_ylabel("norm")
    axes.legend(frameon=False, fontsize=9, ncols=2, loc="upper right")
    return svg(figure, key)


def draw_turns(layer: PositionLayer, width: int, max_len: int, key: str) -> str:
    figure, [[left, right]] = canvases(2.7, key, columns=2, width=8)
    if isinstance(layer, AngleTable):
        waves = wavelengths(layer)
        left.plot(waves.numpy(), color=COLOURS[0], marker="o", markersize=3)
        logarithmic(left)
        left.axhline(max_len, color=COLOURS[7], linewidth=1, linestyle="--")
    left.set_xlabel("pair of dimensions")
    left.set_ylabel("wavelength in places")
    right.plot(decay(layer, width, min(max_len, FAR)).numpy(), color=COLOURS[0])
    right.axhline(0, color=COLOURS[7], linewidth=0.8)
    right.set_xlabel("places between query and key")
    right.set_ylabel("product")
    return svg(figure, key)


def draw_scores(layer: PositionLayer, places: int, causal: bool, key: str) -> str:
    distances, scores = added_scores(layer, places, causal)
    figure, axes = canvas(2.9, key, width=8)
    number = min(LINES, len(scores))
    chosen = sorted({round(place * (len(scores) - 1) / max(1, number - 1)) for place in range(number)})
    for line, head in enumerate(chosen):
        axes.plot(distances.numpy(), scores[head].numpy(), color=COLOURS[line % len(COLOURS)], label=f"head {head}")
    axes.set_xlabel("distance in places")
    axes.set_ylabel("added to the score")
    axes.legend(frameon=False, fontsize=8, ncols=1, loc="center left", bbox_to_anchor=(1, 0.5))
    return svg(figure, key)


def by_width(config: ModelConfig, found: Norms) -> Figure:
    """Norms of embeddings and positions at every width, as this model's init draws them."""
    figure, axes = canvas(3.4, "width", width=8)
    tokens = {width: drawn_norm(config, config.vocab_size, width) for width in WIDTHS}
    learned = {width: drawn_norm(config, min(config.max_len, PLACES), width) for width in WIDTHS}
    lines: list[tuple[str, dict[int, float], str, float]] = [
        ("embeddings", {width: norm for width, norm in tokens.items() if norm}, "o-", 3),
        ("learned positions", {width: norm for width, norm in learned.items() if norm}, "--", 1.5),
        ("embeddings x sqrt(width)", {width: norm * width**0.5 for width, norm in tokens.items() if norm}, "o-", 1.5),
        ("sinusoidal positions", {width: math.sqrt(width / 2) for width in WIDTHS}, "o-", 1.5),
    ]
    for colour, (name, points, style, thick) in zip(COLOURS, lines, strict=False):
        axes.plot([*points], [*points.values()], style, color=colour, linewidth=thick, markersize=3, label=name)
    own = [found.embeddings.mean().item(), *([] if found.positions is None else [found.positions.mean().item()])]
    for value, marker, name in zip(own, "*X", ("its embeddings, as they enter", "its positions"), strict=False):
        axes.plot([config.d_model], [value], marker, color="black", markersize=9, label=name)
    axes.set_xscale("log", base=2)
    axes.set_xticks(WIDTHS, map(str, WIDTHS))
    axes.minorticks_off()
    logarithmic(axes)
    axes.set_xlabel("width of the model")
    axes.set_ylabel("norm")
    axes.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))
    return Figure(
        "Norms against width",
        svg(figure, "width"),
        f"Embeddings and learned positions as init={config.init.name} draws them, and sinusoidal positions, whose norm is "
        "exactly sqrt(width / 2): each pair of a sine and a cosine adds 1 to its square. The original Transformer multiplies "
        "embeddings by sqrt(width) (Vaswani et al. 2017, arXiv:1706.03762, 3.4); drawn small and without that factor, they "
        "would be far smaller than such positions. In black, this model.",
    )

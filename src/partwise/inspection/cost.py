"""Parameters, FLOPs, memory and cache of each part of a model, without allocating it."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from partwise.inspection.subject import Subject
from partwise.model import ModelConfig, Transformer
from partwise.plots.drawing import draw
from partwise.plots.page import Page, PageFigure, bar_chart
from partwise.plots.plotting import COLORS, legend_above, new_figure, set_integer_ticks

FLOAT32_BYTES = 4
GROWTH_POINTS = 8


@dataclass(frozen=True)
class Cost:
    """One part of a model: its parameters, FLOPs per token of a forward pass, and cache elements per sequence."""

    part: str
    parameters: int
    flops: float
    cache: int

    @property
    def training_bytes(self) -> int:
        """Weights, gradients and AdamW's two moments, in float32."""
        return 4 * FLOAT32_BYTES * self.parameters

    @property
    def cache_bytes(self) -> int:
        return FLOAT32_BYTES * self.cache


def compute_costs(config: ModelConfig, seq_len: int | None = None) -> list[Cost]:
    """The cost of every part over `seq_len` tokens (default: the model's context_length), ending with the total.

    Parts are the embedding, positions, each kind of branch over all blocks, the residual stream with its norms, and the
    heads; an encoder's parts are separate. A shared matrix counts once, where it first occurs. FLOPs are those counted by
    torch: multiplications and additions of matmuls, including the full square of attention scores.
    """
    from torch.utils.flop_counter import FlopCounterMode

    seq_len = seq_len or config.context_length
    with torch.device("meta"), torch.no_grad():
        model = Transformer(config)
        model.reset_backends()
        tokens = torch.zeros(1, seq_len, dtype=torch.long)
        source = tokens if config.takes_source else None
        with FlopCounterMode(display=False) as counter:
            model(tokens, source=source, mtp_logits=[])
        cache = None if config.encoder_only else model.new_cache(1, seq_len, source)
        if cache is not None:
            model(tokens, cache)
    parts: dict[str, list[float]] = {}
    for name, parameter in model.named_parameters():
        parts.setdefault(part_of(name), [0, 0, 0])[0] += parameter.numel()
    flops = {
        name.removeprefix("Transformer").removeprefix("."): sum(each.values())
        for name, each in counter.get_flop_counts().items()
    }
    for name in flops:
        if is_part(name):
            parts.setdefault(part_of(f"{name}."), [0, 0, 0])[1] += flops[name] / seq_len
    names = {module: name for name, module in model.named_modules()}
    for layer, layer_cache in zip(model.cached_layers, cache.layers if cache else (), strict=cache is not None):
        parts.setdefault(part_of(f"{names[layer]}."), [0, 0, 0])[2] += cache_numel(layer_cache)
    costs = [Cost(part, int(numbers[0]), numbers[1], int(numbers[2])) for part, numbers in parts.items()]
    assigned = sum(cost.flops for cost in costs)
    rest = counter.get_total_flops() / seq_len - assigned
    if rest > 0.5 / seq_len:  # FLOPs outside all parts
        costs.append(Cost("other", 0, rest, 0))
    return [
        *costs,
        Cost("total", *(sum(getattr(cost, key) for cost in costs) for key in ("parameters", "flops", "cache"))),
    ]


BRANCHES = ("mixing", "attention", "cross", "ffn", "residual")


def part_of(name: str) -> str:
    """`encoder.blocks.3.ffn.up.weight` -> `encoder ffn`."""
    words = name.split(".")
    side = "encoder " if words[0] == "encoder" else ""
    words = words[1:] if side else words
    if words[0] == "blocks":
        return side + words[2]
    return side + ("residual" if words[0] == "embed_norm" else words[0])


def is_part(name: str) -> bool:
    """Whether a module is exactly one part: `blocks.3.ffn`, `head`."""
    words = name.removeprefix("encoder.").split(".")
    if words[0] == "blocks":
        return len(words) == 3 and words[2] in BRANCHES[:-1]
    return len(words) == 1 and words[0] in ("embed", "positions", "lookup", "head", "ahead")


def cache_numel(cache: object) -> int:
    """The number of elements that a layer caches for one sequence."""
    return sum(tensor.numel() for tensor in iter_tensors(vars(cache).values()))


def iter_tensors(values: object) -> Iterator[Tensor]:
    if isinstance(values, Tensor):
        yield values
    elif isinstance(values, dict):
        yield from iter_tensors(list(values.values()))
    elif isinstance(values, list | tuple) or (not isinstance(values, str) and hasattr(values, "__iter__")):
        for value in values:
            yield from iter_tensors(value)


def inspect(subject: Subject) -> Page:
    """Parameters, FLOPs, memory and cache of each part."""
    config = subject.config.model
    seq_len = subject.requested_seq_len or config.context_length
    costs = compute_costs(config, seq_len)
    total = costs[-1]
    rows = [
        (
            cost.part,
            f"{cost.parameters:,}",
            percentage(cost.parameters, total.parameters),
            f"{cost.flops:,.0f}",
            percentage(cost.flops, total.flops),
            format_bytes(cost.training_bytes),
            format_bytes(cost.cache_bytes) if cost.cache else "",
        )
        for cost in costs
    ]
    return Page(
        f"cost of each part for sequences of {seq_len:,} tokens",
        "FLOPs are those of the matmuls of a forward pass in training, including the full square of attention scores; a "
        "training step takes three times as many. Training memory is weights, gradients and AdamW's two moments in "
        "float32, without activations. Cache is the generation cache of a full sequence in float32. Computed without "
        "allocating the model.",
        ["part", "parameters", "%", "FLOPs per token", "%", "training memory", "cache per sequence"],
        rows,
        [*cost_figures(costs[:-1]), *growth_figure(config, seq_len)],
    )


def cache_growth(config: ModelConfig, lengths: list[int]) -> list[int]:
    """The elements that all layers cache for one sequence of each of these lengths."""
    with torch.device("meta"), torch.no_grad():
        model = Transformer(config)
        model.reset_backends()
        sizes = []
        for length in lengths:
            tokens = torch.zeros(1, length, dtype=torch.long)
            cache = model.new_cache(1, length, tokens if model.encoder is not None else None)
            model(tokens, cache)
            sizes.append(sum(cache_numel(each) for each in cache.layers))
    return sizes


def growth_figure(config: ModelConfig, seq_len: int) -> list[PageFigure]:
    """The cache by the length of the text, beside one that stores as many keys and values as the model is wide."""
    if config.encoder_only:
        return []
    lengths = sorted({max(1, round(seq_len * part / GROWTH_POINTS)) for part in range(1, GROWTH_POINTS + 1)})
    sizes = cache_growth(config, lengths)
    if not any(sizes):
        return []
    figure, axes = new_figure(3.0, "growth", width=7.5)
    full = [2 * config.n_layers * config.d_model * length for length in lengths]
    for name, numbers, color, width in (
        ("multi-head attention of this width", full, COLORS[7], 1.2),
        ("this model", sizes, COLORS[1], 2.2),
    ):
        axes.plot(
            [0, *lengths],
            [0, *(FLOAT32_BYTES * number / 2**20 for number in numbers)],
            "o-",
            color=color,
            linewidth=width,
            markersize=3,
            label=name,
        )
    axes.set_xlabel("tokens of the text")
    axes.set_ylabel("MiB in float32")
    set_integer_ticks(axes)
    axes.set_ylim(bottom=0)
    legend_above(axes)
    ratio = sizes[-1] / full[-1]
    return [
        PageFigure(
            "How the cache grows with the text",
            draw(figure, "growth"),
            f"At {seq_len:,} tokens this model caches {format_bytes(FLOAT32_BYTES * sizes[-1])} per sequence, {ratio:.1%} of "
            "what multi-head attention of its width would. Fewer key and value heads lower the slope; a window ends growth.",
        )
    ]


def cost_figures(costs: list[Cost]) -> list[PageFigure]:
    charts: dict[str, list[tuple[str, float, str]]] = {
        "Parameters": [(cost.part, cost.parameters, f"{cost.parameters:,}") for cost in costs],
        "FLOPs per token": [(cost.part, cost.flops, f"{cost.flops:,.0f}") for cost in costs],
        "Cache per sequence": [(cost.part, cost.cache, format_bytes(cost.cache_bytes)) for cost in costs],
    }
    return [
        bar_chart(title, [row for row in rows if row[1]], key=f"cost{number}")
        for number, (title, rows) in enumerate(charts.items())
    ]


def percentage(count: float, total: float) -> str:
    return f"{count / total:.1%}" if total else ""


def format_bytes(count: float) -> str:
    """`1536` -> `1.5 KiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:,.1f} TiB"

"""What a model costs, part by part, found without allocating it."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from partwise.inspection.page import Figure, Look, bars
from partwise.inspection.subject import Subject
from partwise.model import ModelConfig, Transformer

BYTES = 4  # of a float32


@dataclass(frozen=True)
class Cost:
    """One part of a model: its parameters, operations per token of a forward pass, and cache in numbers per row."""

    part: str
    parameters: int
    flops: float
    cache: int

    @property
    def training_bytes(self) -> int:
        """Weights, gradients and AdamW's two moments, in float32."""
        return 4 * BYTES * self.parameters

    @property
    def cache_bytes(self) -> int:
        return BYTES * self.cache


def costs(config: ModelConfig, context: int | None = None) -> list[Cost]:
    """The cost of every part over `context` tokens (max_len where not given), the whole last.

    Parts are the table, positions, each kind of branch over all blocks, the residual stream with its norms, and the
    heads; an encoder's come apart. A shared matrix counts once, where it stands first. Operations are those that torch
    counts: products of matrices, multiplications and additions, the whole square of scores included.
    """
    from torch.utils.flop_counter import FlopCounterMode

    context = context or config.max_len
    with torch.device("meta"), torch.no_grad():
        model = Transformer(config)
        model.use_path("products")
        tokens = torch.zeros(1, context, dtype=torch.long)
        source = tokens if model.encoder is not None else None
        with FlopCounterMode(display=False) as counter:
            model(tokens, source=source, ahead=[])
        states = model.start(1, context, source)
        model(tokens, states)
    parts: dict[str, list[float]] = {}
    for name, parameter in model.named_parameters():
        parts.setdefault(part_of(name), [0, 0, 0])[0] += parameter.numel()
    flops = {
        name.removeprefix("Transformer").removeprefix("."): sum(each.values())
        for name, each in counter.get_flop_counts().items()
    }
    for name in flops:
        if is_part(name):
            parts.setdefault(part_of(f"{name}."), [0, 0, 0])[1] += flops[name] / context
    names = {module: name for name, module in model.named_modules()}
    for layer, state in zip(model.remembering, states.layers, strict=True):
        parts.setdefault(part_of(f"{names[layer]}."), [0, 0, 0])[2] += remembered(state)
    found = [Cost(part, int(numbers[0]), numbers[1], int(numbers[2])) for part, numbers in parts.items()]
    counted = sum(cost.flops for cost in found)
    rest = counter.get_total_flops() / context - counted
    if rest > 0.5 / context:  # what no single part owns
        found.append(Cost("elsewhere", 0, rest, 0))
    return [
        *found,
        Cost("whole", *(sum(getattr(cost, key) for cost in found) for key in ("parameters", "flops", "cache"))),
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
    """Whether a module is one whole part, no more and no less: `blocks.3.ffn`, `head`."""
    words = name.removeprefix("encoder.").split(".")
    if words[0] == "blocks":
        return len(words) == 3 and words[2] in BRANCHES[:-1]
    return len(words) == 1 and words[0] in ("embed", "positions", "lookup", "head", "ahead")


def remembered(state: object) -> int:
    """The numbers that a layer keeps for one row."""
    return sum(tensor.numel() for tensor in tensors_in(vars(state).values()))


def tensors_in(values: object) -> Iterator[Tensor]:
    if isinstance(values, Tensor):
        yield values
    elif isinstance(values, dict):
        yield from tensors_in(list(values.values()))
    elif isinstance(values, list | tuple) or (not isinstance(values, str) and hasattr(values, "__iter__")):
        for value in values:
            yield from tensors_in(value)


def look(subject: Subject) -> Look:
    """Parameters, operations, memory and cache, part by part."""
    config = subject.config.model
    context = subject.asked_context or config.max_len
    found = costs(config, context)
    whole = found[-1]
    rows = [
        (
            cost.part,
            f"{cost.parameters:,}",
            share(cost.parameters, whole.parameters),
            f"{cost.flops:,.0f}",
            share(cost.flops, whole.flops),
            size(cost.training_bytes),
            size(cost.cache_bytes) if cost.cache else "",
        )
        for cost in found
    ]
    return Look(
        f"what each part costs at context {context:,}",
        "Operations of a forward pass in training, products of matrices with the whole square of scores included; an update "
        "takes three times as many. Training memory is weights, gradients and AdamW's two moments in float32, without "
        "activations; the cache is what generation keeps of a full context, in float32. Nothing was allocated to find "
        "this.",
        ["part", "parameters", "share", "operations per token", "share", "training memory", "cache per row"],
        rows,
        figures_of(found[:-1]),
    )


def figures_of(found: list[Cost]) -> list[Figure]:
    drawn: dict[str, list[tuple[str, float, str]]] = {
        "parameters": [(cost.part, cost.parameters, f"{cost.parameters:,}") for cost in found],
        "operations per token": [(cost.part, cost.flops, f"{cost.flops:,.0f}") for cost in found],
        "cache per row": [(cost.part, cost.cache, size(cost.cache_bytes)) for cost in found],
    }
    return [
        bars(title, [row for row in rows if row[1]], key=f"cost{number}")
        for number, (title, rows) in enumerate(drawn.items())
    ]


def share(part: float, whole: float) -> str:
    return f"{part / whole:.1%}" if whole else ""


def size(count: float) -> str:
    """Bytes as a person reads them."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:,.1f} TiB"

"""`inspect`: what is inside a preset or a run."""

from pathlib import Path

from partwise.checkpoint import find_run
from partwise.config import ConfigError, did_you_mean
from partwise.inspection.cost import Cost, costs
from partwise.inspection.page import Bars, bars, write_page
from partwise.model import ModelConfig
from partwise.overrides import apply_overrides, parse_overrides
from partwise.presets import PRESETS, preset
from partwise.terminal import console, table
from partwise.train.card import open_run
from partwise.train.names import writing

LOOKS = ("cost",)


def inspect_target(target: str, what: str, words: list[str], context: int | None) -> None:
    """Print one look inside a preset or a run, and write it as a page."""
    if what not in LOOKS:
        raise ConfigError(f"unknown look {what!r}{did_you_mean(what, LOOKS)}")
    config, folder = find_target(target, words)
    if context is not None and not 0 < context <= config.max_len:
        raise ConfigError(f"--context {context}: give 1 to max_len={config.max_len}")
    show_cost(target, config, context or config.max_len, folder)


def find_target(target: str, words: list[str]) -> tuple[ModelConfig, Path]:
    """The model of a preset or of a run, changed by overrides, and the folder where its pages go."""
    if target in PRESETS:
        return preset(target, *words), Path()
    try:
        find_run(target)
    except ConfigError as error:
        raise ConfigError(f"{target!r} is no preset{did_you_mean(target, PRESETS)}, and no run: {error}") from None
    folder, config, _ = open_run(target)
    return ModelConfig.from_dict(apply_overrides(config.model.to_dict(), parse_overrides(words))), folder


def show_cost(target: str, config: ModelConfig, context: int, folder: Path) -> None:
    """Parameters, operations, memory and cache, part by part."""
    found = costs(config, context)
    whole = found[-1]
    columns = ["part", "parameters", "share", "operations per token", "share", "training memory", "cache per row"]
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
    console.print(table(f"{target}: what each part costs at context {context:,}", columns, rows))
    about = (
        "Operations of a forward pass, products of matrices with the whole square of scores included; training takes three "
        "times as many. Training memory is weights, gradients and AdamW's two moments in float32, without activations; the "
        "cache is what generation keeps of a full context, in float32. Nothing was allocated to find this."
    )
    console.print(about, style="dim")
    path = folder / f"inspect-cost-{Path(target).name}.html"
    with writing(path):
        write_page(path, f"{target}: cost", f"Context {context:,}. {about}", columns, rows, figures_of(found[:-1]))
    console.print(f"page: {path}", markup=False)


def figures_of(found: list[Cost]) -> list[Bars]:
    return [
        bars("parameters", [(cost.part, cost.parameters, f"{cost.parameters:,}") for cost in found if cost.parameters]),
        bars("operations per token", [(cost.part, cost.flops, f"{cost.flops:,.0f}") for cost in found if cost.flops]),
        bars("cache per row", [(cost.part, cost.cache, size(cost.cache_bytes)) for cost in found if cost.cache]),
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

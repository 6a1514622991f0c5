"""The coordinate check: whether what training does to activations depends on the width of the model."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from partwise.config import ConfigError
from partwise.data import Dataset
from partwise.drawing import COLOURS, canvases, svg
from partwise.inspection.page import Figure, Look
from partwise.inspection.recording import watching
from partwise.inspection.subject import Subject
from partwise.inspection.widths import following, trial, widened
from partwise.model import Transformer
from partwise.parts.scores import Scores
from partwise.train.loop import Diverged, Run
from partwise.train.settings import RunConfig

WIDTHS = (64, 128, 256, 512, 1024)
UPDATES = 8
SEEDS = 3

FLAT = 0.25
"""The steepest slope that counts as flat: halfway to 1/2, the slope of the square root."""


@dataclass(frozen=True)
class Check:
    """Mean absolute value per coordinate, by kind of site: (updates + 1, widths), first before any update.

    `sizes` is of the activations, `changes` of their difference from those before any update, on the same tokens.
    """

    widths: tuple[int, ...]
    sizes: dict[str, np.ndarray]
    changes: dict[str, np.ndarray]


def look(subject: Subject) -> Look:
    """Sizes of activations by width, over a few updates. Yang et al. 2022, arXiv:2203.03466, appendix D.1."""
    config, about = trial(subject, steps=UPDATES, precision="float32")  # rounding to bfloat16 hides small changes
    dataset = subject.dataset
    with following("models", len(WIDTHS) * SEEDS) as advance:
        found = check(config, dataset, WIDTHS, SEEDS, advance)
    ends = {f"Δ {site}": change[-1] for site, change in found.changes.items()}
    ends |= {site: size[-1] for site, size in found.sizes.items()}
    growing = [site for site, change in found.changes.items() if reading(slope(WIDTHS, change[-1])) == "grows"]
    return Look(
        f"coordinate check, the changes by {UPDATES} updates "
        + (f"grow with width at {len(growing)} of {len(found.changes)} sites" if growing else "do not grow with width"),
        f"{about}; learning rate {config.train.lr:g}, mean of {SEEDS} seeds. Mean absolute value per coordinate "
        f"after update {UPDATES}: with Δ of the difference from the start on the same tokens, without of the activation "
        "itself. The slope is d log(value) / d log(width), by least squares; up to "
        f"{FLAT} either way reads as flat. Where one learning rate is to fit every width, no change may grow. Scores "
        "(of attention, before caps and masks) and logits may shrink: they start as means of random terms.",
        ["site", *map(str, WIDTHS), "slope", "reads"],
        [row_of(name, values) for name, values in ends.items()],
        [
            small_multiples(found.changes, "Change since the start, after each update", "coordinates0", 1),
            small_multiples(found.sizes, "Size, before any update and after each", "coordinates1", 0),
        ],
    )


def check(
    config: RunConfig,
    dataset: Dataset,
    widths: Sequence[int],
    seeds: int,
    advance: Callable[[], None] = lambda: None,
) -> Check:
    """Train a model per width and seed for `config.train.steps` updates. Raises ConfigError where one does not fit."""
    configs = [widened(config, width) for width in widths]  # all are built before the first is trained
    sums: dict[str, np.ndarray] = {}  # (2, updates + 1, widths)
    for seed in range(seeds):
        for place, wide in enumerate(configs):
            own = wide.train.model_copy(update={"seed": wide.train.seed + seed})
            try:
                history = train(Run(wide.model_copy(update={"train": own}), dataset))
            except Diverged as error:
                raise ConfigError(f"width {widths[place]} diverged at {error}") from None
            for site, numbers in history.items():
                shape = (*numbers.shape, len(widths))
                sums.setdefault(site, np.zeros(shape))[..., place] += numbers / seeds
            advance()
    sizes, changes = ({site: numbers[kind] for site, numbers in sums.items()} for kind in (0, 1))
    return Check(tuple(widths), sizes, changes)


def train(run: Run) -> dict[str, np.ndarray]:
    """Sizes and changes by site on the tokens of the first update, before any update and after each: (2, updates + 1)."""
    batch = run.batch()
    inputs = torch.from_numpy(batch.inputs).to(run.device)
    source = None if batch.source is None else torch.from_numpy(batch.source).to(run.device)
    start = activations(run.model, inputs, source)
    history = [(sizes_of(start), dict.fromkeys(start, 0.0))]
    for _ in run.steps():
        now = activations(run.model, inputs, source)
        moved = {site: [new - old for new, old in zip(now[site], start[site], strict=True)] for site in start}
        history.append((sizes_of(now), sizes_of(moved)))
    return {site: np.array([[sizes[site], changes[site]] for sizes, changes in history]).T for site in start}


def activations(model: Transformer, inputs: Tensor, source: Tensor | None) -> dict[str, list[Tensor]]:
    """What each kind of site gives for (B, T) inputs, in evaluation mode: a tensor per layer, in order of computing.

    `embedding` is what the table gives, `scores` are the scaled products of queries and keys before caps and masks,
    `stream` is what the last block leaves, `logits` are what the head gives before a cap; an encoder's begin with `encoder`.
    """
    found: dict[str, list[Tensor]] = {}

    def take(name: str, inputs: tuple[Any, ...], output: Tensor) -> None:
        module = model.get_submodule(name)
        value = products(module, *inputs[:2]) if isinstance(module, Scores) else output.clone()
        found.setdefault(site_of(name), []).append(value)

    stacks = {"": model.blocks} | ({} if model.encoder is None else {r"encoder\.": model.encoder.blocks})
    ends = "|".join(rf"{side}blocks\.{len(blocks) - 1}" for side, blocks in stacks.items())
    branches = r"(encoder\.)?(embed|blocks\.\d+\.(attention|cross|ffn|(attention|cross)\.scores))"
    model.eval()
    with watching(model, rf"{branches}|{ends}|head", take), torch.no_grad():
        model(inputs, source=source)
    return found


def products(scores: Scores, q: Tensor, k: Tensor) -> Tensor:
    """(B, H, T, E) queries and (B, K, S, E) keys -> (B, H, T, S) attention scores, which no module gives by itself."""
    grouped = q.unflatten(1, (k.shape[1], -1))
    return (grouped @ k.unsqueeze(2).transpose(-1, -2) * scores.scale).flatten(1, 2)


def site_of(name: str) -> str:
    """`encoder.blocks.1.attention.scores` -> `encoder scores`: the kind, for all layers alike."""
    names = {"embed": "embedding", "head": "logits", "attention.scores": "scores", "cross.scores": "cross scores"}
    words = name.removeprefix("encoder.").split(".")
    place = ".".join(words[2:] or words[-1:])  # within a block, else the whole
    kind = "stream" if place.isdigit() else names.get(place, place)
    return f"encoder {kind}" if name.startswith("encoder.") else kind


def sizes_of(values: dict[str, list[Tensor]]) -> dict[str, float]:
    return {
        site: float(np.mean([value.abs().double().mean().item() for value in each])) for site, each in values.items()
    }


def slope(widths: Sequence[int], sizes: Sequence[float] | np.ndarray) -> float:
    """d log(size) / d log(width) by least squares; not a number where a size has no logarithm."""
    if not all(math.isfinite(size) and size > 0 for size in sizes):
        return math.nan
    return float(np.polyfit(np.log(widths), np.log(sizes), 1)[0])


def reading(slope: float) -> str:
    if math.isnan(slope):
        return ""
    return "flat" if abs(slope) <= FLAT else "grows" if slope > 0 else "shrinks"


def row_of(name: str, values: np.ndarray) -> tuple[str, ...]:
    steep = slope(WIDTHS, values)
    return (name, *(f"{value:.3g}" for value in values), "" if math.isnan(steep) else f"{steep:+.2f}", reading(steep))


def small_multiples(values: dict[str, np.ndarray], title: str, key: str, first: int) -> Figure:
    """A panel per site, a line per update from number `first` on."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    columns = 3
    rows = math.ceil(len(values) / columns)
    figure, grid = canvases(0.9 + 1.7 * rows, key, rows, columns, width=7.5)
    panels = [axes for row in grid for axes in row]
    steps = range(first, UPDATES + 1)
    for axes, (site, numbers) in zip(panels, values.items(), strict=False):
        for step in steps:
            shade = (step - first + 1) / len(steps)
            axes.plot(WIDTHS, numbers[step], "o-", color=COLOURS[0], alpha=shade, markersize=3, label=str(step))
        axes.set_title(site, fontsize=10)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xticks(WIDTHS, map(str, WIDTHS))
        axes.set_ylim(*at_least_tenfold(numbers[first:]))
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 3.0)))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_minor_locator(NullLocator())
    for axes in panels[len(values) :]:
        axes.set_visible(False)
    figure.supxlabel("width", fontsize=10)
    figure.supylabel("mean absolute value per coordinate", fontsize=10)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, title="updates", loc="outside upper center", ncols=len(labels), frameon=False)
    return Figure(title, svg(figure, key), "Both axes are logarithmic; every panel spans a factor of ten or more.")


def at_least_tenfold(values: np.ndarray) -> tuple[float, float]:
    """The ends of a logarithmic axis on which all values stand off the border, and flat looks flat."""
    logs = np.log10(values[np.isfinite(values) & (values > 0)])
    low, high = (logs.min(), logs.max()) if logs.size else (0.0, 0.0)
    pad = max(0.07 * (high - low), (1 - (high - low)) / 2)
    return 10 ** (low - pad), 10 ** (high + pad)

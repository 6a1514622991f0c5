"""The coordinate check: whether the changes of activations in training depend on the model's width."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from partwise.compute.float64 import to_float64
from partwise.config import ConfigError
from partwise.data import Dataset
from partwise.inspection.hooks import watch_modules
from partwise.inspection.subject import Subject
from partwise.inspection.widths import show_progress, small_config, with_width
from partwise.model import Transformer
from partwise.parts.attention.core import AttentionCore
from partwise.plots.drawing import draw
from partwise.plots.page import Page, PageFigure
from partwise.plots.plotting import new_subplots, step_colors
from partwise.train.config import RunConfig
from partwise.train.loop import Diverged, Run

WIDTHS = (64, 128, 256, 512, 1024)
STEPS = 8
SEEDS = 3

FLAT = 0.25
"""The steepest slope that counts as flat: halfway to 1/2, the slope of the square root."""


@dataclass(frozen=True)
class CoordinateSizes:
    """Mean absolute value per coordinate, by kind of site: (steps + 1, widths), starting before the first step.

    `sizes` are of the activations, `changes` of their difference from those before the first step, on the same tokens.
    """

    widths: tuple[int, ...]
    sizes: dict[str, np.ndarray]
    changes: dict[str, np.ndarray]


def inspect(subject: Subject) -> Page:
    """Coordinate sizes by width, over a few steps. Yang et al. 2022, arXiv:2203.03466, appendix D.1."""
    config, about = small_config(subject, steps=STEPS, precision="float32")  # bf16 rounding hides small changes
    dataset = subject.dataset
    with show_progress("models", len(WIDTHS) * SEEDS) as advance:
        result = measure(config, dataset, WIDTHS, SEEDS, advance)
    final = {f"Δ {site}": change[-1] for site, change in result.changes.items()}
    final |= {site: size[-1] for site, size in result.sizes.items()}
    growing = [site for site, change in result.changes.items() if trend(slope(WIDTHS, change[-1])) == "grows"]
    return Page(
        f"coordinate check, changes over {STEPS} steps "
        + (
            f"grow with width at {len(growing)} of {len(result.changes)} sites" if growing else "do not grow with width"
        ),
        f"{about}; learning rate {config.train.lr:g}, mean of {SEEDS} seeds. Mean absolute value per coordinate after "
        f"step {STEPS}, of the activation, or with Δ of its change from initialization on the same tokens. Slope: "
        f"d log(value) / d log(width), by least squares; slopes between -{FLAT} and {FLAT} count as flat. For one learning "
        "rate to transfer across widths, no change may grow. Attention scores (before softcap and mask) and logits may "
        "shrink: at initialization they are means of random terms.",
        ["site", *map(str, WIDTHS), "slope", "trend"],
        [table_row(name, values) for name, values in final.items()],
        [
            small_multiples(result.changes, "Change from initialization, after each step", "coordinates0", 1),
            small_multiples(result.sizes, "Size at initialization and after each step", "coordinates1", 0),
        ],
    )


def measure(
    config: RunConfig,
    dataset: Dataset,
    widths: Sequence[int],
    seeds: int,
    advance: Callable[[], None] = lambda: None,
) -> CoordinateSizes:
    """Train a model per width and seed for `config.train.steps` steps. Raises ConfigError for an invalid width."""
    configs = [with_width(config, width) for width in widths]  # validate all before training the first
    sums: dict[str, np.ndarray] = {}  # (2, steps + 1, widths)
    for seed in range(seeds):
        for index, wide in enumerate(configs):
            train = wide.train.model_copy(update={"seed": wide.train.seed + seed})
            try:
                history = train_and_measure(Run(wide.model_copy(update={"train": train}), dataset))
            except Diverged as error:
                raise ConfigError(f"width {widths[index]} diverged at {error}") from None
            for site, numbers in history.items():
                shape = (*numbers.shape, len(widths))
                sums.setdefault(site, np.zeros(shape))[..., index] += numbers / seeds
            advance()
    sizes, changes = ({site: numbers[kind] for site, numbers in sums.items()} for kind in (0, 1))
    return CoordinateSizes(tuple(widths), sizes, changes)


def train_and_measure(run: Run) -> dict[str, np.ndarray]:
    """Sizes and changes by site on the first batch, before the first step and after each: (2, steps + 1)."""
    batch = run.batch()
    inputs = torch.from_numpy(batch.inputs).to(run.device)
    source = None if batch.source is None else torch.from_numpy(batch.source).to(run.device)
    initial = collect_outputs(run.model, inputs, source)
    history = [(mean_sizes(initial), dict.fromkeys(initial, 0.0))]
    run.findings = []  # no verdict follows, and a check per width and seed would take longer than the steps
    for _ in run.steps():
        current = collect_outputs(run.model, inputs, source)
        changes = {site: [new - old for new, old in zip(current[site], initial[site], strict=True)] for site in initial}
        history.append((mean_sizes(current), mean_sizes(changes)))
    return {site: np.array([[sizes[site], changes[site]] for sizes, changes in history]).T for site in initial}


def collect_outputs(model: Transformer, inputs: Tensor, source: Tensor | None) -> dict[str, list[Tensor]]:
    """The outputs at each kind of site for (B, T) inputs, in evaluation mode: a tensor per layer, in execution order.

    `embedding` is the output of the table, `scores` the scaled q k^T before softcap and mask, `stream` the output of the
    last block, `logits` the output of the head before softcap; names in an encoder start with `encoder`.
    """
    outputs: dict[str, list[Tensor]] = {}

    def record(name: str, inputs: tuple[Any, ...], output: Tensor) -> None:
        module = model.get_submodule(name)
        value = attention_scores(module, *inputs[:2]) if isinstance(module, AttentionCore) else output.clone()
        outputs.setdefault(site_kind(name), []).append(value)

    stacks = {"": model.blocks} | ({} if model.encoder is None else {r"encoder\.": model.encoder.blocks})
    last_blocks = "|".join(rf"{prefix}blocks\.{len(blocks) - 1}" for prefix, blocks in stacks.items() if len(blocks))
    branches = r"(encoder\.)?(embed|blocks\.\d+\.(attention|cross|ffn|(attention|cross)\.scores))"
    model.eval()
    with watch_modules(model, rf"{branches}|{last_blocks}|head", record), torch.no_grad():
        model(inputs, source=source)
    return outputs


def attention_scores(core: AttentionCore, q: Tensor, k: Tensor) -> Tensor:
    """(B, H, T, E) queries and (B, K, S, E) keys -> (B, H, T, S) attention scores, which no module outputs."""
    grouped = q.unflatten(1, (k.shape[1], -1))
    return (grouped @ k.unsqueeze(2).transpose(-1, -2) * core.scale).flatten(1, 2)


def site_kind(name: str) -> str:
    """`encoder.blocks.1.attention.scores` -> `encoder scores`: the kind of site, shared by all layers."""
    names = {"embed": "embedding", "head": "logits", "attention.scores": "scores", "cross.scores": "cross scores"}
    words = name.removeprefix("encoder.").split(".")
    path = ".".join(words[2:] or words[-1:])  # within a block, or the name of a module outside blocks
    kind = "stream" if path.isdigit() else names.get(path, path)
    return f"encoder {kind}" if name.startswith("encoder.") else kind


def mean_sizes(values: dict[str, list[Tensor]]) -> dict[str, float]:
    """The mean absolute value at each site."""
    return {
        site: float(np.mean([to_float64(value.abs()).mean().item() for value in each])) for site, each in values.items()
    }


def slope(widths: Sequence[int], sizes: Sequence[float] | np.ndarray) -> float:
    """d log(size) / d log(width) by least squares; nan if a size is zero, negative or not finite."""
    if not all(math.isfinite(size) and size > 0 for size in sizes):
        return math.nan
    return float(np.polyfit(np.log(widths), np.log(sizes), 1)[0])


def trend(slope: float) -> str:
    if math.isnan(slope):
        return ""
    return "flat" if abs(slope) <= FLAT else "grows" if slope > 0 else "shrinks"


def table_row(name: str, values: np.ndarray) -> tuple[str, ...]:
    exponent = slope(WIDTHS, values)
    text = "" if math.isnan(exponent) else f"{exponent:+.2f}"
    return (name, *(f"{value:.3g}" for value in values), text, trend(exponent))


def small_multiples(values: dict[str, np.ndarray], title: str, key: str, first: int) -> PageFigure:
    """A panel per site with a line per step, starting at step `first`."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    columns = 3
    rows = math.ceil(len(values) / columns)
    figure, grid = new_subplots(0.9 + 1.7 * rows, key, rows, columns, width=7.5)
    panels = [axes for row in grid for axes in row]
    steps = range(first, STEPS + 1)
    for axes, (site, numbers) in zip(panels, values.items(), strict=False):
        for step, color in zip(steps, step_colors(len(steps)), strict=True):
            axes.plot(WIDTHS, numbers[step], "o-", color=color, markersize=3, label=str(step))
        axes.set_title(site, fontsize=10)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xticks(WIDTHS, map(str, WIDTHS))
        axes.set_ylim(*log_limits(numbers[first:]))
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 3.0)))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_minor_locator(NullLocator())
    for axes in panels[len(values) :]:
        axes.set_visible(False)
    figure.supxlabel("width", fontsize=10)
    figure.supylabel("mean absolute value per coordinate", fontsize=10)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, title="steps", loc="outside upper center", ncols=len(labels), frameon=False)
    return PageFigure(
        title, draw(figure, key), "Both axes are logarithmic; the y axis of every panel spans at least a decade."
    )


def log_limits(values: np.ndarray) -> tuple[float, float]:
    """Padded limits of a logarithmic axis that span at least a decade, so that flat lines look flat."""
    logs = np.log10(values[np.isfinite(values) & (values > 0)])
    low, high = (logs.min(), logs.max()) if logs.size else (0.0, 0.0)
    pad = max(0.07 * (high - low), (1 - (high - low)) / 2)
    return 10 ** (low - pad), 10 ** (high + pad)

"""How large the gradient of each tensor is, step by step of training that nobody keeps."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from torch import Tensor

from partwise.checkpoint import Damaged, load_tensors, read_json, read_newest
from partwise.config import ConfigError
from partwise.drawing import COLOURS, canvas, logarithmic, svg
from partwise.inspection.page import Figure, Look
from partwise.inspection.subject import Subject
from partwise.model import Transformer
from partwise.train.loop import Diverged, Run
from partwise.train.metrics import read_metrics
from partwise.train.optimizers import stored
from partwise.train.schedules import Schedule
from partwise.train.updates import place

STEPS = 20
SMALLEST = 1e-6  # norm in colours, as a share of the largest
Norms = dict[str, list[float]]
"""The gradient's norm of each tensor, by the name under which it is saved, at each step."""


class Held(Schedule):
    """Another schedule, which stays at its end behind its last step."""

    inner: Schedule

    def factor(self, step: int, steps: int) -> float:
        return self.inner.factor(min(step, steps - 1), steps)


@contextmanager
def recording_norms(model: Transformer) -> Iterator[dict[str, Tensor]]:
    """While this lasts, hold the norm of every tensor's gradient as the last backward pass left it, before any clipping.

    Over several micro-batches gradients add up, and the norm is that of their sum. A tensor without a gradient has none.
    """
    norms: dict[str, Tensor] = {}
    handles = []
    for parameter, tensors in stored(model).items():
        places = [(tensor.name, place(tensor.data, parameter)) for tensor in tensors]

        def note(whole: Tensor, places: list[tuple[str, Any]] = places) -> None:
            assert whole.grad is not None
            gradient = whole.grad.contiguous()
            norms.update({name: torch.linalg.vector_norm(piece.of(gradient)) for name, piece in places})

        handles.append(parameter.register_post_accumulate_grad_hook(note))
    try:
        yield norms
    finally:
        for handle in handles:
            handle.remove()


def train_a_little(run: Run, steps: int) -> tuple[Norms, list[float]]:
    """Make so many updates; the norm of every tensor's gradient and of the whole one, before clipping, at each.

    The whole one is what training writes down: its square is the sum of the tensors' squares.
    """
    norms: Norms = {tensor.name: [] for tensor in run.model.logical_tensors()}
    totals = []
    quiet = Console(stderr=True)
    with recording_norms(run.model) as now:
        for _ in track(range(steps), "training", console=quiet, transient=True, disable=not quiet.is_terminal):
            now.clear()
            totals.append(run.update().grad_norm)
            for name, values in norms.items():
                values.append(now[name].item() if name in now else 0.0)
    return norms, totals


def begin(subject: Subject) -> Run:
    """Training in memory, from the preset's initial values or from what the run saved last. Raises ConfigError."""
    config = subject.config
    train = config.train.model_copy(update={"context": subject.asked_context or config.train.context})
    run = Run(config.model_copy(update={"train": train, "schedule": Held(inner=config.schedule)}), subject.dataset)
    if subject.run is None:
        return run

    def restore(folder: Any) -> bool:
        step = read_json(folder / "state.json").get("step")
        if not isinstance(step, int):
            raise Damaged(f"{folder / 'state.json'} lacks 'step'")
        run.restore(step, load_tensors(folder / "model.safetensors"), load_tensors(folder / "optimizer.safetensors"))
        return True

    found, complaints = read_newest(subject.run / "checkpoints", restore)
    if not found:
        why = complaints[0] if complaints else f"{subject.run} holds no checkpoint"
        raise ConfigError(f"{why}: train it again with --fresh, or leave out overrides that change its weights")
    return run


def group_of(name: str) -> tuple[str, str]:
    """`blocks.3.attention.q.weight` -> ('layer 3', 'attention'), `head.weight` -> ('', 'head')."""
    found = re.fullmatch(r"(encoder\.)?blocks\.(\d+)\.(\w+)\..*", name)
    side = "encoder " if name.startswith("encoder.") else ""
    if found:
        return f"{side}layer {found[2]}", found[3]
    return "", side + name.removeprefix("encoder.").split(".")[0]


def grouped(norms: Norms, by_layer: bool = False) -> dict[str, np.ndarray]:
    """The norms (steps,) of whole groups: a layer's branches and what stands outside of layers, or whole layers."""
    squares: dict[str, np.ndarray] = {}
    for name, values in norms.items():
        layer, kind = group_of(name)
        key = layer if by_layer and layer else " ".join(word for word in (layer, kind) if word)
        squares[key] = squares.get(key, 0) + np.square(values)
    return {key: np.sqrt(total) for key, total in squares.items()}


def look(subject: Subject) -> Look:
    run = begin(subject)
    config, first = subject.config, run.step + 1
    number = min(STEPS, config.train.steps)
    try:
        norms, totals = train_a_little(run, number)
    except Diverged as error:
        raise ConfigError(f"{subject.name}: {error}") from None
    groups = grouped(norms)
    whole = np.square(totals).sum()
    rows = [row(key, values, np.square(values).sum() / whole) for key, values in groups.items()]
    steps = np.arange(first, first + number)
    past = [] if subject.run is None else read_metrics(subject.run)
    return Look(
        f"norms of the gradient at steps {first:,} to {steps[-1]:,}",
        "Euclidean norms of the gradient of the training loss, before any clipping; the square of a group is the sum of "
        "its tensors' squares, and its share is that of all squares over these steps. Residual stands for the norms and "
        "weights around the branches of a layer, or behind the last one. "
        + ("They go on in memory from what the run saved last, and are not kept. " if subject.run else "")
        + f"Batches of {config.train.batch_size} "
        + ("pairs." if config.data.paired else f"times {run.config.context} tokens."),
        ["tensors", "first", "median", "last", "share"],
        [*rows, row("whole", np.array(totals), 1.0)],
        [*history(past), lines_figure(steps, grouped(norms, by_layer=True)), tensors_figure(steps, norms)],
    )


def row(name: str, values: np.ndarray, share: float) -> list[str]:
    return [name, *(f"{value:.3g}" for value in (values[0], np.median(values), values[-1])), f"{share:.1%}"]


def history(past: list[dict[str, Any]]) -> list[Figure]:
    """What the run wrote down of the whole gradient while it trained."""
    steps = [line for line in past if line["kind"] == "step"]
    if len(steps) < 2:
        return []
    figure, axes = canvas(2.4, "history", width=8)
    axes.plot([line["step"] for line in steps], [line["grad_norm"] for line in steps], color=COLOURS[0], linewidth=1)
    logarithmic(axes)
    axes.set_xlabel("step")
    axes.set_ylabel("norm of the gradient")
    return [Figure("The whole gradient in training so far", svg(figure, "history"))]


def lines_figure(steps: np.ndarray, groups: dict[str, np.ndarray]) -> Figure:
    """One line per layer, from the first to the last, and dashed ones for what stands outside of layers."""
    from matplotlib import colormaps
    from matplotlib.ticker import MaxNLocator

    figure, axes = canvas(3.2, "lines", width=8)
    layers = [key for key in groups if "layer" in key]
    for key, values in groups.items():
        colour = colormaps["viridis"](layers.index(key) / max(1, len(layers))) if key in layers else None
        style = "-" if key in layers and not key.startswith("encoder") else ":" if key in layers else "--"
        axes.plot(steps, np.where(values > 0, values, np.nan), style, color=colour, linewidth=1.3, label=key)
    logarithmic(axes)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("step")
    axes.set_ylabel("norm of the gradient")
    axes.legend(
        frameon=False, fontsize=7, loc="center left", bbox_to_anchor=(1, 0.5), ncols=1 + (len(groups) - 1) // 16
    )
    return Figure("Layer by layer", svg(figure, "lines"))


def tensors_figure(steps: np.ndarray, norms: Norms) -> Figure:
    """Every tensor at every step, on a logarithmic scale; what has no gradient stays white."""
    from matplotlib.colors import LogNorm
    from matplotlib.ticker import MaxNLocator

    values = np.array([*norms.values()])
    positive = values[values > 0] if values.any() else np.ones(1)
    largest = float(positive.max())
    # what should be nothing at all, and is rounding, must not take the colours of the rest
    colours = LogNorm(max(SMALLEST * largest, float(positive.min())), largest)
    figure, axes = canvas(1.0 + 0.125 * len(norms), "tensors", width=8)
    image = axes.imshow(
        np.ma.masked_less_equal(values, 0), aspect="auto", cmap="viridis", norm=colours, interpolation="nearest",
        extent=(steps[0] - 0.5, steps[-1] + 0.5, len(norms) - 0.5, -0.5),
    )  # fmt: skip
    axes.set_yticks(range(len(norms)), [*norms], fontsize=6)
    axes.tick_params(axis="y", length=0)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("step")
    figure.colorbar(image, ax=axes, label="norm of the gradient", fraction=0.04, pad=0.01, format="{x:,g}")
    return Figure(
        "Tensor by tensor",
        svg(figure, "tensors"),
        "Queries, keys and values apart, also where one matrix holds them. White: no gradient at all. The darkest colour "
        "is also that of whatever is less than a millionth of the largest.",
    )

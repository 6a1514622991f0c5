"""Gradient norms of every tensor over a few training steps, in memory."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import cycle, islice
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from torch import Tensor

from partwise.checkpoint import read_latest, tensor_files
from partwise.config import ConfigError
from partwise.inspection.subject import Subject
from partwise.model import Transformer
from partwise.model.parameters import tensors_by_parameter
from partwise.plots.drawing import draw
from partwise.plots.page import Page, PageFigure
from partwise.plots.plotting import (
    COLORS,
    add_color_scale,
    legend_above,
    new_figure,
    set_integer_ticks,
    set_log_scale,
    step_colors,
)
from partwise.records import DamagedFileError, read_record
from partwise.train.loop import Diverged, Run
from partwise.train.metrics import read_metrics
from partwise.train.optimizer_steps import ParameterSlice, slice_of
from partwise.train.schedules import Schedule

STEPS = 20
COLOR_RANGE = 1e-6  # smallest norm with its own color, as a fraction of the largest
Norms = dict[str, list[float]]
"""Gradient norm at each step, by the name of the saved tensor."""


class HoldFinal(Schedule):
    """Wraps a schedule and holds its final factor after the last step."""

    inner: Schedule

    def factor(self, step: int, steps: int) -> float:
        return self.inner.factor(min(step, steps - 1), steps)


@contextmanager
def gradient_norms(model: Transformer) -> Iterator[dict[str, Tensor]]:
    """Within this context, yield the gradient norm of every tensor as of the last backward pass, before clipping.

    Gradients accumulate over micro-batches; the norm is that of the sum. Tensors without a gradient are absent.
    """
    norms: dict[str, Tensor] = {}
    handles = []
    for parameter, tensors in tensors_by_parameter(model).items():
        if not parameter.requires_grad:
            continue
        slices = [(tensor.name, slice_of(tensor.data, parameter)) for tensor in tensors]

        def record(parameter: Tensor, slices: list[tuple[str, ParameterSlice]] = slices) -> None:
            assert parameter.grad is not None
            gradient = parameter.grad.contiguous()
            norms.update({name: torch.linalg.vector_norm(piece.view(gradient)) for name, piece in slices})

        handles.append(parameter.register_post_accumulate_grad_hook(record))
    try:
        yield norms
    finally:
        for handle in handles:
            handle.remove()


def record_norms(run: Run, steps: int) -> tuple[Norms, list[float]]:
    """Train for `steps` steps; return the gradient norms of every tensor and the total norms, before clipping.

    The total is the norm that training logs; its square is the sum of the tensors' squares.
    """
    norms: Norms = {tensor.name: [] for tensor in run.model.logical_tensors()}
    totals = []
    console = Console(stderr=True)
    with gradient_norms(run.model) as current:
        for _ in track(range(steps), "training", console=console, transient=True, disable=not console.is_terminal):
            current.clear()
            totals.append(run.update().grad_norm)
            for name, values in norms.items():
                values.append(current[name].item() if name in current else 0.0)
    return norms, totals


def start_run(subject: Subject) -> Run:
    """A run in memory, from the preset's initial weights or the run's newest checkpoint. Raises ConfigError."""
    config = subject.config
    train = config.train.model_copy(update={"seq_len": subject.requested_seq_len or config.train.seq_len})
    schedule = HoldFinal(inner=config.schedule)
    run = Run(config.model_copy(update={"train": train, "schedule": schedule}), subject.dataset)
    if subject.run is None:
        return run

    def restore(folder: Any) -> bool:
        step = read_record(folder / "state.json").get("step")
        if not isinstance(step, int):
            raise DamagedFileError(f"{folder / 'state.json'} lacks 'step'")
        run.restore(step, tensor_files(folder, "model"), tensor_files(folder, "optimizer"))
        return True

    restored, errors = read_latest(subject.run / "checkpoints", restore)
    if not restored:
        reason = errors[0] if errors else f"{subject.run} has no checkpoint"
        raise ConfigError(f"{reason}: train it again with --fresh, or remove overrides that change its weights")
    return run


def group_of(name: str) -> tuple[str, str]:
    """`blocks.3.attention.q.weight` -> ('layer 3', 'attention'), `head.weight` -> ('', 'head')."""
    match = re.fullmatch(r"(encoder\.)?blocks\.(\d+)\.(\w+)\..*", name)
    side = "encoder " if name.startswith("encoder.") else ""
    if match:
        return f"{side}layer {match[2]}", match[3]
    return "", side + name.removeprefix("encoder.").split(".")[0]


def group_norms(norms: Norms, by_layer: bool = False) -> dict[str, np.ndarray]:
    """Norms (steps,) of groups of tensors: branches of each layer, or with `by_layer` whole layers; and outer modules."""
    squares: dict[str, np.ndarray] = {}
    for name, values in norms.items():
        layer, kind = group_of(name)
        key = layer if by_layer and layer else " ".join(word for word in (layer, kind) if word)
        squares[key] = squares.get(key, 0) + np.square(values)
    return {key: np.sqrt(total) for key, total in squares.items()}


def inspect(subject: Subject) -> Page:
    """Gradient norms by group, by layer and by tensor."""
    run = start_run(subject)
    config, first = subject.config, run.step + 1
    n_steps = min(STEPS, config.train.steps)
    try:
        norms, totals = record_norms(run, n_steps)
    except Diverged as error:
        raise ConfigError(f"{subject.name}: {error}") from None
    groups = group_norms(norms)
    total = np.square(totals).sum()
    rows = [table_row(key, values, np.square(values).sum() / total) for key, values in groups.items()]
    steps = np.arange(first, first + n_steps)
    log = [] if subject.run is None else read_metrics(subject.run)
    return Page(
        f"gradient norms at steps {first:,} to {steps[-1]:,}",
        "L2 norms of the gradient of the training loss, before clipping. The square of a group is the sum of its tensors' "
        "squares; % is its fraction of all squares over these steps. Residual is the norms and weights around the branches "
        "of a layer, or after the last layer. "
        + ("Training continues from the newest checkpoint in memory; nothing is saved. " if subject.run else "")
        + f"Batches of {config.train.batch_size} "
        + ("pairs." if config.data.paired else f"x {run.config.seq_len} tokens."),
        ["tensors", "first", "median", "last", "%"],
        [*rows, table_row("total", np.array(totals), 1.0)],
        [*history_figures(log), layers_figure(steps, group_norms(norms, by_layer=True)), tensors_figure(steps, norms)],
    )


def table_row(name: str, values: np.ndarray, fraction: float) -> list[str]:
    return [name, *(f"{value:.3g}" for value in (values[0], np.median(values), values[-1])), f"{fraction:.1%}"]


def history_figures(log: list[dict[str, Any]]) -> list[PageFigure]:
    """The total gradient norm that the run logged in training."""
    steps = [line for line in log if line["kind"] == "step"]
    if len(steps) < 2:
        return []
    figure, axes = new_figure(2.4, "history", width=8)
    axes.plot([line["step"] for line in steps], [line["grad_norm"] for line in steps], color=COLORS[0], linewidth=1)
    set_log_scale(axes)
    set_integer_ticks(axes)
    axes.set_xlabel("step")
    axes.set_ylabel("gradient norm")
    return [PageFigure("Total gradient norm in training so far", draw(figure, "history"))]


def layers_figure(steps: np.ndarray, groups: dict[str, np.ndarray]) -> PageFigure:
    """A line per layer, dotted for the encoder's, and a dashed line per module outside layers."""
    figure, axes = new_figure(3.2, "lines", width=8)
    layers = [key for key in groups if "layer" in key]
    outer = [key for key in groups if key not in layers]
    colors = dict(zip([*layers, *outer], [*step_colors(len(layers)), *islice(cycle(COLORS), len(outer))], strict=True))
    for key, values in groups.items():
        style = "-" if key in layers and not key.startswith("encoder") else ":" if key in layers else "--"
        axes.plot(steps, np.where(values > 0, values, np.nan), style, color=colors[key], linewidth=1.3, label=key)
    set_log_scale(axes)
    set_integer_ticks(axes)
    axes.set_xlabel("step")
    axes.set_ylabel("gradient norm")
    legend_above(axes)
    return PageFigure("Gradient norm by layer", draw(figure, "lines"))


def tensors_figure(steps: np.ndarray, norms: Norms) -> PageFigure:
    """Every tensor at every step, on a logarithmic scale; white without a gradient."""
    from matplotlib.colors import LogNorm

    values = np.array([*norms.values()])
    positive = values[values > 0] if values.any() else np.ones(1)
    largest = float(positive.max())
    # gradients that are zero up to rounding must not use up the color scale
    colors = LogNorm(max(COLOR_RANGE * largest, float(positive.min())), largest)
    figure, axes = new_figure(1.0 + 0.125 * len(norms), "tensors", width=8)
    image = axes.imshow(
        np.ma.masked_less_equal(values, 0), aspect="auto", cmap="viridis", norm=colors, interpolation="nearest",
        extent=(steps[0] - 0.5, steps[-1] + 0.5, len(norms) - 0.5, -0.5),
    )  # fmt: skip
    axes.set_yticks(range(len(norms)), [*norms], fontsize=6)
    axes.tick_params(axis="y", length=0)
    set_integer_ticks(axes)
    axes.set_xlabel("step")
    add_color_scale(figure, image, axes, "gradient norm", format="{x:,g}")
    return PageFigure(
        "Gradient norm by tensor",
        draw(figure, "tensors"),
        "Queries, keys and values are separate, even if one matrix stores them. White: no gradient. The darkest color "
        "includes all norms below a millionth of the largest.",
    )

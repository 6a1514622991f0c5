"""The loss on windows longer than those of training: of the same targets at every length, and by position."""

import numpy as np

from partwise.config import ConfigError
from partwise.evaluate.lengths import at_length, loss_by_length, loss_by_position
from partwise.inspection.subject import Subject
from partwise.parts.positions.rotary import SCALINGS, Rope
from partwise.plots.drawing import draw
from partwise.plots.page import Page, PageFigure
from partwise.plots.plotting import COLORS, new_figure, set_integer_ticks

TIMES = 4
"""The longest window by default, in windows of training."""

POINTS = 64
"""Points of a curve, each the mean over neighboring positions."""


def inspect(subject: Subject) -> Page:
    """Loss by length and by position, for RoPE also with its frequencies scaled."""
    trained_length, model = subject.config.seq_len, subject.model
    if subject.config.data.paired or subject.text is not None:
        raise ConfigError(
            "inspect length needs a validation split of running text: leave --text out, and give no pairs"
        )
    if subject.config.model.encoder_only:
        raise ConfigError("inspect length scores next tokens, which an encoder alone does not predict: set n_layers")
    longest = TIMES * trained_length if subject.requested_seq_len is None else subject.requested_seq_len
    if longest < 2:
        raise ConfigError(f"--seq-len {longest}: must be at least 2, the tokens of the longest window")
    ids = subject.dataset.split("val")
    lengths = window_lengths(trained_length, longest)
    scalings = [None, *SCALINGS] if isinstance(model.config.positions, Rope) and longest > trained_length else [None]
    rows, curves = [], {}
    for scaling in scalings:
        name = model.config.positions.name if scaling is None else SCALINGS[scaling].name
        losses = loss_by_length(model, ids, lengths, trained_length=trained_length, scaling=scaling)
        rows.append((name, *(f"{losses[length]:.4f}" for length in lengths)))
        curves[name] = loss_by_position(at_length(model, longest, trained_length, scaling), ids, longest)
    scaled = " Scaled rows divide the frequencies of RoPE for the length of their column." if len(scalings) > 1 else ""
    return Page(
        f"loss by length, after training on {trained_length:,} tokens",
        "Nats per token of the same targets in every column: the last "
        f"{max(1, min(lengths) // 2):,} tokens of windows of the validation split, whose earlier tokens are only context."
        f"{scaled}",
        ["positions", *(f"{length:,}" for length in lengths)],
        rows,
        [curves_figure(curves, trained_length)],
    )


def window_lengths(trained_length: int, longest: int) -> list[int]:
    """The length of training and its doubles, up to and including the longest."""
    lengths = []
    length = trained_length
    while length < longest:
        lengths.append(length)
        length *= 2
    return [*lengths, longest]


def curves_figure(curves: dict[str, np.ndarray], trained_length: int) -> PageFigure:
    """Loss by position in the longest window."""
    figure, axes = new_figure(3.4, "length", width=8)
    for color, (name, losses) in zip(COLORS, curves.items(), strict=False):
        pieces = np.array_split(np.arange(len(losses)), min(POINTS, len(losses)))
        centers = [piece.mean() for piece in pieces]
        axes.plot(centers, [losses[piece].mean() for piece in pieces], color=color, label=name)
    axes.axvline(trained_length, color=COLORS[7], linewidth=1, linestyle="--")
    axes.set_xlabel("position in the window")
    set_integer_ticks(axes)
    axes.set_ylabel("nats per token")
    axes.legend(frameon=False, fontsize=9)
    return PageFigure(
        "Loss by position",
        draw(figure, "length"),
        "The mean over windows of the longest length, and over neighboring positions. Dashed: the length of training.",
    )

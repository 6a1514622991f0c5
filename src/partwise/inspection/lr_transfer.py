"""Learning-rate transfer: whether the best learning rate of a narrow model is that of a wider one."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from partwise.compute.runtime import choose_runtime
from partwise.config import ConfigError, digest
from partwise.data import Dataset
from partwise.inspection.subject import Subject
from partwise.inspection.widths import original_config, show_progress, small_config, with_width
from partwise.json_files import write_json
from partwise.plots.drawing import draw
from partwise.plots.page import Page, PageFigure
from partwise.plots.plotting import COLORS, new_figure, padded_limits
from partwise.records import DamagedFileError, read_record
from partwise.run_names import explain_write_errors
from partwise.train.config import RunConfig
from partwise.train.loop import Diverged, Run
from partwise.version import __version__

WIDTHS = (64, 128, 256)
OCTAVES = range(-2, 7)  # learning rates: train.lr times 2 to the power of each
STEPS = 60  # default
LOSS_STEPS = 10  # the final loss is the mean over this many last steps
DIVERGED_RATIO = 1.1
"""A run has diverged if its final loss is at least this multiple of its first, even if every number is finite."""


@dataclass(frozen=True)
class SweepPoint:
    """One run: its width, its learning rate, and its final loss in nats per token, None if it diverged."""

    width: int
    lr: float
    loss: float | None


class RunCache:
    """Results of finished runs in a JSON file, keyed by a digest of everything that determines them.

    Raises ConfigError for a damaged file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self.points = read_record(path).record("points") if path.exists() else {}
            self.losses: dict[str, float | None] = {key: parse_loss(point) for key, point in self.points.items()}
        except (DamagedFileError, KeyError, AttributeError, TypeError, ValueError):
            raise ConfigError(f"{path} is not a valid record of learning-rate runs: delete or move it") from None

    def add(self, key: str, point: SweepPoint) -> None:
        """Add a result and write the file atomically."""
        self.losses[key] = point.loss
        self.points[key] = {"d_model": point.width, "lr": point.lr, "loss": point.loss}
        with explain_write_errors(self.path):
            write_json(self.path, {"points": self.points})


def parse_loss(point: dict[str, Any]) -> float | None:
    loss = point["loss"]
    if loss is not None and not (isinstance(loss, float) and math.isfinite(loss)):
        raise ValueError(loss)
    return loss


def inspect(subject: Subject) -> Page:
    """The final training loss by learning rate and width. Yang et al. 2022, arXiv:2203.03466, figure 1.

    Finished runs are saved next to the page; after an interrupt, run the same command again to resume.
    """
    steps = subject.config.train.steps
    config, about = small_config(subject, steps=STEPS if steps == original_config(subject).train.steps else steps)
    finished = RunCache(subject.folder / f"inspect-lr-transfer-{subject.name}.json")
    dataset = subject.dataset
    rates = [config.train.lr * 2.0**octave for octave in OCTAVES]
    runs = plan_runs(config, dataset, WIDTHS, rates)
    with show_progress("runs", sum(key not in finished.losses for key in runs)) as advance:
        try:
            points = train_runs(runs, dataset, finished, advance)
        except KeyboardInterrupt:
            if finished.losses:
                print(f"stopped; finished runs are saved in {finished.path}; run the same command again to resume")
            raise
    best = {width: best_point(points, width) for width in WIDTHS}
    return Page(
        f"learning-rate transfer, {describe_shift({width: optimal_lr(points, width) for width in WIDTHS})}",
        f"{about}; {config.train.steps} steps with the same seed and batches for all runs. Loss is the mean over the last "
        f"{min(LOSS_STEPS, config.train.steps)} training steps in nats per token; * marks the lowest of each width. A run "
        f"has diverged if a value is not finite, or if its final loss is at least {DIVERGED_RATIO:g} times its first. The "
        "best rate minimizes the parabola through * and its neighbors; with one seed, part of an octave is noise. Excess "
        f"loss is the loss above * when using the rate of * at width {WIDTHS[0]}."
        f"{edge_warning(best, rates)} Finished runs are saved in {finished.path}; train.steps=N trains longer.",
        ["learning rate", *(f"width {width}" for width in WIDTHS)],
        [*grid_rows(points, rates, best), *summary_rows(points, best)],
        [loss_figure(points, best)],
    )


def plan_runs(
    config: RunConfig, dataset: Dataset, widths: Sequence[int], rates: Sequence[float]
) -> dict[str, RunConfig]:
    """A run per rate and width, keyed by a digest of everything that determines it. Raises ConfigError for invalid widths."""
    configs = [with_width(config, width) for width in widths]
    runtime = choose_runtime(config.train)
    fixed = [dataset.hash, runtime.device, runtime.precision, LOSS_STEPS, DIVERGED_RATIO, __version__]
    runs = [
        wide.model_copy(update={"train": wide.train.model_copy(update={"lr": lr})}) for lr in rates for wide in configs
    ]
    return {digest([run.to_stored(), *fixed]): run for run in runs}


def train_runs(
    runs: dict[str, RunConfig], dataset: Dataset, finished: RunCache, advance: Callable[[], None] = lambda: None
) -> list[SweepPoint]:
    """Train and record every run that is not yet finished; calls `advance` after each."""
    for key, config in runs.items():
        if key not in finished.losses:
            finished.add(key, SweepPoint(config.model.d_model, config.train.lr, final_loss(Run(config, dataset))))
            advance()
    return [SweepPoint(config.model.d_model, config.train.lr, finished.losses[key]) for key, config in runs.items()]


def final_loss(run: Run) -> float | None:
    """Train a run to its end; the mean loss over its last steps, or None if it diverges."""
    run.findings = []  # no verdict follows: parts are checked where they are trained and compared
    try:
        losses = [step.loss for step in run.steps()]
    except Diverged:
        return None
    loss = sum(losses[-LOSS_STEPS:]) / len(losses[-LOSS_STEPS:])
    return loss if loss < DIVERGED_RATIO * losses[0] else None


def best_point(points: Sequence[SweepPoint], width: int) -> SweepPoint | None:
    """The point with the lowest loss, or None if every run diverged."""
    converged = [point for point in points if point.width == width and point.loss is not None]
    return min(converged, key=lambda point: point.loss or 0.0, default=None)


def optimal_lr(points: Sequence[SweepPoint], width: int) -> float | None:
    """The minimum of the parabola in log(lr) through a width's best point and its neighbors; None if all runs diverged.

    At the edge of the grid or next to a diverged run, it is the best point's rate.
    """
    points = sorted((point for point in points if point.width == width), key=lambda point: point.lr)
    best = best_point(points, width)
    if best is None or best.loss is None:
        return None
    index = points.index(best)
    neighbors = points[index - 1 : index + 2] if index else []
    losses = [point.loss for point in neighbors if point.loss is not None]
    if len(losses) < 3 or losses[0] + losses[2] == 2 * losses[1]:
        return best.lr
    left, middle, right = losses
    shift = (left - right) / (left - 2 * middle + right) / 2  # between -1/2 and 1/2, as the middle is the lowest
    return best.lr * float(points[index + 1].lr / best.lr) ** shift


def octave_shift(optima: dict[int, float | None], width: int) -> float | None:
    """The best rate of a width relative to the first width's, in octaves; None if either has none."""
    first, lr = next(iter(optima.values())), optima[width]
    return None if first is None or lr is None else math.log2(lr / first)


def describe_shift(optima: dict[int, float | None]) -> str:
    """How the best rate of the last width differs from the first width's, in words."""
    *_, last = optima
    shift, between = octave_shift(optima, last), f"from width {next(iter(optima))} to {last}"
    if shift is None:
        return f"all runs of a width diverged: no comparison {between}"
    if abs(shift) < 0.05:
        return f"the best rate is constant {between}"
    return f"the best rate moves {abs(shift):.1f} octaves {'up' if shift > 0 else 'down'} {between}"


def edge_warning(best: dict[int, SweepPoint | None], rates: Sequence[float]) -> str:
    """A sentence on the widths whose best rate may lie outside the grid."""
    at_edge = [str(width) for width, point in best.items() if point and point.lr in (min(rates), max(rates))]
    if not at_edge:
        return ""
    return (
        f" The best rate at width {', '.join(at_edge)} is at the edge of the grid: shift the grid with train.lr=RATE."
    )


def grid_rows(
    points: Sequence[SweepPoint], rates: Sequence[float], best: dict[int, SweepPoint | None]
) -> Iterator[tuple[str, ...]]:
    by_run = {(point.lr, point.width): point for point in points}
    for lr in rates:
        row = [by_run[lr, width] for width in best]
        yield (f"{lr:.3g}", *(f"{format_loss(point)}{'*' if point is best[point.width] else ' '}" for point in row))


def format_loss(point: SweepPoint) -> str:
    return "diverged" if point.loss is None else f"{point.loss:.4f}"


def summary_rows(points: Sequence[SweepPoint], best: dict[int, SweepPoint | None]) -> Iterator[tuple[str, ...]]:
    """Rows below the grid: each width's best rate, its shift from the first width's, and the excess loss without it."""
    optima = {width: optimal_lr(points, width) for width in best}
    shifts = [octave_shift(optima, width) for width in best]
    yield ("best rate", *("none " if rate is None else f"{rate:.2g} " for rate in optima.values()))
    yield ("shift, octaves", *("" if shift is None else f"{shift + 0.0:+.1f} " for shift in shifts))
    yield ("excess loss", *(f"{excess_loss(points, best, width)} " for width in best))


def excess_loss(points: Sequence[SweepPoint], best: dict[int, SweepPoint | None], width: int) -> str:
    """The loss at the rate of the first width's best point, minus the lowest loss of this width."""
    first, lowest = next(iter(best.values())), best[width]
    if first is None or lowest is None or lowest.loss is None:
        return ""
    transferred = next(point for point in points if (point.width, point.lr) == (width, first.lr))
    return "diverged" if transferred.loss is None else f"{transferred.loss - lowest.loss:.4f}"


def loss_figure(points: Sequence[SweepPoint], best: dict[int, SweepPoint | None]) -> PageFigure:
    """Loss by learning rate, a line per width."""
    key = "transfer0"
    figure, axes = new_figure(3.4, key, width=6.4)
    rates = sorted({point.lr for point in points})
    losses = [point.loss for point in points if point.loss is not None]
    low, high = padded_limits(min(losses, default=0.0), max(losses, default=1.0))
    row_height = 0.06 * (high - low)  # above the lines, a row of crosses per width
    for index, (width, lowest) in enumerate(best.items()):
        color, curve = COLORS[index % len(COLORS)], [point for point in points if point.width == width]
        heights = [math.nan if point.loss is None else point.loss for point in curve]
        axes.plot([point.lr for point in curve], heights, "o-", color=color, markersize=3, label=f"width {width}")
        if lowest is not None and lowest.loss is not None:
            axes.plot([lowest.lr], [lowest.loss], "*", color=color, markersize=14)
        diverged = [point.lr for point in curve if point.loss is None]
        axes.plot(diverged, [high + (index + 0.5) * row_height] * len(diverged), "x", color=color)
    axes.set_ylim(low, high + len(best) * row_height)
    axes.set_xscale("log", base=2)
    axes.set_xticks(rates, [f"{rate:.2g}" for rate in rates])
    axes.set_xticks([], minor=True)
    axes.set_xlabel("learning rate")
    axes.set_ylabel("final training loss, nats per token")
    axes.legend(frameon=False)
    return PageFigure(
        "Loss by learning rate",
        draw(figure, key),
        "Stars mark the lowest loss of each width, crosses at the top mark runs that diverged.",
    )

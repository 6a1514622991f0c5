"""Learning-rate transfer: whether the best learning rate of a narrow model is that of a wider one."""

import json
import math
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import partwise
from partwise.checkpoint import Damaged, read_json
from partwise.config import ConfigError, digest
from partwise.data import Dataset
from partwise.drawing import COLOURS, canvas, padded, svg
from partwise.inspection.page import Figure, Look
from partwise.inspection.subject import Subject
from partwise.inspection.widths import before_overrides, following, trial, widened
from partwise.train.choices import choose
from partwise.train.loop import Diverged, Run
from partwise.train.names import writing
from partwise.train.settings import RunConfig

WIDTHS = (64, 128, 256)
OCTAVES = range(-2, 7)  # train.lr times 2 to the power of each
STEPS = 60  # where the user asks for no other number
TAIL = 10  # steps over whose losses the mean is taken
WORSE = 1.1
"""A run whose loss ends at so many times its first, or higher, has diverged, though every number was finite."""


@dataclass(frozen=True)
class Point:
    """One run: its width, its learning rate, and its last loss in nats per token; none where it diverged."""

    width: int
    lr: float
    loss: float | None


class Kept:
    """Finished runs in a JSON file, by the digest of all that determined them. Raises ConfigError for a damaged one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self.points = read_json(path)["points"] if path.exists() else {}
            self.losses: dict[str, float | None] = {key: loss_of(point) for key, point in self.points.items()}
        except (Damaged, KeyError, AttributeError, TypeError, ValueError):
            raise ConfigError(f"{path} is no record of such runs: delete it, or move it away") from None

    def add(self, key: str, point: Point) -> None:
        """Write the file whole or not at all."""
        self.losses[key] = point.loss
        self.points[key] = {"d_model": point.width, "lr": point.lr, "loss": point.loss}
        draft = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        with writing(self.path):
            draft.write_text(json.dumps({"points": self.points}, indent=1, allow_nan=False), encoding="utf-8")
            os.replace(draft, self.path)


def loss_of(point: dict[str, Any]) -> float | None:
    loss = point["loss"]
    if loss is not None and not (isinstance(loss, float) and math.isfinite(loss)):
        raise ValueError(loss)
    return loss


def look(subject: Subject) -> Look:
    """The last training loss by learning rate and width. Yang et al. 2022, arXiv:2203.03466, figure 1.

    Finished runs are kept beside the page, and the same command continues after an interrupt.
    """
    steps = subject.config.train.steps
    config, about = trial(subject, steps=STEPS if steps == before_overrides(subject).train.steps else steps)
    kept = Kept(subject.folder / f"inspect-transfer-{subject.name}.json")
    dataset = subject.dataset
    rates = [config.train.lr * 2.0**octave for octave in OCTAVES]
    runs = plan(config, dataset, WIDTHS, rates)
    with following("runs", sum(key not in kept.losses for key in runs)) as advance:
        try:
            points = transfer(runs, dataset, kept, advance)
        except KeyboardInterrupt:
            if kept.losses:
                print(f"stopped; finished runs are kept in {kept.path}: the same command continues")
            raise
    best = {width: best_of(points, width) for width in WIDTHS}
    return Look(
        f"learning-rate transfer, {moved({width: lowest_rate(points, width) for width in WIDTHS})}",
        f"{about}; {config.train.steps} steps, the same seed and batches for all. The loss is the mean over the last "
        f"{min(TAIL, config.train.steps)} training steps in nats per token, * marks the lowest of each width. A run has "
        f"diverged where a number is not finite, or the loss ends {WORSE:g} times as high as it began. The best rate is "
        "where the parabola through * and its neighbours is lowest; with one seed, part of an octave is chance. Lost is the "
        "loss above * at the rate that has the first width's *."
        f"{at_the_end(best, rates)} Finished runs are kept in {kept.path}; train.steps=N trains longer.",
        ["learning rate", *(f"width {width}" for width in WIDTHS)],
        [*grid_of(points, rates, best), *summary_of(points, best)],
        [curves(points, best)],
    )


def plan(config: RunConfig, dataset: Dataset, widths: Sequence[int], rates: Sequence[float]) -> dict[str, RunConfig]:
    """A run per rate and width, under the digest of all that determines it. Raises ConfigError where a width does not fit."""
    configs = [widened(config, width) for width in widths]
    choices = choose(config.train)
    fixed = [dataset.hash, choices.device, choices.precision, TAIL, WORSE, partwise.__version__]
    runs = [
        wide.model_copy(update={"train": wide.train.model_copy(update={"lr": lr})}) for lr in rates for wide in configs
    ]
    return {digest([run.to_dict(), *fixed]): run for run in runs}


def transfer(
    runs: dict[str, RunConfig], dataset: Dataset, kept: Kept, advance: Callable[[], None] = lambda: None
) -> list[Point]:
    """Train every run that is not kept, and keep it; `advance` is called after each."""
    for key, config in runs.items():
        if key not in kept.losses:
            kept.add(key, Point(config.model.d_model, config.train.lr, last_loss(Run(config, dataset))))
            advance()
    return [Point(config.model.d_model, config.train.lr, kept.losses[key]) for key, config in runs.items()]


def last_loss(run: Run) -> float | None:
    """The mean loss over the last steps of a run, trained to its end; none where it diverges."""
    try:
        losses = [step.loss for step in run.steps()]
    except Diverged:
        return None
    loss = sum(losses[-TAIL:]) / len(losses[-TAIL:])
    return loss if loss < WORSE * losses[0] else None


def best_of(points: Sequence[Point], width: int) -> Point | None:
    """The point of the lowest loss; none where every run diverged."""
    ended = [point for point in points if point.width == width and point.loss is not None]
    return min(ended, key=lambda point: point.loss or 0.0, default=None)


def lowest_rate(points: Sequence[Point], width: int) -> float | None:
    """Where the parabola in log(rate) through a width's best point and its neighbours is lowest; none where none ended.

    It is the best point's own rate where that stands at an end of those tried, or beside one that diverged.
    """
    own = sorted((point for point in points if point.width == width), key=lambda point: point.lr)
    best = best_of(own, width)
    if best is None or best.loss is None:
        return None
    place = own.index(best)
    around = own[place - 1 : place + 2] if place else []
    losses = [point.loss for point in around if point.loss is not None]
    if len(losses) < 3 or losses[0] + losses[2] == 2 * losses[1]:
        return best.lr
    left, middle, right = losses
    shift = (left - right) / (left - 2 * middle + right) / 2  # between -1/2 and 1/2, as the middle is the lowest
    return best.lr * float(own[place + 1].lr / best.lr) ** shift


def octaves(optima: dict[int, float | None], width: int) -> float | None:
    """By how many octaves the lowest rate of a width lies above that of the first; none where one of them has none."""
    first, own = next(iter(optima.values())), optima[width]
    return None if first is None or own is None else math.log2(own / first)


def moved(optima: dict[int, float | None]) -> str:
    """In words, how the best rate of the last width differs from the first one's."""
    *_, last = optima
    shift, between = octaves(optima, last), f"from width {next(iter(optima))} to {last}"
    if shift is None:
        return f"no run of some width ends: there is nothing to compare {between}"
    if abs(shift) < 0.05:
        return f"the best rate stays {between}"
    return f"the best rate moves {abs(shift):.1f} octaves {'up' if shift > 0 else 'down'} {between}"


def at_the_end(best: dict[int, Point | None], rates: Sequence[float]) -> str:
    """A sentence on the widths whose best rate may lie beyond those tried."""
    cut = [str(width) for width, point in best.items() if point and point.lr in (min(rates), max(rates))]
    if not cut:
        return ""
    return f" The best rate at width {', '.join(cut)} is at the end of those tried: move them by train.lr=RATE."


def grid_of(
    points: Sequence[Point], rates: Sequence[float], best: dict[int, Point | None]
) -> Iterator[tuple[str, ...]]:
    found = {(point.lr, point.width): point for point in points}
    for lr in rates:
        row = [found[lr, width] for width in best]
        yield (f"{lr:.3g}", *(f"{text_of(point)}{'*' if point is best[point.width] else ' '}" for point in row))


def text_of(point: Point) -> str:
    return "diverged" if point.loss is None else f"{point.loss:.4f}"


def summary_of(points: Sequence[Point], best: dict[int, Point | None]) -> Iterator[tuple[str, ...]]:
    """Below the grid, per width: the best rate, how far it lies from the first width's, and what that one would cost."""
    optima = {width: lowest_rate(points, width) for width in best}
    shifts = [octaves(optima, width) for width in best]
    yield ("best rate", *("none " if rate is None else f"{rate:.2g} " for rate in optima.values()))
    yield ("moved, octaves", *("" if shift is None else f"{shift + 0.0:+.1f} " for shift in shifts))
    yield (f"lost at {next(iter(best))}'s *", *(f"{cost_of(points, best, width)} " for width in best))


def cost_of(points: Sequence[Point], best: dict[int, Point | None], width: int) -> str:
    """The loss at the rate of the first width's best point, above the lowest of this width."""
    first, own = next(iter(best.values())), best[width]
    if first is None or own is None or own.loss is None:
        return ""
    there = next(point for point in points if (point.width, point.lr) == (width, first.lr))
    return "diverged" if there.loss is None else f"{there.loss - own.loss:.4f}"


def curves(points: Sequence[Point], best: dict[int, Point | None]) -> Figure:
    """Loss by learning rate, a line per width."""
    key = "transfer0"
    figure, axes = canvas(3.4, key, width=6.4)
    rates = sorted({point.lr for point in points})
    losses = [point.loss for point in points if point.loss is not None]
    low, high = padded(min(losses, default=0.0), max(losses, default=1.0))
    room = 0.06 * (high - low)  # above the lines, one row of marks per width
    for place, (width, lowest) in enumerate(best.items()):
        colour, own = COLOURS[place % len(COLOURS)], [point for point in points if point.width == width]
        heights = [math.nan if point.loss is None else point.loss for point in own]
        axes.plot([point.lr for point in own], heights, "o-", color=colour, markersize=3, label=f"width {width}")
        if lowest is not None and lowest.loss is not None:
            axes.plot([lowest.lr], [lowest.loss], "*", color=colour, markersize=14)
        lost = [point.lr for point in own if point.loss is None]
        axes.plot(lost, [high + (place + 0.5) * room] * len(lost), "x", color=colour)
    axes.set_ylim(low, high + len(best) * room)
    axes.set_xscale("log", base=2)
    axes.set_xticks(rates, [f"{rate:.2g}" for rate in rates])
    axes.set_xticks([], minor=True)
    axes.set_xlabel("learning rate")
    axes.set_ylabel("last training loss, nats per token")
    axes.legend(frameon=False)
    return Figure(
        "Loss by learning rate",
        svg(figure, key),
        "A star marks the best rate tried of a width; a cross at the top a run that diverged.",
    )

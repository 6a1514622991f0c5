"""What a person sees while something runs: live tables and progress bars on a terminal, plain lines elsewhere."""

import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

if TYPE_CHECKING:
    from partwise.comparison.experiment import Comparison
    from partwise.train.folder import RunFolder

console = Console(highlight=False, soft_wrap=True)
errors = Console(stderr=True, highlight=False, soft_wrap=True)

MILESTONES = 10


def follow_run(run: "RunFolder") -> None:
    """Train to the end under a progress bar. Raises what training raises."""
    from partwise.train.folder import Evaluation
    from partwise.train.loop import Step

    total, began, first = run.config.train.steps, time.monotonic(), run.run.step
    tokens = 0
    with _bar() as progress:
        task = progress.add_task("training", total=total, completed=first, note="")
        for event in run.events():
            if isinstance(event, Step):
                tokens += event.tokens
                rate = tokens / (time.monotonic() - began)
                note = f"loss {event.loss:.4f}  {rate:,.0f} tokens/s"
                progress.update(task, completed=event.step, note=note)
                if not console.is_terminal and event.step % max(1, total // MILESTONES) == 0:
                    left = (total - event.step) * (time.monotonic() - began) / (event.step - first)
                    console.print(f"step {event.step} of {total}  {note}  {clock(left)} left")
            elif isinstance(event, Evaluation):
                progress.console.print(
                    f"step {event.step}: validation loss {event.validation:.4f}, training loss {event.training:.4f}"
                )


@contextmanager
def _bar() -> Iterator[Progress]:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        yield progress


class Watch:
    """The runs of a comparison as one table: how far each is, and nothing about who is ahead."""

    def __init__(self) -> None:
        self.live: Live | None = None
        self.told: set[int] = set()
        self.at_start: dict[int, int] = {}

    def __call__(self, comparison: "Comparison") -> None:
        done = [job.steps if job.finished else min(job.progress(), job.steps) for job in comparison.jobs]
        for number, steps in enumerate(done):
            self.at_start.setdefault(number, steps)
        left = self._left(comparison, done)
        if console.is_terminal:
            if self.live is None:
                self.live = Live(console=console, refresh_per_second=4, transient=True)
                self.live.start()
            self.live.update(self._table(comparison, done, left))
            return
        for number, job in enumerate(comparison.jobs):
            if job.finished and number not in self.told:
                self.told.add(number)
                ready = sum(other.finished for other in comparison.jobs)
                line = f"{ready} of {len(comparison.jobs)} runs: {job.arm}, seed {job.seed}, {job.status}{left}"
                console.print(line, markup=False)

    def __enter__(self) -> "Watch":
        return self

    def __exit__(self, *_: object) -> None:
        if self.live:
            self.live.stop()
        self.live = None

    def _left(self, comparison: "Comparison", done: list[int]) -> str:
        made = sum(done) - sum(self.at_start.values())
        todo = sum(job.steps for job in comparison.jobs) - sum(done)
        if made <= 0 or not todo:
            return ""
        return f"; about {clock(todo * (time.monotonic() - comparison.started) / made)} left"

    def _table(self, comparison: "Comparison", done: list[int], left: str) -> Table:
        table = Table(box=None, padding=(0, 1))
        table.add_column("arm")
        table.add_column("seed", justify="right")
        table.add_column("")
        table.add_column("steps", justify="right")
        table.add_column("")
        for job, steps in zip(comparison.jobs, done, strict=True):
            filled = round(20 * steps / job.steps)
            table.add_row(
                escape(job.arm), str(job.seed), "█" * filled + "░" * (20 - filled), f"{steps}/{job.steps}", job.status
            )
        ready = sum(job.finished for job in comparison.jobs)
        table.caption = f"{ready} of {len(comparison.jobs)} runs finished{left}"
        return table


def clock(seconds: float) -> str:
    """75 -> '1:15', 4000 -> '1:06:40'."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def table(title: str, columns: Iterable[str], rows: Iterable[Iterable[Any]]) -> Table:
    """A table whose first column is left-aligned and whose numbers are right-aligned."""
    result = Table(title=title, title_justify="left", title_style="bold", box=None, padding=(0, 2, 0, 0))
    for number, column in enumerate(columns):
        result.add_column(column, justify="left" if number == 0 else "right")
    for row in rows:
        result.add_row(*(escape(str(cell)) for cell in row))
    return result


def fail(message: object) -> None:
    """One line on stderr."""
    errors.print(f"[bold red]error:[/] {_plain(str(message))}", soft_wrap=True)


def _plain(text: str) -> str:
    return escape(" ".join(text.split()))


def flush_text(piece: str) -> None:
    """Text as it is generated."""
    sys.stdout.write(piece)
    sys.stdout.flush()

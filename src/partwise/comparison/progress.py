"""The progress of a comparison: a live table on a terminal, plain lines elsewhere."""

import time
from collections.abc import Mapping
from pathlib import Path

from rich.live import Live
from rich.markup import escape
from rich.table import Table

from partwise.comparison.experiment import Comparison
from partwise.comparison.trials.trial import Trial
from partwise.console import console
from partwise.messages import format_duration, quantity


class ComparisonProgress:
    """The progress of a comparison's runs; it shows no losses, so as not to tempt anyone to stop when one arm leads."""

    def __init__(self) -> None:
        self.live: Live | None = None
        self.reported: set[Path] = set()
        """The folders of runs that a line was printed for: tuning, looks and the test have lists of runs of their own."""
        self.initial_steps: dict[Path, int] = {}

    def __call__(self, comparison: Comparison) -> None:
        done = [trial.steps if trial.finished else min(trial.progress(), trial.steps) for trial in comparison.trials]
        for trial, steps in zip(comparison.trials, done, strict=True):
            self.initial_steps.setdefault(trial.folder, steps)
        left = self._time_left(comparison, done)
        if console.is_terminal:
            if self.live is None:
                self.live = Live(console=console, refresh_per_second=4, transient=True)
                self.live.start()
            self.live.update(self._table(comparison, done, left))
            return
        for trial in comparison.trials:
            if trial.finished and trial.folder not in self.reported:
                self.reported.add(trial.folder)
                n_finished = sum(other.finished for other in comparison.trials)
                line = f"{n_finished} of {len(comparison.trials)} runs: {trial.arm}, seed {trial.seed}, {trial.status}{left}"
                console.print(line, markup=False)

    def __enter__(self) -> "ComparisonProgress":
        return self

    def __exit__(self, *_: object) -> None:
        if self.live:
            self.live.stop()
        self.live = None

    def _time_left(self, comparison: Comparison, done: list[int]) -> str:
        steps_done = sum(done) - sum(self.initial_steps[trial.folder] for trial in comparison.trials)
        steps_left = sum(trial.steps for trial in comparison.trials) - sum(done)
        if steps_done <= 0 or not steps_left:
            return ""
        return f"; about {format_duration(steps_left * (time.monotonic() - comparison.started) / steps_done)} left"

    def _table(self, comparison: Comparison, done: list[int], left: str) -> Table:
        """One row per arm with the runs in progress, never more rows than the terminal has."""
        arms: dict[str, list[tuple[Trial, int]]] = {}
        for trial, steps in zip(comparison.trials, done, strict=True):
            arms.setdefault(trial.arm, []).append((trial, steps))
        n_finished = sum(trial.finished for trial in comparison.trials)
        if n_finished == len(comparison.trials):  # samples may compile a kernel
            left = "; writing the report"
        heading = f"{n_finished} of {len(comparison.trials)} runs finished{left}"
        result = Table(box=None, padding=(0, 1, 0, 0), title=heading, title_justify="left", title_style="")
        shown = fitting_arms(arms, console.height - RESERVED_LINES)
        others = len("seeds") + len("seed 12 100%") + 3  # and the spaces between columns
        name_width = min(max(map(len, shown), default=0), console.width - others)
        bar_width = min(20, console.width - others - name_width - 1)
        result.add_column("arm", overflow="ellipsis", no_wrap=True, max_width=name_width)
        result.add_column("seeds", justify="right", no_wrap=True, min_width=5)
        if bar_width >= MIN_BAR:
            result.add_column("", no_wrap=True)
        result.add_column("now", overflow="ellipsis", no_wrap=True)
        for name in shown:
            trials = arms[name]
            fraction = sum(steps for _, steps in trials) / sum(trial.steps for trial, _ in trials)
            n_done = sum(trial.finished for trial, _ in trials)
            bars = [bar(fraction, bar_width)] if bar_width >= MIN_BAR else []
            result.add_row(escape(name), f"{n_done}/{len(trials)}", *bars, escape(running(trials)))
        if len(shown) < len(arms):
            result.caption, result.caption_justify = f"and {quantity(len(arms) - len(shown), 'more arm')}", "left"
        return result


RESERVED_LINES, MIN_BAR = 5, 4
"""Lines for the heading, the names of the columns, the line on further arms, and the cursor; the shortest bar."""


def fitting_arms(arms: Mapping[str, list[tuple[Trial, int]]], n: int) -> list[str]:
    """At most `n` arms in their order: those with a run in progress first, then unfinished ones."""

    def rank(name: str) -> tuple[bool, bool]:
        trials = [trial for trial, _ in arms[name]]
        return not running(arms[name]), all(trial.finished for trial in trials)

    chosen = set(sorted(arms, key=rank)[: max(1, n)])
    return [name for name in arms if name in chosen]


def running(trials: list[tuple[Trial, int]]) -> str:
    """The runs in progress, the failed ones, and those that another process trains, of an arm."""
    now = [f"seed {trial.seed} {steps / trial.steps:.0%}" for trial, steps in trials if trial.status == "running"]
    return ", ".join(
        [*now, *(trial.status for trial, _ in trials if trial.status.startswith(("failed", "diverged", "in use")))]
    )


def bar(fraction: float, width: int) -> str:
    full, empty = "█░" if console.encoding.lower().startswith("utf") else "#-"
    filled = round(fraction * width)
    return full * filled + empty * (width - filled)

"""Console output: live tables and progress bars on a terminal, plain lines elsewhere."""

import codecs
import io
import json
import locale
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderableType, RenderHook
from rich.live import Live
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from partwise.cli.help import NARROW, wrap
from partwise.messages import CONTROLS, quantity
from partwise.plots.text_table import TextTable

if TYPE_CHECKING:
    from partwise.comparison.experiment import Comparison
    from partwise.comparison.trials.trial import Trial
    from partwise.train.run_folder import RunFolder


class WithoutControls:
    """A renderable whose text has no control characters: names, tokens and logs may come from anyone."""

    def __init__(self, renderable: RenderableType) -> None:
        self.renderable = renderable

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        for segment in console.render(self.renderable, options):
            yield segment if segment.control else Segment(segment.text.translate(CONTROLS), segment.style)


class RemoveControls(RenderHook):
    """Removes control characters from everything that a console prints."""

    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        return [WithoutControls(renderable) for renderable in renderables]


console = Console(highlight=False, soft_wrap=not sys.stdout.isatty())
"""A terminal wraps prose between words; files and pipes get whole lines. Commands to copy are printed with soft_wrap=True."""
stderr_console = Console(stderr=True, highlight=False, soft_wrap=True)
for each in (console, stderr_console):
    each.push_render_hook(RemoveControls())


def print_json(values: Any) -> None:
    """Print one JSON document on standard output."""
    print(json.dumps(values, indent=1, allow_nan=False))


def only_json() -> None:
    """Send everything else to standard error: standard output is for `print_json`."""
    console.stderr = True
    console.soft_wrap = not sys.stderr.isatty()


MILESTONES = 10


def follow_run(run: "RunFolder") -> None:
    """Train to the end with a progress bar. Raises what training raises."""
    from partwise.train.evaluation import Evaluation
    from partwise.train.loop import Step

    total, started, first = run.config.train.steps, time.monotonic(), run.run.step
    tokens = 0
    with _progress_bar() as progress:
        task = progress.add_task("training", total=total, completed=first, note="")
        for event in run.events():
            if isinstance(event, Step):
                tokens += event.tokens
                rate = tokens / (time.monotonic() - started)
                note = f"loss {event.loss:.4f}  {rate:,.0f} tokens/s"
                shown = note if console.width >= NARROW else f"loss {event.loss:.4f}"
                progress.update(task, completed=event.step, note=shown)
                if not console.is_terminal and event.step % max(1, total // MILESTONES) == 0:
                    remaining = (total - event.step) * (time.monotonic() - started) / (event.step - first)
                    console.print(f"step {event.step} of {total}  {note}  {format_duration(remaining)} left")
            elif isinstance(event, Evaluation):
                progress.console.print(
                    f"step {event.step}: validation loss {event.validation:.4f}, training loss {event.training:.4f}"
                )


@contextmanager
def progress_bar(noun: str, total: int) -> Iterator[Callable[[float], None]]:
    """On a terminal, a bar of `total` items that disappears at the end; yields a function that advances it by some items."""
    with _progress_bar(transient=True) as progress:
        task = progress.add_task(noun, total=total, note="")
        yield lambda n: progress.advance(task, n)


@contextmanager
def _progress_bar(transient: bool = False) -> Iterator[Progress]:
    wide = [TextColumn("{task.description}"), BarColumn()] if console.width >= NARROW else []
    columns = (*wide, MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.fields[note]}"))
    with Progress(*columns, console=console, transient=transient, disable=not console.is_terminal) as progress:
        yield progress


class ComparisonProgress:
    """The progress of a comparison's runs; it shows no losses, so as not to tempt anyone to stop when one arm leads."""

    def __init__(self) -> None:
        self.live: Live | None = None
        self.reported: set[Path] = set()
        """The folders of runs that a line was printed for: tuning, looks and the test have lists of runs of their own."""
        self.initial_steps: dict[Path, int] = {}

    def __call__(self, comparison: "Comparison") -> None:
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

    def _time_left(self, comparison: "Comparison", done: list[int]) -> str:
        steps_done = sum(done) - sum(self.initial_steps[trial.folder] for trial in comparison.trials)
        steps_left = sum(trial.steps for trial in comparison.trials) - sum(done)
        if steps_done <= 0 or not steps_left:
            return ""
        return f"; about {format_duration(steps_left * (time.monotonic() - comparison.started) / steps_done)} left"

    def _table(self, comparison: "Comparison", done: list[int], left: str) -> Table:
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


def fitting_arms(arms: Mapping[str, list[tuple["Trial", int]]], n: int) -> list[str]:
    """At most `n` arms in their order: those with a run in progress first, then unfinished ones."""

    def rank(name: str) -> tuple[bool, bool]:
        trials = [trial for trial, _ in arms[name]]
        return not running(arms[name]), all(trial.finished for trial in trials)

    chosen = set(sorted(arms, key=rank)[: max(1, n)])
    return [name for name in arms if name in chosen]


def running(trials: list[tuple["Trial", int]]) -> str:
    """The runs in progress, the failed ones, and those that another process trains, of an arm."""
    now = [f"seed {trial.seed} {steps / trial.steps:.0%}" for trial, steps in trials if trial.status == "running"]
    return ", ".join(
        [*now, *(trial.status for trial, _ in trials if trial.status.startswith(("failed", "diverged", "in use")))]
    )


def bar(fraction: float, width: int) -> str:
    full, empty = "█░" if console.encoding.lower().startswith("utf") else "#-"
    filled = round(fraction * width)
    return full * filled + empty * (width - filled)


ASCII = {
    "✓": "+",
    "✕": "x",
    "×": "x",
    "≈": "=",
    "–": "-",
    "−": "-",
    "±": "+/-",
    "·": "*",
    "…": "...",
    "→": "->",
    "←": "<-",
    "█": "#",
    "░": "-",
}
"""Substitutes for characters that the output's encoding lacks; a question mark already means `undecided`."""


def substitute_unencodable() -> None:
    """Let stdout and stderr replace characters that their encoding lacks, where Python would raise UnicodeEncodeError."""

    def substitute(error: UnicodeError) -> tuple[str, int]:
        assert isinstance(error, UnicodeEncodeError)
        text = error.object[error.start : error.end]
        return "".join(ASCII.get(character, "?") for character in text), error.end

    codecs.register_error("partwise", substitute)
    # in the C locale, Python writes UTF-8 all the same; a terminal there shows such characters as rubbish
    in_ascii_locale = sys.flags.utf8_mode and "PYTHONUTF8" not in os.environ
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            encoding = locale.getencoding() if in_ascii_locale and stream.isatty() else None
            stream.reconfigure(encoding=encoding, errors="partwise")


def format_duration(seconds: float) -> str:
    """75 -> '1:15', 4000 -> '1:06:40'."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def table(title: str, columns: Iterable[str], rows: Iterable[Iterable[Any]]) -> TextTable:
    """A table with the first column left-aligned and numbers right-aligned, whole at any width."""
    return TextTable(columns, [[str(cell) for cell in row] for row in rows], title)


def print_error(message: object) -> None:
    """Print one line to stderr, which a terminal shows wrapped between words."""
    text = f"error: {' '.join(str(message).split())}"
    lines = wrap(text, stderr_console.width) if stderr_console.is_terminal else [text]
    shown = Text("\n".join(lines))
    shown.stylize("bold red", 0, len("error:"))
    stderr_console.print(shown, soft_wrap=True)


BOLD = "\x1b[1m", "\x1b[22m"


def with_prompt(prompt: str, text: str) -> Text:
    """A prompt and the text that continues it; on a terminal the prompt is bold."""
    return Text.assemble((prompt, "bold"), text)


def flush_text(piece: str, bold: bool = False) -> None:
    """Write text to stdout immediately; a terminal gets it without control characters, and bold if asked."""
    if sys.stdout.isatty():
        start, end = BOLD if bold and console.color_system and not console.legacy_windows else ("", "")
        piece = f"{start}{piece.translate(CONTROLS)}{end}"
    sys.stdout.write(piece)
    sys.stdout.flush()

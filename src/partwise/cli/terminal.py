"""Console output: live tables and progress bars on a terminal, plain lines elsewhere."""

import codecs
import io
import json
import locale
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from partwise.cli.help import NARROW
from partwise.cli.json_output import json_output
from partwise.console import console, stderr_console
from partwise.messages import CONTROLS, format_duration
from partwise.plots.text_table import TextTable
from partwise.wrapping import wrap

if TYPE_CHECKING:
    from partwise.train.run_folder import RunFolder


def print_json(values: Any) -> None:
    """Print one JSON document on standard output."""
    print(json.dumps(values, indent=1, allow_nan=False), file=json_output(), flush=True)


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
    # in the C locale, Python writes UTF-8 anyway, and a terminal there shows such characters wrongly
    in_ascii_locale = sys.flags.utf8_mode and "PYTHONUTF8" not in os.environ
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            encoding = locale.getencoding() if in_ascii_locale and stream.isatty() else None
            stream.reconfigure(encoding=encoding, errors="partwise")


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


def print_command(command: str) -> None:
    """Print a long command to copy. A terminal shows it broken before options, as a POSIX shell continues a line."""
    pieces = re.split(r" (?=--)", command)
    lines = [pieces[0]]
    for piece in pieces[1:]:
        if not console.is_terminal or os.name == "nt" or len(f"{lines[-1]} {piece} \\") < console.width:
            lines[-1] += f" {piece}"
        else:
            lines.append(f"  {piece}")
    console.print(" \\\n".join(lines), markup=False, soft_wrap=True, style="cyan")


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

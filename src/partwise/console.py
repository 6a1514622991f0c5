"""The consoles on which everything is printed: none shows control characters, or breaks a line within a command."""

import sys
from collections.abc import Iterator
from typing import Any

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderableType, RenderHook
from rich.containers import Lines
from rich.segment import Segment
from rich.text import Text

from partwise.messages import CONTROLS
from partwise.wrapping import KEPT_SPACE, breaks

SHOWN = CONTROLS | {ord(KEPT_SPACE): ord(" ")}


class Prose(Text):
    """Text whose lines break as `wrapping` says: a longer word or command is left to the terminal, which copies it whole."""

    @classmethod
    def of(cls, text: Text) -> "Prose":
        return cls(
            text.plain,
            text.style,
            justify=text.justify,
            overflow=text.overflow,
            no_wrap=text.no_wrap,
            end=text.end,
            tab_size=text.tab_size,
            spans=text.spans,
        )

    def wrap(self, console: Console, width: int, **options: Any) -> Lines:
        if options.get("no_wrap") or self.no_wrap or options.get("overflow") == "ignore":
            return super().wrap(console, width, **options)
        lines = Lines()
        for line in self.split(allow_blank=True):
            lines.extend(line.divide(breaks(line.plain, width, cell_len)))
        for line in lines:
            line.rstrip()
        if justify := options.get("justify") or self.justify:
            Lines(line for line in lines if line.cell_len <= width).justify(console, width, justify)
        return lines


class WithoutControls:
    """A renderable whose text has no control characters: names, tokens and logs may come from anyone."""

    def __init__(self, renderable: RenderableType) -> None:
        self.renderable = Prose.of(renderable) if isinstance(renderable, Text) else renderable

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        for segment in console.render(self.renderable, options):
            yield segment if segment.control else Segment(segment.text.translate(SHOWN), segment.style)


class RemoveControls(RenderHook):
    """Removes control characters from everything that a console prints."""

    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        return [WithoutControls(renderable) for renderable in renderables]


class WholeLines(Console):
    """A console that cuts nothing at the width of the terminal."""

    def print(self, *objects: Any, crop: bool = False, **options: Any) -> None:
        super().print(*objects, crop=crop, **options)


console = WholeLines(highlight=False, soft_wrap=not sys.stdout.isatty())
"""A terminal wraps prose between words; files and pipes get whole lines. A line that ends with a command to copy is printed
with soft_wrap=True; a command within prose has backticks."""
stderr_console = WholeLines(stderr=True, highlight=False, soft_wrap=True)
for each in (console, stderr_console):
    each.push_render_hook(RemoveControls())

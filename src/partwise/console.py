"""The consoles on which everything is printed: none shows the control characters of what it prints."""

import sys
from collections.abc import Iterator

from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderableType, RenderHook
from rich.segment import Segment

from partwise.messages import CONTROLS


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

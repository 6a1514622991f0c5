"""The text of a lesson as a terminal shows it: a screen at a time, with commands and listings that can be copied."""

import re
from collections.abc import Iterator
from typing import ClassVar

from rich.console import Console, ConsoleOptions, RenderResult
from rich.markdown import CodeBlock, Markdown, MarkdownElement, Paragraph
from rich.syntax import Syntax

from partwise.cli.terminal import console
from partwise.console import Prose
from partwise.wrapping import KEPT_SPACE

BLOCK = re.compile(r"^```(?:.|\n)*?^```$|(?:^(?!```).+\n?)+", re.MULTILINE)
"""A paragraph, or a listing with its empty lines."""

CODE = re.compile(r"^```(?:.|\n)*?^```$|`[^`\n]+`", re.MULTILINE)
"""A listing, or code within a line."""


class Listing(CodeBlock):
    """Code with the lines that it has in the file: no line is continued in the next, or filled with spaces."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        text = Syntax("", self.lexer_name, theme=self.theme).highlight(str(self.text).strip("\n"))
        text.rstrip()
        text.no_wrap, text.overflow = True, "ignore"
        yield ""
        yield text
        yield ""


class WholeCommands(Paragraph):
    """A paragraph; one with code of several words breaks no line within it."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Prose.of(self.text) if KEPT_SPACE in self.text.plain else self.text


class LessonText(Markdown):
    """Markdown whose commands can be copied."""

    elements: ClassVar[dict[str, type[MarkdownElement]]] = {
        **Markdown.elements,
        "fence": Listing,
        "paragraph_open": WholeCommands,
    }

    def __init__(self, text: str) -> None:
        kept = CODE.sub(lambda code: code[0] if code[0].startswith("```") else code[0].replace(" ", KEPT_SPACE), text)
        super().__init__(kept, code_theme="bw")


def without_links(text: str) -> str:
    """The text as a terminal shows it, which follows no path of a page: a lesson by its number, another page by its file."""
    text = re.sub(r"\[(lesson \d+)\]\([^)]*\)", r"\1", text)
    return re.sub(r"\[([^]]+)\]\(\.\./([^)#]+)[^)]*\)", r"\1 (docs/\2)", text)


def screens(text: str, width: int, height: int) -> Iterator[str]:
    """The text in pieces that a terminal shows in `height` lines, broken between paragraphs; a listing stays whole."""
    piece: list[str] = []
    for block in (match[0].strip() for match in BLOCK.finditer(text)):
        if piece and shown_lines("\n\n".join([*piece, block]), width) > height:
            yield "\n\n".join(piece)
            piece = []
        piece.append(block)
    yield "\n\n".join(piece)


def shown_lines(text: str, width: int) -> int:
    return len(console.render_lines(LessonText(text), console.options.update_width(width), pad=False))

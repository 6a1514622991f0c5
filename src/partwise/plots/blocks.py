"""The building blocks of report pages: tables, figures and paragraphs, rendered as HTML or Markdown."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from partwise.messages import attempt, not_shown

Cell = str | float | None
"""A name or a number of a figure; None if it is unknown."""


@dataclass(frozen=True)
class Table:
    """Rows of text; the first `left` columns are left-aligned words, the others numbers. `hints` explain the rows."""

    head: list[str]
    rows: list[list[str]]
    title: str = ""
    note: str = ""
    left: int = 1
    hints: list[str] = field(default_factory=list)
    links: tuple[int, ...] = ()
    """The columns of paths to files beside the page."""
    kind: str = "table"


def without_empty_columns(head: list[str], rows: list[list[str]], empty: str) -> tuple[list[str], list[list[str]]]:
    """The columns in which at least one cell differs from `empty`."""
    kept = [index for index in range(len(head)) if any(row[index] != empty for row in rows)]
    return [head[index] for index in kept], [[row[index] for index in kept] for row in rows]


@dataclass(frozen=True)
class Figure:
    """A figure as SVG text, with the (color, name) pairs of its legend and the `rows` of numbers that it shows.

    `views` are versions of the figure, such as a loss against steps, tokens and seconds; a page shows one at a time.
    """

    title: str
    svg: str = ""
    note: str = ""
    legend: list[tuple[str, str]] = field(default_factory=list)
    columns: list[str] = field(default_factory=list)
    rows: list[list[Cell]] = field(default_factory=list)
    views: dict[str, str] = field(default_factory=dict)
    kind: str = "figure"


@dataclass(frozen=True)
class Paragraph:
    """A paragraph, verbatim text such as a command, or a collapsible list of names."""

    text: str = ""
    names: list[str] = field(default_factory=list)
    kind: str = "text"


Block = Table | Figure | Paragraph


@dataclass(frozen=True)
class Section:
    title: str
    blocks: list[Block]

    @property
    def key(self) -> str:
        """The id of its element in the HTML page."""
        return "section-" + self.title.lower().replace(" ", "-")


S = TypeVar("S")
Makers = tuple[Callable[[S], Iterable[Block]], ...]
"""A function from a subject, such as the results of a comparison, to the blocks of a section."""


def make_sections(subject: S, table: Iterable[tuple[str, Makers[S]]], left_out: Mapping[str, str]) -> list[Section]:
    """The sections that are not empty, in order.

    A maker that raises an error, and a block that was left out, are replaced by one line.
    """
    sections = []
    for title, makers in table:
        blocks: list[Block] = [Paragraph(not_shown(left_out[title]))] if title in left_out else []
        for make in makers:
            add_blocks(blocks, f"a part of {title!r}", make, subject)
        sections.append(Section(title, blocks))
    return [section for section in sections if section.blocks]


def add_blocks(blocks: list[Block], what: str, make: Callable[[S], Iterable[Block]], subject: S) -> None:
    """Add what `make` yields; after an error, the reason."""

    def add() -> None:
        for block in make(subject):  # what was made before an error stays
            blocks.append(block)

    attempt(what, add, lambda reason: blocks.append(Paragraph(not_shown(reason))))

"""Tables for terminals of any width."""

from collections.abc import Iterable, Iterator, Sequence

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from partwise.console import Prose
from partwise.wrapping import words

LONGEST_WHOLE_CELL = 32
"""Columns with a longer cell hold text, which wraps between words; an interval with its level has up to 30 characters."""
NARROWEST_TEXT = 16
GAP = 2


class TextTable:
    """A table as wide as the terminal allows.

    If it is too narrow for all columns, the first cell of each row is a line above the others; if these do not fit, each
    row is a block of lines. The columns' names, the first column and columns of text wrap between words; all other cells
    stay on one line, and nothing is cut. Text is left-aligned, other columns are right-aligned. Cells are plain text
    without markup.
    """

    def __init__(self, columns: Iterable[str], rows: Iterable[Iterable[str]], title: str = "") -> None:
        self.columns, self.rows, self.title = list(columns), [list(row) for row in rows], title

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Table | Text | Padding]:
        if self.title:
            yield _text(self.title, "bold")
        if widths := self._widths(0, options.max_width):
            yield self._table(widths, self.rows)
        elif len(self.columns) > 2 and all(self.columns[1:]) and (widths := self._widths(1, options.max_width - GAP)):
            yield from self._stacked(widths)
        else:
            yield from self._blocks(options.max_width)

    def _is_text(self, index: int) -> bool:
        return index == 0 or any(cell_len(row[index]) > LONGEST_WHOLE_CELL for row in self.rows)

    def _widths(self, first: int, available: int) -> list[int] | None:
        """The width of each column from the first of these, or None if there are none or they do not fit."""
        widths, narrowest = [], []
        for index, column in list(enumerate(self.columns))[first:]:
            cells = [row[index] for row in self.rows]
            widths.append(max(map(cell_len, [column, *cells])))
            head = max(map(cell_len, words(column)), default=0)
            if self._is_text(index):
                longest = [cell_len(word) for cell in cells for word in words(cell)]
                narrowest.append(max([head, *longest, min(NARROWEST_TEXT, widths[-1])]))
            else:
                narrowest.append(max([head, *map(cell_len, cells)]))
        available -= GAP * (len(widths) - 1)
        if sum(narrowest) > available:
            return None
        while sum(widths) > available:
            widest = max((at for at in range(len(widths)) if widths[at] > narrowest[at]), key=lambda at: widths[at])
            widths[widest] -= 1
        return widths

    def _table(self, widths: Sequence[int], rows: Sequence[Sequence[str]], header: bool = True) -> Table:
        """The last columns, as many as there are widths."""
        first = len(self.columns) - len(widths)
        columns = self.columns[first:]
        header = header and any(columns)
        table = Table(box=None, padding=(0, GAP, 0, 0), pad_edge=False, header_style="dim", show_header=header)
        for index, (column, width) in enumerate(zip(columns, widths, strict=True), first):
            left = self._is_text(index)
            table.add_column(_text(column), justify="left" if left else "right", overflow="fold", width=width)
        for row in rows:
            table.add_row(*map(_text, row[first:]))
        return table

    def _stacked(self, widths: Sequence[int]) -> Iterator[Text | Padding]:
        """The first cell of each row above a line with the others."""
        if self.columns[0]:
            yield _text(self.columns[0], "dim")
        yield Padding(self._table(widths, []), (0, 0, 0, GAP))
        for row in self.rows:
            yield _text(row[0], "bold")
            yield Padding(self._table(widths, [row], header=False), (0, 0, 0, GAP))

    def _blocks(self, available: int) -> Iterator[Text]:
        """For each row its first cell, then a line per further cell with the column's name; pairs share a line."""
        first, *labels = self.columns
        label_width = max(map(cell_len, labels), default=0)
        name_width = max(cell_len(row[0]) for row in self.rows)
        if first:
            yield _text(first, "dim")
        for name, *cells in self.rows:
            if labels == [""] and name_width + GAP + cell_len(cells[0]) <= available:
                yield Text.assemble((name.ljust(name_width + GAP), "bold"), cells[0])
                continue
            yield _text(name, "bold")
            for label, cell in zip(labels, cells, strict=True):
                if not cell:
                    continue
                indent = GAP + (label_width + GAP if label else 0)
                if indent + cell_len(cell) <= available:
                    yield _text(" " * GAP + (label.ljust(label_width + GAP) if label else "") + cell)
                    continue
                if label:
                    yield _text(" " * GAP + label)
                yield from _indented(cell, 2 * GAP, available)


def _indented(text: str, indent: int, available: int) -> Iterator[Text]:
    lines = Prose(text).wrap(Console(width=available), max(1, available - indent))
    for line in lines:
        yield _text(" " * indent + line.plain.rstrip())


def _text(text: str, style: str = "") -> Text:
    return Prose(text, style=style, no_wrap=False, overflow="fold")

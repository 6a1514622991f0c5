"""What a report is made of: tables, drawings and paragraphs, of which HTML and Markdown are two views."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Table:
    """Rows of text; the first `left` columns hold words, the others numbers. `hints` explain the rows, one each."""

    head: list[str]
    rows: list[list[str]]
    title: str = ""
    note: str = ""
    left: int = 1
    hints: list[str] = field(default_factory=list)
    kind: str = "table"


@dataclass(frozen=True)
class Drawing:
    """A figure as SVG text, with the (colour, name) pairs of its legend."""

    title: str
    svg: str
    note: str = ""
    legend: list[tuple[str, str]] = field(default_factory=list)
    kind: str = "drawing"


@dataclass(frozen=True)
class Lines:
    """A paragraph, or verbatim text such as a command, or a list of names that may be folded away."""

    text: str = ""
    names: list[str] = field(default_factory=list)
    kind: str = "text"


@dataclass(frozen=True)
class Section:
    title: str
    blocks: list[Table | Drawing | Lines]

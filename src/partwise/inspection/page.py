"""One HTML page per look inside: a table and its figures, opened offline."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Bar:
    name: str
    label: str
    share: float  # of the longest bar, 0 to 1


@dataclass(frozen=True)
class Bars:
    """A figure of horizontal bars."""

    title: str
    bars: list[Bar]


def bars(title: str, rows: Sequence[tuple[str, float, str]]) -> Bars:
    """A figure from (name, size, label) rows; sizes are not negative."""
    longest = max((size for _, size, _ in rows), default=0) or 1
    return Bars(title, [Bar(name, label, size / longest) for name, size, label in rows])


def write_page(
    path: Path, title: str, about: str, columns: Sequence[str], rows: Sequence[Sequence[str]], figures: Sequence[Bars]
) -> None:
    """Write the page whole or not at all; every text is escaped."""
    from jinja2 import Environment, PackageLoader

    template = Environment(loader=PackageLoader("partwise.inspection", "."), autoescape=True).get_template(
        "page.html.jinja"
    )
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    text = template.render(title=title, about=about, columns=columns, rows=rows, figures=figures)
    draft.write_bytes(text.encode("utf-8", errors="replace"))
    os.replace(draft, path)

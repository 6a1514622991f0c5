"""One page of two: their figures side by side, and their tables with both columns."""

import re
from collections.abc import Sequence
from dataclasses import replace

from partwise.plots.drawing import Drawing
from partwise.plots.page import Page, PageFigure
from partwise.plots.plotting import Svg

SIDES = ("A", "B")


def pair_pages(names: tuple[str, str], pages: tuple[Page, Page]) -> Page:
    """A page of the same inspection of two models, A and B, by `names`."""
    (a, b), abouts = pages, dict.fromkeys(page.about for page in pages)
    columns, rows = pair_tables(a, b)
    said = [f"{side} is {name}." for side, name in zip(SIDES, names, strict=True)]
    title = a.title if a.title == b.title else f"A: {a.title}; B: {b.title}"
    return Page(title, " ".join([*said, *abouts]), columns, rows, pair_figures(a.figures, b.figures))


def pair_figures(first: Sequence[PageFigure], second: Sequence[PageFigure]) -> list[PageFigure]:
    """Figures of the same title with the other's `beside` first; what is the same for both once, the others alone."""
    of_b = {figure.title: figure for figure in second}
    paired = []
    for figure in first:
        other = of_b.pop(figure.title, None)
        if other is None:
            paired.append(replace(figure, title=f"{figure.title}: A alone"))
        elif other.svg == figure.svg:
            paired.append(figure)
        else:
            caption = "" if other.caption == figure.caption else other.caption
            paired.append(replace(figure, beside=replace(other, drawing=renamed(other), caption=caption)))
    alone = [replace(each, title=f"{each.title}: B alone", drawing=renamed(each)) for each in of_b.values()]
    return sorted(paired + alone, key=lambda figure: figure.beside is None)


def renamed(figure: PageFigure) -> Drawing:
    """The drawing with other ids: two figures of a page may not share one."""
    text = re.sub(r'(\bid="|href="#|url\(#)', r"\g<1>b-", figure.svg)
    return replace(figure.drawing, svg=Svg(text, figure.svg.figure) if isinstance(figure.svg, Svg) else text)


def pair_tables(a: Page, b: Page) -> tuple[list[str], list[list[str]]]:
    """Columns and rows of both, by the first cell; a column that is the same for both stands once."""
    tables = [{row[0]: dict(zip(page.columns, row, strict=True)) for row in page.rows} for page in (a, b)]
    names = merge_order(*map(list, tables))
    columns, cells = [a.columns[0]], [[name] for name in names]
    for column in dict.fromkeys([*a.columns[1:], *b.columns[1:]]):
        values = [[table.get(name, {}).get(column, "") for name in names] for table in tables]
        if values[0] == values[1]:
            values = values[:1]
        columns += [column] if len(values) == 1 else [f"{column}, {side}" for side in SIDES]
        for row, *found in zip(cells, *values, strict=True):
            row += found
    return columns, cells


def merge_order(first: list[str], second: list[str]) -> list[str]:
    """All names in the order of the first; those of the second alone after their predecessor."""
    merged = list(first)
    for index, name in enumerate(second):
        if name not in merged:
            merged.insert(merged.index(second[index - 1]) + 1 if index else 0, name)
    return merged

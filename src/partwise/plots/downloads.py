"""The files that a page offers without a network: a figure as SVG, its numbers as CSV, both as `data:` links."""

import base64
import csv
import html
import io
import re
from collections.abc import Sequence
from urllib.parse import quote

from partwise.plots.blocks import Cell, Figure

LINE = 16
"""The height of a line of the legend, in points."""


def csv_text(columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> str:
    """A table of numbers with six significant digits; names are on one line, unknown values empty."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([[_cell(value) for value in row] for row in rows])
    return file.getvalue()


def _cell(value: Cell) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return " ".join(value.split())
    return str(int(value)) if value == int(value) else f"{value:.6g}"


def svg_text(figure: Figure, svg: str) -> str:
    """A file of its own: one of the figure's SVGs with its title above and its legend below, on white."""
    view = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', svg)
    assert view is not None
    width, height = float(view[1]), float(view[2])
    total = height + LINE * (len(figure.legend) + 1.5)
    text = [f'<text x="6" y="{-0.4 * LINE:g}" font-size="11" font-weight="bold">{_escape(figure.title)}</text>']
    for row, (color, name) in enumerate(figure.legend):
        y = height + LINE * (row + 0.6)
        text.append(f'<path d="M6 {y - 3:g}h14" stroke="{color}" stroke-width="3"/>')
        text.append(f'<text x="26" y="{y:g}" font-size="9">{_escape(name)}</text>')
    names = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
    return (
        f'<svg {names} width="{1.6 * width:g}" height="{1.6 * total:g}" viewBox="0 {-LINE} {width:g} {total:g}" '
        f'font-family="sans-serif"><rect y="{-LINE}" width="100%" height="100%" fill="white"/>{"".join(text)}'
        f"{svg[svg.index('>') + 1 :]}"
    )


def _escape(name: str) -> str:
    return html.escape(" ".join(name.split()))


def data_link(kind: str, text: str) -> str:
    """A `data:` URL of a text; nothing in it needs escaping in an attribute, and it has no colon of an address."""
    text = text.replace("\n", " ") if kind == "image/svg+xml" else text  # a line's end would take three characters
    return f"data:{kind};charset=utf-8," + quote(text, safe=" =/,;!*-._~+$@?")


MOST_BYTES = 2**20
"""The largest file that a page holds; larger ones are written by `--figures`."""


def file_link(kind: str, content: bytes) -> str:
    """A `data:` URL of a file's content; empty if a page should not hold it."""
    if len(content) > MOST_BYTES:
        return ""
    if kind == "png":
        return "data:image/png;base64," + base64.b64encode(content).decode()
    return data_link({"svg": "image/svg+xml", "csv": "text/csv"}[kind], content.decode())


def csv_link(figure: Figure) -> str:
    return data_link("text/csv", csv_text(figure.columns, figure.rows))


def svg_link(figure: Figure, svg: str) -> str:
    return data_link("image/svg+xml", svg_text(figure, svg))


def file_name(title: str) -> str:
    """A file's name from a title: `training loss, nats per token` -> `training-loss-nats-per-token`."""
    return re.sub(r"[^A-Za-z0-9.=+-]+", "-", title).strip("-.")[:80] or "figure"

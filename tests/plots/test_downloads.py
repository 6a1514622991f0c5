"""Downloads: the CSV has the figure's numbers, the SVG is a file of its own, and links need no network."""

import csv
import io
import re
import xml.etree.ElementTree as ElementTree
from urllib.parse import unquote

from hypothesis import given
from hypothesis import strategies as st

from partwise.plots.blocks import Figure
from partwise.plots.curves import Line, draw_losses
from partwise.plots.downloads import csv_link, csv_text, data_link, file_name, svg_link

HOSTILE = "<b>\"a\" & 'b', #1\n100%"


def decoded(link: str, kind: str) -> str:
    head, _, body = link.partition(",")
    assert head == f"data:{kind};charset=utf-8"
    return unquote(body)


@given(st.lists(st.tuples(st.text(), st.floats(-1e9, 1e9), st.integers(-(10**12), 10**12)), max_size=5))
def test_numbers_are_read_back(rows: list[tuple[str, float, int]]) -> None:
    text = decoded(csv_link(Figure("t", columns=["name", "x", "n"], rows=[list(row) for row in rows])), "text/csv")
    head, *cells = csv.reader(io.StringIO(text, newline=""))
    assert head == ["name", "x", "n"] and len(cells) == len(rows)
    for (name, x, n), (shown, value, whole) in zip(rows, cells, strict=True):
        assert shown.split() == name.split() and abs(float(value) - x) <= 1e-5 * abs(x) and int(whole) == n


def test_unknown_numbers_are_empty_and_digits_few() -> None:
    assert csv_text(["a", "b"], [[None, 8 / 3], [1e-7 / 3, 2.0]]) == "a,b\n,2.66667\n3.33333e-08,2\n"


def test_a_figure_is_a_file_of_its_own() -> None:
    svg = draw_losses([Line("#1f6fb2", [[1, 2.0], [2, 1.5]])], [], "k")
    text = decoded(svg_link(Figure(HOSTILE, legend=[("#1f6fb2", HOSTILE)]), svg), "image/svg+xml")
    root = ElementTree.fromstring(text)
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    texts = ["".join(each.itertext()) for each in root.iter("{http://www.w3.org/2000/svg}text")]
    assert texts.count(" ".join(HOSTILE.split())) == 2, "the title and the legend"
    assert "step" in texts and "2.0" in texts
    drawn = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', svg)
    _, top, width, height = map(float, root.attrib["viewBox"].split())
    assert drawn and width == float(drawn[1]) and top + height > float(drawn[2]) + 10, "room for the legend"


def test_links_need_no_escaping() -> None:
    link = data_link("text/csv", HOSTILE + "https://x.org")
    assert not set("<>\"'&#\n") & set(link) and "https:" not in link


def test_file_names() -> None:
    assert file_name("Loss, nats per character") == "Loss-nats-per-character"
    assert file_name("../../a b") == "a-b" and file_name("…") == "figure" and len(file_name("a" * 500)) == 80

"""The files of a figure: its numbers are those that were drawn."""

import csv
import io
import struct
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np

from partwise.plots.drawing import draw
from partwise.plots.page import Page, PageFigure, bar_chart, files_of_page, write_figures, write_page
from partwise.plots.plotting import add_color_scale, new_figure, new_subplots


def test_lines_are_read_back_by_panel_and_label() -> None:
    figure, [[left, right]] = new_subplots(2.0, "k", columns=2)
    left.plot([1, 2], [3.0, 4.0], label="loss")
    left.axhline(9)  # no data
    left.set_title("first")
    left.set_xlabel("step")
    right.plot([1], [5.0])
    drawing = draw(figure, "k")
    assert drawing.columns == ["panel", "line", "step", "y"]
    assert drawing.rows == [["first", "loss", 1.0, 3.0], ["first", "loss", 2.0, 4.0], ["", "", 1.0, 5.0]]


def test_images_are_read_back_with_the_names_on_their_axes() -> None:
    values = np.array([[1.0, 2.0, np.nan], [4.0, 5.0, 6.0]])
    for origin in ("upper", "lower"):
        figure, axes = new_figure(2.0, "k")
        image = axes.imshow(values, origin=origin)
        axes.set_xticks([0, 1, 2], ["a", "b", "c"])
        add_color_scale(figure, image, axes, "share")
        drawing = draw(figure, "k")
        assert drawing.columns == ["x", "y", "value"]
        assert drawing.rows == [
            ["a", 0.0, 1.0],
            ["b", 0.0, 2.0],
            ["c", 0.0, None],
            ["a", 1.0, 4.0],
            ["b", 1.0, 5.0],
            ["c", 1.0, 6.0],
        ]


def test_equal_tokens_are_told_apart_and_negative_ticks_are_numbers() -> None:
    figure, axes = new_figure(2.0, "k")
    axes.imshow(np.array([[1.0, 2.0]]))
    axes.set_xticks([0, 1], ["e", "e"])
    assert [row[0] for row in draw(figure, "k").rows] == ["0 e", "1 e"]
    figure, axes = new_figure(2.0, "k")
    axes.plot([-4, 0], [1, 2])
    axes.set_xticks([-4, 0], ["\N{MINUS SIGN}4", "0"])
    assert [row[0] for row in draw(figure, "k").rows] == [-4.0, 0.0]


def test_bars_are_read_back_with_their_names() -> None:
    drawing = bar_chart("sizes", [("embed", 8.0, "8"), ("head", 2.0, "2")], "k").drawing
    assert [row[-1] for row in drawing.rows] == ["embed", "head"] and [row[-2] for row in drawing.rows] == [8.0, 2.0]


def test_every_figure_is_written_as_svg_png_and_csv(tmp_path: Path) -> None:
    rows = [("embed", 8.0, "8"), ("head", 2.0, "2")]
    chart, other = bar_chart("The sizes", rows, "k"), bar_chart("The sizes", rows[::-1], "k")
    page = Page("t", "about", ["part"], [["x"]], [PageFigure("The sizes", chart.drawing, beside=other), chart])
    write_figures(tmp_path / "made", files_of_page(page))
    names = {path.name for path in (tmp_path / "made").iterdir()}
    assert names == {f"The-sizes{side}.{kind}" for side in ("", "-A", "-B") for kind in ("svg", "png", "csv")}
    ElementTree.parse(tmp_path / "made" / "The-sizes-A.svg")
    png = (tmp_path / "made" / "The-sizes-B.png").read_bytes()
    assert png[:8] == b"\x89PNG\r\n\x1a\n" and struct.unpack(">II", png[16:24])[0] == round(7.5 * 144)
    read = list(csv.reader(io.StringIO((tmp_path / "made" / "The-sizes.csv").read_text())))
    assert read[1:] == [["8", "embed"], ["2", "head"]]

    write_page(tmp_path / "page.html", "t", page)
    text = (tmp_path / "page.html").read_text()
    for kind in ("image/svg+xml", "image/png", "text/csv"):
        assert text.count(f'href="data:{kind}') == 3
    for name in ("The-sizes-A.csv", "The-sizes-B.png", "The-sizes.svg"):
        assert f'download="{name}"' in text

"""One page of two models: side by side, with both columns, and no id twice."""

import re
from pathlib import Path

from partwise.plots.page import Page, PageFigure, bar_chart, write_page
from partwise.plots.paired_page import merge_order, pair_pages


def page(size: float, rows: list[tuple[str, str, str]], *figures: PageFigure) -> Page:
    chart = bar_chart("sizes", [("x", size, "x"), ("y", 1, "y")], "k")
    return Page(f"of {size:g}", "how to read it", ["part", "mean", "units"], rows, [chart, *figures])


def test_figures_side_by_side_and_both_columns(tmp_path: Path) -> None:
    same = bar_chart("the same", [("x", 3, "x")], "same")
    a = page(1, [("embed", "0.1", "8"), ("head", "0.3", "8")], same, bar_chart("rotation", [("x", 1, "")], "r"))
    b = page(2, [("embed", "0.2", "8"), ("ffn", "0.5", "8"), ("head", "0.4", "8")], same)
    both = pair_pages(("mine", "yours"), (a, b))
    assert both.columns == ["part", "mean, A", "mean, B", "units, A", "units, B"]
    assert both.rows == [
        ["embed", "0.1", "0.2", "8", "8"],
        ["ffn", "", "0.5", "", "8"],
        ["head", "0.3", "0.4", "8", "8"],
    ]
    assert [figure.title for figure in both.figures] == ["sizes", "the same", "rotation: A alone"]
    assert [figure.beside is not None for figure in both.figures] == [True, False, False]
    assert both.about.startswith("A is mine. B is yours.") and both.title == "A: of 1; B: of 2"
    assert both.about.count("how to read it") == 1
    write_page(tmp_path / "page.html", "mine, yours", both)
    text = (tmp_path / "page.html").read_text()
    ids = re.findall(r'\bid="([^"]*)"', text)
    used = set(re.findall(r'(?:href="#|url\(#)([^")]*)', text))
    assert text.count("<svg") == 4 and len(set(ids)) == len(ids) and used <= set(ids)


def test_figures_of_both_come_first() -> None:
    a = Page("a", "", ["part"], [], [bar_chart("only A", [("x", 1, "")], "o"), *page(1, []).figures])
    both = pair_pages(("a", "b"), (a, page(2, [])))
    assert [figure.title for figure in both.figures] == ["sizes", "only A: A alone"]


def test_a_column_that_is_the_same_for_both_stands_once() -> None:
    both = pair_pages(("a", "b"), (page(1, [("embed", "0.1", "8")]), page(2, [("embed", "0.2", "8")])))
    assert both.columns == ["part", "mean, A", "mean, B", "units"] and both.rows == [["embed", "0.1", "0.2", "8"]]


def test_rows_of_one_model_stand_after_their_predecessor() -> None:
    assert merge_order(["a", "b", "d"], ["x", "a", "c", "d", "e"]) == ["x", "a", "c", "b", "d", "e"]

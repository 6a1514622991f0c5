"""Text in report pages, and what a browser lets them do."""

import base64
import hashlib
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from partwise.plots.blocks import Figure, Section
from partwise.plots.drawing import Drawing
from partwise.plots.layout import render_page, whole_options
from partwise.plots.page import Page, PageFigure, bar_chart, write_page
from partwise.plots.plotting import add_color_scale, legend_above, new_figure, to_svg


def test_options_are_kept_whole_and_text_is_escaped() -> None:
    text = "python a-b.py --seeds 4 -n=2 '<i>' x--y - --"
    found = whole_options(text)
    assert found == (
        "python a-b.py <span class='option'>--seeds</span> 4 <span class='option'>-n</span>=2 &#39;&lt;i&gt;&#39; x--y - --"
    )
    assert whole_options("--<b>") == "--&lt;b&gt;"


def test_the_policy_allows_the_one_script_and_nothing_from_elsewhere() -> None:
    page = render_page("train/run_page.html.jinja", {"title": "<script>", "sections": []})
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)
    scripts = re.findall(r"<script>(.*?)</script>", page, flags=re.DOTALL)
    assert policy and len(scripts) == page.count("<script") == 1
    digest = base64.b64encode(hashlib.sha256(scripts[0].encode()).digest()).decode()
    assert policy[1] == (
        "default-src 'none'; base-uri 'none'; form-action 'none'; img-src data:; style-src 'unsafe-inline'; "
        f"script-src 'sha256-{digest}'"
    )
    assert not re.search(r"\son\w+=", page.split("<script>")[0])


def test_each_view_of_a_figure_downloads_as_svg_and_png() -> None:
    """The script finds the SVG of a PNG as the link before it."""
    svg = '<svg viewBox="0 0 9 9"/>'
    figures = [Figure("one", svg), Figure("two", views={"step": svg, "tokens": svg})]
    page = render_page("train/run_page.html.jinja", {"title": "t", "sections": [Section("s", [*figures])]})
    links = re.findall(r'<a (hidden data-png )?download="([^"]*)"', page)
    assert [name for _, name in links] == [
        f"{name}.{kind}" for name in ("one", "two-by-step", "two-by-tokens") for kind in ("svg", "png")
    ]
    assert [bool(hidden) for hidden, _ in links] == [False, True] * 3
    assert "a[data-png]" in page.split("<script>")[1]


def test_a_page_without_a_script_allows_none(tmp_path: Path) -> None:
    write_page(
        tmp_path / "a.html", "a", Page("a", "about", ["part"], [["x"]], [bar_chart("f", [("a", 1.0, "1")], "f")])
    )
    text = (tmp_path / "a.html").read_text()
    assert "content=\"default-src 'none';" in text and "script" not in text


def _annotated(name: str) -> tuple[Any, str]:
    figure, axes = new_figure(2.0, "k")
    axes.plot([1, 2], [1, 2], label=name)
    axes.annotate(name, (1, 1))
    axes.set_title(name)
    axes.set_xlabel(name)
    axes.set_yticks([1, 2], [name, name])
    axes.legend()
    return figure, to_svg(figure, "k")


@pytest.mark.parametrize("name", ["$x^2$", r"$\frac$", "lr=$5 or $6", "a_b^c", "$"])
def test_names_are_no_formulas(name: str) -> None:
    """Matplotlib would draw a text between dollar signs as a formula, or fail."""
    _, svg = _annotated(name)
    assert svg.count(f">{name}</text>") == 6


def test_backticks_are_code_and_a_long_table_is_folded(tmp_path: Path) -> None:
    figure = PageFigure("f", Drawing('<svg viewBox="0 0 9 9"/>'), "`cap`")
    page = Page("t", "`pre` <b> is `x`", ["part"], [[str(row)] for row in range(30)], [figure])
    write_page(tmp_path / "page.html", "a run", page)
    text = (tmp_path / "page.html").read_text()
    assert "<code>pre</code> &lt;b&gt; is <code>x</code>" in text and "<code>cap</code>" in text and "`" not in text
    assert "<details><summary>30 rows</summary>" in text
    write_page(tmp_path / "short.html", "a run", replace(page, rows=page.rows[:9]))
    assert "<details" not in (tmp_path / "short.html").read_text()


def test_color_scales_and_legends_are_at_the_left() -> None:
    """A narrow window scrolls a wide figure: what stands at its right is out of view."""
    figure, axes = new_figure(2.0, "k", width=8)
    scale = add_color_scale(figure, axes.imshow([[0, 1]], aspect="auto"), axes, "share")
    axes.plot([0, 1], [0, 1], label="a line")
    legend_above(axes)
    figure.draw_without_rendering()
    assert scale.ax.get_position().x1 < 0.5
    legend = axes.get_legend()
    assert legend is not None and legend.get_window_extent().x1 < 0.5 * figure.bbox.width


def test_every_cell_names_its_column(tmp_path: Path) -> None:
    """On a phone a row is a list of names and values, so that no column is hidden."""
    page = Page("a title", "about", ["part", "% <b>"], [["ffn", "12"], ["head", "3"]], [])
    write_page(tmp_path / "page.html", "a run", page)
    cells = re.findall(r'<td data-label="(.*?)">(.*?)</td>', (tmp_path / "page.html").read_text("utf-8"))
    assert cells == [("part", "ffn"), ("% &lt;b&gt;", "12"), ("part", "head"), ("% &lt;b&gt;", "3")]

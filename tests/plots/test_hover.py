"""The script that shows values: it finds the point that is drawn below the pointer."""

import shutil
import subprocess
from pathlib import Path

import pytest

import partwise
from partwise.plots.plotting import new_figure, to_svg

SCRIPT = Path(partwise.__file__).parent / "plots" / "hover.js"


def test_the_axes_are_described_where_they_are_drawn() -> None:
    """The places of the axes and their limits map each number to its place in the figure."""
    import re

    figure, axes = new_figure(2.0, "k")
    axes.plot([1.0, 3.0], [10.0, 30.0], "o", color="#123456")
    svg = to_svg(figure, "k", "x", "y")
    found = re.search(r'data-places="([^"]*)" data-limits="([^"]*)" data-x="x" data-y="y"', svg)
    assert found
    left, top, right, bottom = map(float, found[1].split())
    x0, x1, y0, y1 = map(float, found[2].split())
    dots = re.findall(r'<use xlink:href="#k-m\w+" x="([\d.]+)" y="([\d.]+)" style="fill: #123456', svg)
    expected = [
        (left + (right - left) * (x - x0) / (x1 - x0), bottom + (top - bottom) * (y - y0) / (y1 - y0))
        for x, y in ((1, 10), (3, 30))
    ]
    assert [(float(x), float(y)) for x, y in dots] == [pytest.approx(each, abs=0.01) for each in expected]


def test_the_script_is_plain_and_short() -> None:
    text = SCRIPT.read_text("utf-8")
    assert len(text.splitlines()) < 60
    assert not any(word in text for word in ("</", "http:/", "https:", "fetch(", "innerHTML", "eval", "import "))


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
def test_the_script_parses() -> None:
    subprocess.run(["node", "--check", str(SCRIPT)], check=True)

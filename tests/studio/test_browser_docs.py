"""The figures of the documentation's site in Chromium, in both themes."""

import io
import shutil
from pathlib import Path
from typing import Any

import pytest

from lazy_imports import lazy_module
from studio.test_browser import browser as browser

DOCS = Path(__file__).parents[2] / "docs"
PAGE = """<link rel="stylesheet" href="site.css"><body data-theme="{theme}" style="margin: 0; background: {background}">
<article><img src="lesson-03.svg"></article></body>"""
LIGHT, DARK = (255, 255, 255), (19, 20, 22)
"""The backgrounds of furo's pages."""
image = lazy_module("PIL.Image")

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]


@pytest.mark.parametrize("system", ["light", "dark"])
@pytest.mark.parametrize("theme", ["light", "dark", "auto"])
def test_a_figure_has_the_background_of_the_page(tmp_path: Path, browser: Any, theme: str, system: str) -> None:
    expected = DARK if "dark" in (theme, system if theme == "auto" else "") else LIGHT
    for file in (DOCS / "static/site.css", DOCS / "images/lesson-03.svg"):
        shutil.copy(file, tmp_path)
    (tmp_path / "page.html").write_text(PAGE.format(theme=theme, background=f"rgb{expected}"))
    page = browser.new_page(viewport={"width": 400, "height": 400}, color_scheme=system)
    page.goto((tmp_path / "page.html").as_uri())
    shot = image.open(io.BytesIO(page.locator("img").screenshot())).convert("RGB")
    page.close()
    inside = shot.getpixel((shot.width // 2, shot.height // 2 - 90))
    assert all(abs(seen - wanted) <= 8 for seen, wanted in zip(inside, expected, strict=True)), inside
    colors = [color for _, color in shot.getcolors(1 << 20)]
    red, green, blue = max(colors, key=lambda color: color[1] - color[0])
    assert green > red + 60 and green > blue, "RoPE's line stays green"

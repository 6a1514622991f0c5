"""Colors of text can be read on light and on dark pages: a contrast of 4.5, WCAG's level AA."""

import math
import re
from importlib import resources
from itertools import combinations

import pytest

from partwise.plots.colors import ARM_COLORS, DARK_COLORS, VERDICT_COLORS
from partwise.plots.plotting import COLORS, step_colors

LAYOUT = resources.files("partwise.plots").joinpath("layout.html.jinja").read_text("utf-8")
LIGHT, DARK = (dict(re.findall(r"--(\w+): (#\w+)", line)) for line in re.findall(r":root \{(.*?)\}", LAYOUT)[:2])


def luminance(color: str) -> float:
    parts = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def lab(color: str) -> tuple[float, float, float]:
    """CIE 1976 L*a*b* for the white point D65."""
    parts = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    r, g, b = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    x, y, z = (
        t ** (1 / 3) if t > 0.008856 else 7.787 * t + 16 / 116
        for t in (
            (0.4124 * r + 0.3576 * g + 0.1805 * b) / 0.9505,
            luminance(color),
            (0.0193 * r + 0.1192 * g + 0.9505 * b) / 1.0888,
        )
    )
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_no_two_lines_have_nearly_the_same_color(theme: str) -> None:
    for colors in (ARM_COLORS, COLORS, step_colors(8)):
        shown = colors if theme == "light" else [DARK_COLORS.get(color, color) for color in colors]
        # neighbors of a sequence are nearer than the colors of a cycle
        least = 8 if colors not in (ARM_COLORS, COLORS) else 24.5
        assert all(math.dist(lab(one), lab(other)) > least for one, other in combinations(shown, 2)), shown


def test_contrast() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#a86a00", "#ffffff") == pytest.approx(4.44, abs=0.005)  # as axe computes it


@pytest.mark.parametrize("verdict", VERDICT_COLORS)
def test_verdicts_can_be_read(verdict: str) -> None:
    color = VERDICT_COLORS[verdict]
    assert contrast(color, LIGHT["card"]) >= 4.5 and contrast(DARK_COLORS[color], DARK["card"]) >= 4.5


@pytest.mark.parametrize("name", ["ink", "soft"])
def test_text_can_be_read(name: str) -> None:
    for theme in (LIGHT, DARK):
        assert all(contrast(theme[name], theme[ground]) >= 4.5 for ground in ("paper", "card", "stripe"))

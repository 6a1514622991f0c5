"""The figure of effects against the number of steps: a panel for each part, a line for each size and corpus."""

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from comparisons import TINY
from partwise.cli import app
from partwise.studies.page import markdown
from partwise.studies.study import find_study
from partwise.studies.trends import draw_trends, trends

COMMON = [word for word in TINY if not word.startswith("train.steps")]
PROTOCOL = f"""about: tiny
preset: mingpt
seeds: 2
margin: 0.05
failure: 100
horizons: [4, 8]
common: {json.dumps(COMMON)}
"""


@pytest.fixture
def studies(here: Path) -> list[str]:
    folder = here / "studies"
    (folder / "protocols").mkdir(parents=True)
    for protocol in ("decoder-1m", "growth"):
        (folder / "protocols" / f"{protocol}.yaml").write_text(PROTOCOL)
    entry = "{data: text.txt, arms: [norm=rmsnorm, positions=rope]}"
    (folder / "parts.yaml").write_text(f"claim: c\nprotocol: decoder-1m\ncomparisons: {{all: {entry}}}\n")
    entry = "{data: text.txt, common: [n_layers=1], arms: [norm=rmsnorm, positions=rope]}"
    (folder / "growth.yaml").write_text(f"claim: c\nprotocol: growth\ncomparisons: {{small: {entry}}}\n")
    return ["growth", "parts"]


def test_a_panel_for_each_part_and_a_line_for_each_setting(studies: list[str]) -> None:
    found = [find_study(name) for name in studies]
    assert trends(found) == {} and draw_trends(found) == "" and "trends.svg" not in markdown(found)
    for name in studies:
        done = CliRunner().invoke(app, ["study", "run", name])
        assert done.exit_code == 0, done.output
    lines = trends(found)
    assert list(lines) == ["norm=rmsnorm", "positions=rope"]
    for part in lines.values():
        assert [line.setting for line in part] == ["0.9M", "small"]
        assert all([point.step for point in line.points] == [4, 8] for line in part)
    texts = re.findall(r"<text[^>]*>(.*?)</text>", draw_trends(found))
    assert {"norm=rmsnorm", "positions=rope", "0.9M", "small"} <= set(texts) and texts.count("0.9M") == 1
    page = markdown(found)
    assert "(images/trends.svg)" in page and "**no prediction**" in page

"""`report`: the figures of a run and of a comparison as files."""

import csv
import io
import shutil
import struct
from pathlib import Path
from xml.etree import ElementTree

import pytest

from test_records import command

STORED = Path(__file__).parents[1] / "formats_on_disk"


@pytest.mark.parametrize("name", ["run", "runs/comparison"])
def test_figures_of_a_report_are_written_as_svg_png_and_csv(name: str, tmp_path: Path) -> None:
    """Each has all three; a figure with views has an SVG and a PNG of each, and one CSV; the legend is in the picture."""
    newest = max(STORED.iterdir(), key=lambda folder: int(folder.name))
    shutil.copytree(newest / "runs", tmp_path / "runs")
    status, printed, errors = command(tmp_path, ["report", name, "--figures", "made"])
    files = {path.name: path.read_bytes() for path in (tmp_path / "made").iterdir()}
    assert status == 0 and f"figures: {len(files)} files in made" in printed + errors
    loss = next(file for file in files if "oss" in file and file.endswith(".csv")).removesuffix(".csv")
    assert {f"{loss}-by-{axis}.{kind}" for axis in ("step", "tokens") for kind in ("svg", "png")} <= set(files)
    for file, content in files.items():
        if file.endswith(".svg"):
            ElementTree.fromstring(content)
            assert file.removesuffix("svg") + "png" in files
        elif file.endswith(".png"):
            assert content[:8] == b"\x89PNG\r\n\x1a\n" and struct.unpack(">II", content[16:24])[0] > 600
        else:
            head, *rows = csv.reader(io.StringIO(content.decode()))
            assert rows and all(len(row) == len(head) for row in rows)

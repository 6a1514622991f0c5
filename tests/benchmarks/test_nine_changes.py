"""The page of nine parts: every section has its picture and three sentences, and states what the studies stored."""

import json
import re
from pathlib import Path

import pytest

from generated import NINE, nine_inputs
from whole_figures import check_figure

import nine_changes  # isort: skip  (on the path that `generated` adds)

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/nine-changes.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE))
STATED = {
    "Activation and gate": [("swiglu", "ffn=swiglu", "shakespeare"), ("glu", "ffn=relu", None)],
    "Positions": [("positions", "positions=none", None), ("positions", "positions=learned", None)],
    "Attention: the scale and the heads": [
        ("heads", "attention.n_heads=1", None),
        ("heads", "attention.scale=1", None),
        ("heads", "attention.n_heads=1 attention.scale=1", None),
    ],
    "Norm": [("rmsnorm", "norm=layernorm", None), ("dyt", "norm=dyt", None)],
    "Wiring": [("prepost", "schedule.warmup=0", "pre-norm"), ("parallel", "residual=parallel", None)],
    "Initialization": [
        ("activation-scale", "init.std", "GELU"),
        ("activation-scale", "init.std", "ReLU"),
        ("residual-init", "init=normal", None),
    ],
    "Tying": [("tying", "tie_embeddings=false", None)],
    "Key and value heads": [("kv-heads", f"attention.n_kv_heads={heads}", None) for heads in (2, 1)],
    "Optimizer": [("muon", "optimizer=muon", None)],
}
"""The claims whose difference and interval each section states."""


def test_every_section_has_its_picture_and_three_sentences() -> None:
    assert list(SECTIONS) == list(STATED)
    assert list(NINE) == list(nine_changes.PICTURES)
    for name, section in zip(NINE, SECTIONS.values(), strict=True):
        pictures = re.findall(r"^!\[.+\]\(images/nine-(.+)\.svg\)$", section, re.MULTILINE)
        paragraphs = section.strip().split("\n\n")
        assert pictures == [name] and len(paragraphs) == 3
        assert len(re.split(r"(?<=\.)\s+(?=[A-Z])", paragraphs[1])) == 3, name
        svg = (ROOT / f"docs/images/nine-{name}.svg").read_text(encoding="utf-8")
        assert nine_changes.PICTURES[name].title in svg and len(svg) < 20_000


@pytest.mark.parametrize("name", NINE)
def test_nothing_of_a_picture_is_cut(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a page for a phone, where a wider picture would have smaller text."""
    monkeypatch.setattr(nine_changes, "svg_file", check_figure)
    assert nine_changes.draw(name, nine_inputs()) == "whole"


@pytest.mark.parametrize("heading", STATED)
def test_a_section_states_the_stored_differences(heading: str) -> None:
    section = " ".join(SECTIONS[heading].split())
    for study, arm, key in STATED[heading]:
        effect = nine_inputs().claim(study, arm, key).effect
        values = (effect.mean, effect.low, effect.high)
        texts = ["{:.{}f} ({:.{}f} to {:.{}f}".format(*(x for v in values for x in (v, places))) for places in (3, 4)]
        assert any(text in section for text in texts), texts


def test_the_measured_pictures_show_what_is_measured_again() -> None:
    stored = json.loads(nine_changes.MEASURED.read_text(encoding="utf-8"))
    assert nine_changes.measure_attention() == {
        name: pytest.approx(values, rel=0.01) for name, values in stored["attention"].items()
    }
    for name, rule in nine_changes.WIRINGS.items():
        assert nine_changes.measure_wiring(rule) == pytest.approx(stored["wiring"][name], abs=0.002)

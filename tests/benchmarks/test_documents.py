"""The page of doubtful statements: every measurement of it, made again, and every difference that it takes from a study."""

import inspect
import re
from pathlib import Path

import pytest
import torch
from torch import nn

from generated import nine_inputs
from partwise.data.problems import answer_of, solve

import documents  # isort: skip  (on the path that `generated` adds)

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/where-documents-err.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| (.+?) \| (.+?) \| (.+?) \|$", PAGE.split("## The post")[1], re.MULTILINE)
RIGHT = " ".join(PAGE.split("## Checked, and right")[1].split())

FAST: dict[str, dict[str, str]] = {
    "symbols": {"symbols": "19", "symbols of the examples": "19"},
    "printed-gate": {"growth of the code": "4", "growth of the formula": "8"},
    "dead-units": {"zeros": "0.500", "dead with a bias": "0.951"},
    "hidden-width": {"2/3 * 4 * 512": "1365.33", "parameters": "1.0078"},
    "dropout-while-sampling": {"no_grad": "0.78", "eval": "0"},
    "position-norms": {
        "position 0, width 512": "16.0",
        "position 4095, width 512": "16.0",
        "width 4096": "45.3",
        "embedding, width 512": "0.453",
        "embedding, width 4096": "1.28",
        "embedding times sqrt(512)": "10.2",
    },
    "feed-forward-shape": {"rows": "2048", "columns": "512", "d_k": "64"},
    "order": {"causal, 2 layers": "0.065"},
}
SLOW: dict[str, dict[str, str]] = {
    "constant-score": {"character accuracy of a constant": "0.5957", "exact match of a constant": "0.0016"},
    "relu-draws": {
        "mean": "0.450",
        "SD of a draw": "0.011",
        "variance before, with n - 1": "1.125",
        "mean in rows of 768": "0.399",
    },
    "tied-start": {"SD 1": "515", "SD 0.02": "11.1", "uniform": "10.4"},
    "without-residual": {"normalized: gradient": "0.34", "normalized: cosine": "1.00"},
    "gelu-error": {"largest error": "0.00047"},
}
OF_TRANSFORMERS: dict[str, dict[str, str]] = {
    "padding-row": {"SD of row 0": "0.020"},
    "rescaled-projections": {
        "attention c_proj": "0.0050",
        "feed-forward c_proj": "0.0050",
        "feed-forward c_fc": "0.0200",
    },
}
"""Of each measurement, its values as the page states them."""

STUDIES = {
    "swiglu": [("ffn=swiglu", "arithmetic"), ("ffn=swiglu", "shakespeare")],
    "rmsnorm": [("norm=layernorm", None)],
    "glu": [("ffn=relu", None), ("ffn=gelu", None)],
    "activation-scale": [("ffn=gelu", "SD 0.08")],
    "positions": [("positions=none", None), ("positions=sinusoidal", None)],
    "prepost": [("schedule.warmup=0", "pre-norm")],
    "residual-init": [("init=normal", None)],
    "dropout": [("residual.dropout=0.1", None)],
}
"""Of each study, the claims whose difference and interval the page states."""


def check(name: str, stated: dict[str, str]) -> dict[str, float]:
    """The measurement, after comparing it with what its rows say: to a unit and a half of their last digit."""
    measured = documents.CHECKS[name]()
    rows = " ".join(row[1] for row in ROWS if f"`{name}`" in row[2])
    for key, text in stated.items():
        unit = 10.0 ** -len(text.partition(".")[2])
        assert measured[key] == pytest.approx(float(text), abs=1.5 * unit), key
        assert re.search(rf"(?<![\d.]){re.escape(text)}(?![\d]|\.\d)", rows), text
    return measured


@pytest.mark.parametrize("name", FAST)
def test_a_measurement_says_what_the_page_says(name: str) -> None:
    measured = check(name, FAST[name])
    if name == "order":
        assert max(measured["full, 2 layers"], measured["causal, 1 layer"]) < 1e-14
    if name == "dead-units":
        assert measured["dead"] == 0


@pytest.mark.parametrize("name", SLOW)
def test_a_longer_measurement_says_what_the_page_says(name: str) -> None:
    measured = check(name, SLOW[name])
    if name == "without-residual":
        assert measured["as it is: gradient"] == pytest.approx(1.9e-15, rel=0.1) and "1.9e-15" in PAGE


@pytest.mark.parametrize("name", OF_TRANSFORMERS)
def test_gpt2_of_transformers_is_as_the_page_says(name: str) -> None:
    pytest.importorskip("transformers")
    measured = check(name, OF_TRANSFORMERS[name])
    if name == "padding-row":
        assert measured["no padding index"] == 1 and measured["parameters of a LayerNorm / width"] == 2


def test_sinusoids_refuse_an_odd_width() -> None:
    assert documents.odd_width() == {"refuses width 5": 1.0}


def test_only_alibi_keeps_its_loss_with_a_longer_context() -> None:
    """After half the steps of the page, whose losses rise by 0.77 with rotary positions and by 0.01 with ALiBi."""
    losses = documents.longer(("rope", "alibi"), steps=150)
    grown = {name: losses[f"{name}, 4 x 64"] - losses[f"{name}, 1 x 64"] for name in ("rope", "alibi")}
    assert grown["rope"] > 0.2 > 0.05 > abs(grown["alibi"])


def test_every_measurement_has_a_row_and_every_row_a_measurement() -> None:
    named = {name for *_, cell in ROWS for name in re.findall(r"`([\w-]+)`", cell)}
    assert named == {*documents.CHECKS}
    assert {*FAST, *SLOW, *OF_TRANSFORMERS, "odd-width", "longer"} == {*documents.CHECKS}


@pytest.mark.parametrize("study", STUDIES)
def test_a_difference_is_that_of_its_study(study: str) -> None:
    rows = " ".join(row[1] for row in ROWS if f"#{study})" in row[2])
    for arm, key in STUDIES[study]:
        claim = nine_inputs().claim(study, arm, key)
        values = (claim.effect.mean, claim.effect.low, claim.effect.high)
        texts = ["{:.{}f} ({:.{}f} to {:.{}f}".format(*(x for v in values for x in (v, places))) for places in (3, 4)]
        assert any(text in f"{rows} {RIGHT}" for text in texts), texts
        if study == "rmsnorm":
            assert [f"{arm.tokens_per_second:,.0f}" in rows for arm in claim.results.arms] == [True, True]


def test_what_the_page_calls_right_is() -> None:
    for problem in documents.EXAMPLES:
        assert answer_of(problem).strip("$")[::-1].lstrip("0") == solve(problem)
    assert 3 * 96 * 4 * int(2 * 96 / 3) == 2 * 96 * 4 * 96
    defaults = {name: each.default for name, each in inspect.signature(nn.TransformerEncoderLayer).parameters.items()}
    assert (defaults["norm_first"], defaults["dim_feedforward"], defaults["dropout"]) == (False, 2048, 0.1)
    assert defaults["activation"] is torch.nn.functional.relu
    rates = torch.atan2(documents.sinusoids(2, 64)[1, 0::2], documents.sinusoids(2, 64)[1, 1::2])
    assert torch.allclose(rates, 10_000.0 ** (-torch.arange(0, 64, 2).double() / 64), rtol=1e-12)

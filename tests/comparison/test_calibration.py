"""Calibration: A/A pairs, their noise, and its use by later comparisons."""

import itertools
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from typer.testing import CliRunner

import partwise
from comparisons import ARITHMETIC
from partwise.cli import app
from partwise.comparison.calibration import false_positive_rate
from partwise.comparison.design.request import Request
from partwise.comparison.experiment import make_comparison
from partwise.comparison.noise_store import CALIBRATIONS_FILE, expected_noise, positive_control_power, read_calibrations
from partwise.comparison.results import Results
from partwise.config import ConfigError
from partwise.model import Transformer
from partwise.train.config import run_config
from partwise.train.loop import Run


def request(**values: Any) -> Request:
    return Request.from_dict({"preset": "mingpt", "change": ["ffn=swiglu"], "data": "arithmetic", **values})


def test_reinitialization_changes_one_family_only(here: Path) -> None:
    own, other = (
        run_config("mingpt", *ARITHMETIC, *words, data="arithmetic") for words in ([], ["train.reinitialize=ffn"])
    )
    one, two = (Run(config) for config in (own, other))
    for a, b in zip(one.model.logical_tensors(), two.model.logical_tensors(), strict=True):
        reinitialized = ".ffn." in a.name and a.role != "vector"
        assert torch.equal(a.data, b.data) == (not reinitialized), a.name
        if reinitialized:
            assert math.isclose(a.data.std().item(), b.data.std().item(), rel_tol=0.25)
    assert (one.batch().inputs == two.batch().inputs).all()


def test_reinitializing_an_unknown_family_is_refused(here: Path) -> None:
    with pytest.raises(ConfigError, match=r"train\.reinitialize=fnn: .* attention.*ffn"):
        Transformer(partwise.preset("mingpt", vocab_size=9), reinitialize="fnn")


@given(st.lists(st.floats(-1, 1), min_size=3, max_size=8))
def test_false_positive_rate_equals_enumeration(differences: list[float]) -> None:
    x = np.array(differences)
    if np.abs(x).min() == 0 or len(set(np.abs(x).tolist())) == 1:
        return
    found = [
        stats.ttest_1samp(np.array(signs) * x, 0.0).pvalue < 0.05 for signs in itertools.product((1, -1), repeat=len(x))
    ]
    share, number = false_positive_rate(x)
    assert number == len(found) / 2
    assert math.isclose(share, float(np.mean(found)), abs_tol=1e-12)


def test_a_calibration_is_used_for_the_same_task_only(here: Path) -> None:
    words = [
        "calibrate",
        "mingpt",
        *ARITHMETIC,
        "--data",
        "arithmetic",
        "--seeds",
        "4",
        "--name",
        "noise",
        "--failure",
        "100",
    ]
    done = CliRunner().invoke(app, [*words, "--positive-control", "d_model=32"])
    assert done.exit_code == 0, done.output
    assert (
        "seed SD" in done.output and "false positives" in done.output and "positive control: d_model=32" in done.output
    )
    (entry,) = read_calibrations().values()
    results = Results.from_json(Path("runs") / "noise" / "results.json")
    assert entry["sd"] == results.effects[0].sd_pooled and math.isclose(
        entry["df"], 6 / (1 + entry["correlation"] ** 2)
    )
    df = entry["df"]
    low, high = (entry["sd"] * math.sqrt(df / stats.chi2.ppf(p, df)) for p in (0.975, 0.025))
    assert math.isclose(entry["sd_low"], low, rel_tol=1e-9) and math.isclose(entry["sd_high"], high, rel_tol=1e-9)
    same = make_comparison(request(common=ARITHMETIC))
    assert expected_noise(same.plan, same.prepare()).sd == entry["sd"]
    longer = make_comparison(request(common=[*ARITHMETIC, "train.steps=13"]))
    assert "guessed" in expected_noise(longer.plan, longer.prepare()).source
    controlled = request(common=ARITHMETIC, seeds=8, positive_control="d_model=32")
    store = read_calibrations()
    for effect, refused in ((-100 * entry["sd"], False), (-0.1 * entry["sd"], True)):
        CALIBRATIONS_FILE.write_text(
            json.dumps({key: {**value, "control_effect": effect} for key, value in store.items()})
        )
        plan = make_comparison(controlled).plan
        if refused:
            with pytest.raises(ConfigError, match="a control needs 95%"):
                positive_control_power(plan, same.prepare())
        else:
            assert positive_control_power(plan, same.prepare()) == 1.0
            assert positive_control_power(same.plan, same.prepare()) is None
    CALIBRATIONS_FILE.write_text("{ not json")
    assert "noise" in expected_noise(same.plan, same.prepare()).source  # falls back to the comparison itself

    common = [word for each in ARITHMETIC for word in ("--common", each)]
    planned = CliRunner().invoke(
        app, ["plan", "mingpt", "ffn=swiglu", *common, "--data", "arithmetic", "--effect", "0.1"]
    )
    assert planned.exit_code == 0 and "8, 16, 32" in planned.output and "power for 0.1" in planned.output

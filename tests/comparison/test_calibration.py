"""Calibration: A/A pairs, their noise, and its use by later comparisons."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from typer.testing import CliRunner

import partwise
from comparisons import ARITHMETIC
from partwise.ablation.request import Request
from partwise.ablation.run_comparison import make_comparison
from partwise.cli import app
from partwise.comparison.noise_store import (
    CALIBRATIONS_FILE,
    FORMAT,
    configuration_key,
    expected_noise,
    ignored_calibrations,
    positive_control_power,
    read_calibrations,
    write_calibration,
)
from partwise.comparison.results import Results
from partwise.config import ConfigError
from partwise.model import Transformer
from partwise.train.config import run_config
from partwise.train.loop import Run

LEARNING = [*ARITHMETIC, "train.lr=1e-2"]
"""With which no tiny run fails: all end below the loss of guessing."""


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


def test_a_calibration_is_used_for_the_same_configuration_only(here: Path) -> None:
    words = ["calibrate", "mingpt", *LEARNING, "--data", "arithmetic", "--seeds", "4", "--name", "noise"]
    words += ["--failure", "100"]
    done = CliRunner().invoke(app, [*words, "--positive-control", "d_model=32"])
    assert done.exit_code == 0, done.output
    assert "SD of a difference" in done.output and "positive control: d_model=32" in done.output
    assert "of 4 subsets of 3 pairs" in done.output
    (entry,) = read_calibrations().values()
    results = Results.from_json(Path("runs") / "noise" / "results.json")
    pairs = np.array(results.effects[0].differences)
    assert math.isclose(entry["sd_difference"], pairs.std(ddof=1), rel_tol=1e-9)
    low, high = (entry["sd_difference"] * math.sqrt(3 / stats.chi2.ppf(p, 3)) for p in (0.975, 0.025))
    assert math.isclose(entry["sd_low"], low, rel_tol=1e-9) and math.isclose(entry["sd_high"], high, rel_tol=1e-9)
    assert math.isclose(entry["p_mean"], stats.ttest_1samp(pairs, 0).pvalue, rel_tol=1e-9)
    write_entry(failure=None)
    same = make_comparison(request(common=LEARNING))
    noise = expected_noise(same.plan, same.prepare().hash)
    assert (noise.sd, noise.df) == (entry["sd_difference"], 3) and "A/A pairs of noise" in noise.source
    assert noise.upper_sd > noise.sd and expected_noise(same.plan, same.prepare().hash, 0.5).upper_sd == 0.5
    for setting in ("train.steps=13", "optimizer=lion", "train.lr=1e-3", "schedule=cosine"):
        other = make_comparison(request(common=[*LEARNING, setting]))
        assert "guess" in expected_noise(other.plan, other.prepare().hash).source, setting
    machine = make_comparison(request(common=[*LEARNING, "train.threads=2", "train.save_every=7"]))
    assert expected_noise(machine.plan, machine.prepare().hash) == noise

    write_entry(failure="the A/A pairs differ")
    assert "guess" in expected_noise(same.plan, same.prepare().hash).source, "a calibration that failed is not used"
    CALIBRATIONS_FILE.write_text(json.dumps({"arithmetic 1234, 999 parameters": {"sd": 0.1, "correlation": 0.5}}))
    assert read_calibrations() == {} and "ignored 1 calibration from an older version" in str(ignored_calibrations())
    CALIBRATIONS_FILE.write_text("{ not json")
    assert read_calibrations() == {} and "its calibrations are ignored" in str(ignored_calibrations())


def test_a_changed_calibration_is_told_and_not_used(here: Path) -> None:
    write_calibration("one", {"format": FORMAT, "sd_difference": 0.01})
    write_calibration("two", {"format": FORMAT, "sd_difference": 0.02})
    assert ignored_calibrations() is None
    CALIBRATIONS_FILE.write_text(CALIBRATIONS_FILE.read_text().replace("0.01", "0.07"))
    assert [entry["sd_difference"] for entry in read_calibrations().values()] == [0.02]
    assert "edited since; run `partwise calibrate` again" in str(ignored_calibrations())
    CALIBRATIONS_FILE.write_text(CALIBRATIONS_FILE.read_text().replace('"two"', '"twp"'))
    assert read_calibrations() == {} and "ignored 2 calibrations" in str(ignored_calibrations()), (
        "an entry belongs to its key"
    )
    write_calibration("two", {"format": FORMAT, "sd_difference": 0.02})
    write_calibration("one", {"format": FORMAT, "sd_difference": 0.03})
    assert ignored_calibrations() is None and sorted(read_calibrations()) == ["one", "two"]


def write_entry(**changes: Any) -> None:
    (key, entry), *_ = json.loads(CALIBRATIONS_FILE.read_text()).items()
    write_calibration(key, {name: value for name, value in entry.items() if name != "sha256"} | changes)


def test_pairs_of_real_arms_go_before_null_pairs(here: Path) -> None:
    options = {"preset": "mingpt", "data": "arithmetic", "common": LEARNING, "seeds": 3}
    make_comparison(Request.from_dict({**options, "arms": ["ffn=swiglu", "norm=rmsnorm"]}), "both").run()
    pairs = {
        effect.arm: np.array(effect.differences) for effect in Results.from_json(Path("runs/both/results.json")).effects
    }
    same, other = (make_comparison(request(change=[arm], common=LEARNING)) for arm in ("ffn=swiglu", "ffn=geglu"))
    noise = expected_noise(same.plan, same.prepare().hash)
    assert math.isclose(noise.sd, pairs["ffn=swiglu"].std(ddof=1), rel_tol=1e-9) and noise.df == 2
    assert "3 pairs of both" in noise.source
    pooled = expected_noise(other.plan, other.prepare().hash)
    assert math.isclose(pooled.sd**2, np.mean([x.var(ddof=1) for x in pairs.values()]), rel_tol=1e-9)
    assert math.isclose(pooled.df, 4 / 1.25)


def test_a_positive_control_needs_power(here: Path) -> None:
    controlled = make_comparison(request(common=LEARNING, seeds=8, positive_control="d_model=32"))
    dataset, plan = controlled.prepare(), controlled.plan
    key = configuration_key(plan.arms[0].config.to_stored(), dataset.hash)
    entry = {"format": FORMAT, "failure": None, "positive_control": "d_model=32", "control_sd": 0.01, "seeds": 8}
    for effect, refused in ((-0.1, False), (-0.01, True)):
        write_calibration(key, {**entry, "control_effect": effect})
        if refused:
            with pytest.raises(ConfigError, match="a control needs 95%"):
                positive_control_power(plan, dataset.hash)
        else:
            assert positive_control_power(plan, dataset.hash) == 1.0
            without = make_comparison(request(common=LEARNING)).plan
            assert positive_control_power(without, dataset.hash) is None


def test_plan_prints_time_and_power(here: Path) -> None:
    common = [word for each in LEARNING for word in ("--common", each)]
    words = ["plan", "mingpt", "ffn=swiglu", *common, "--data", "arithmetic", "--effect", "0.1", "--protocol"]
    planned = CliRunner().invoke(app, words)
    assert planned.exit_code == 0 and "8, 16, 32" in planned.output and "detected" in planned.output
    assert "a guess" in planned.output


def test_the_seed_of_initial_weights_can_be_set_alone() -> None:
    one, same_weights, same_order = (
        Run(run_config("mingpt", *ARITHMETIC, *words, data="arithmetic"))
        for words in (["train.seed=1"], ["train.seed=2", "train.init_seed=1"], ["train.seed=1", "train.init_seed=2"])
    )

    def weights(run: Run) -> list[torch.Tensor]:
        return list(run.model.state_dict().values())

    def batch(run: Run) -> np.ndarray:
        return run.batch().inputs

    assert all(map(torch.equal, weights(one), weights(same_weights)))
    assert not np.array_equal(batch(one), batch(same_weights))
    assert not all(map(torch.equal, weights(one), weights(same_order)))
    assert np.array_equal(batch(one), batch(same_order))


def test_vary_splits_the_noise_by_its_source(here: Path) -> None:
    """Every cell of the stored table is the loss of a run of that initialization in that order."""
    words = ["calibrate", "mingpt", *LEARNING, "--data", "arithmetic", "--failure", "100", "--vary", "init,order"]
    done = CliRunner().invoke(app, [*words, "--seeds", "3", "--name", "split"])
    assert done.exit_code == 0, done.output
    assert "3 initializations x 3 orders" in done.output and "interaction and residual" in done.output
    split = json.loads((here / "runs/split/variance_split.json").read_text())
    arms = Results.from_json(here / "runs/split/results.json").arms
    values = np.array([arm.values for arm in arms], dtype=float)
    rest = values - values.mean(0) - values.mean(1, keepdims=True) + values.mean()
    assert split["rest"]["sd"] == pytest.approx(math.sqrt((rest**2).sum() / 4), rel=1e-9)
    assert split["n_init"] == split["n_order"] == 3
    for row, init in enumerate(range(3)):
        for column, trial in enumerate(arms[row].trials):
            path = next((here / "runs/split/runs").glob(f"{row}-*/seed-{column}/run.json"))
            train = json.loads(path.read_text())["config"]["train"]
            assert (train["init_seed"], train["seed"], trial.seed) == (init, column, column)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--vary", "init"], "--vary init: expected init,order"),
        (["--vary", "init,seed"], "expected init,order"),
        (["--vary", "init,order", "--seeds", "2"], "--seeds 2: must be at least 3"),
        (
            ["--vary", "init,order", "--positive-control", "d_model=64"],
            "--positive-control is an option of",
        ),
        (["--vary", "init,order", "--family", "ffn"], "not of `calibrate --vary init,order`"),
    ],
)
def test_what_vary_cannot_do_is_refused(here: Path, words: list[str], message: str) -> None:
    done = CliRunner().invoke(app, ["calibrate", "mingpt", *LEARNING, "--data", "arithmetic", *words])
    assert isinstance(done.exception, ConfigError) and message in str(done.exception)

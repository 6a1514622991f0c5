"""The noise of a command: A/A pairs on other seeds, and their use by `plan` and `compare --dry-run`."""

import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from scipy import stats
from typer.testing import CliRunner

from partwise.any_code.command_plan import OTHER_SEEDS
from partwise.cli import app
from partwise.cli.commands.power_table import TrialTime
from partwise.comparison.noise_store import CALIBRATIONS_FILE, read_calibrations
from partwise.comparison.stats.noise import Noise
from partwise.comparison.stats.simulated_power import Design, detectable_effect
from partwise.config import ConfigError
from programs import ARMS, COMMAND, METRIC, comparison, expected, write_program


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_program(tmp_path)
    (tmp_path / "e.yaml").write_text(yaml.safe_dump({"command": COMMAND, "arms": ARMS, "metric": METRIC}))
    return tmp_path


def partwise(*words: str) -> str:
    done = CliRunner().invoke(app, list(words))
    if isinstance(done.exception, ConfigError):
        raise done.exception
    assert done.exit_code == 0, done.output
    return done.output


def test_a_calibration_runs_the_baseline_on_other_seeds_and_plans_use_it(here: Path) -> None:
    with pytest.raises(ConfigError, match=r"noise of val loss is unknown.*`partwise calibrate e\.yaml`.*--sd 0\.01"):
        partwise("plan", "e.yaml")
    shown = partwise("calibrate", "e.yaml", "--seeds", "6")
    assert "calibration of the val loss" in shown and "re-init" not in shown and "validation text" not in shown
    told = " ".join(shown.split())
    assert "overstates the noise of paired arms: a pilot of the real arms (`partwise compare ... --seeds 4`)" in told
    power = stats.nct.sf(stats.t.isf(0.005, 5), 5, 2 * math.sqrt(6))
    assert f"6 pairs show a mean that is off by 2 SDs of a difference with a probability of {100 * power:.0f}%" in told
    (entry,) = read_calibrations().values()
    pairs = [expected(seed + OTHER_SEEDS, 0.0) - expected(seed, 0.0) for seed in range(6)]
    sd = float(np.std(pairs, ddof=1))
    assert math.isclose(entry["sd_difference"], sd, rel_tol=1e-4) and entry["metric"] == "val loss"

    document = json.loads(partwise("plan", "e.yaml", "--effect", "0.1", "--machines", "3", "--workers", "2", "--json"))
    noise = Noise(entry["sd_difference"], 5, "")
    assert math.isclose(document["sd"], noise.upper_sd) and "other seeds" not in document["noise"]
    assert "share no seed" in document["noise"] and "overstates" in document["noise"] and document["machines"] == 3
    for design in document["designs"]:
        assert design["seconds"] == entry["seconds"] * math.ceil(2 * design["seeds"] / 6)
        found = Design((design["seeds"],), 1, 0.01)
        assert design["minimum_detectable_effect"] == detectable_effect(found, noise.upper_sd)
    assert "time on 3 machines, at most" in " ".join(partwise("plan", "e.yaml", "--machines", "3").split())
    dry = " ".join(partwise("compare", "e.yaml", "--seeds", "4", "--dry-run").split())
    smallest = detectable_effect(Design((4,), 1, 0.01), noise.upper_sd)
    assert f"minimum detectable effect of 4 seeds at 80% power: {smallest:.4f}" in dry


def test_pairs_of_real_arms_go_before_other_seeds(here: Path) -> None:
    partwise("calibrate", "e.yaml", "--seeds", "4")
    results = comparison(here, "real").run()
    pairs = [x for x in results.effects[0].differences if x is not None]
    document = json.loads(partwise("plan", "e.yaml", "--json"))
    r = np.corrcoef(*([value for value in arm.values if value is not None] for arm in results.arms[:2]))[0, 1]
    assert (
        f"pairs of real, an earlier comparison with this baseline; its paired runs correlate with r = {r:.2f}"
        in (document["noise"])
    )
    assert math.isclose(document["sd"], Noise(float(np.std(pairs, ddof=1)), 3, "").upper_sd, rel_tol=1e-9)


def test_a_calibration_holds_for_its_command_and_metric_only(here: Path) -> None:
    partwise("calibrate", "e.yaml", "--seeds", "3")
    for changes in ({"command": f"{COMMAND} --gain=0.2"}, {"metric": {**METRIC, "name": "another"}}):
        other: dict[str, Any] = {"command": COMMAND, "arms": ARMS, "metric": METRIC, **changes}
        (here / "other.yaml").write_text(yaml.safe_dump(other))
        with pytest.raises(ConfigError, match="is unknown"):
            partwise("plan", "other.yaml")
        dry = " ".join(partwise("compare", "other.yaml", "--dry-run").split())
        assert "is unknown, and so is what these seeds can detect" in dry
        dry = " ".join(partwise("compare", "other.yaml", "--dry-run", "--sd", "0.02").split())
        assert f"{detectable_effect(Design((5,), 1, 0.01), 0.02):.4f}" in dry
    CALIBRATIONS_FILE.unlink()
    with pytest.raises(ConfigError, match="is unknown"):
        partwise("plan", "e.yaml")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["calibrate", "e.yaml", "--seeds", "2"], "--seeds 2: must be at least 3"),
        (["calibrate", "e.yaml", "--data", "arithmetic"], "--data is an option of `"),
        (["calibrate", "e.yaml", "--family", "attention"], "--family is an option of `calibrate PRESET`"),
        (["calibrate", "e.yaml", "--positive-control", "x=1"], "--positive-control is an option of `"),
        (["plan", "e.yaml", "--claims", "2"], "--claims is an option of `plan --sd X`, not of `plan FILE.yaml`"),
        (
            ["calibrate", "e.yaml", "--vary", "init,order"],
            "see `partwise calibrate --help file`",
        ),
        (["plan", "e.yaml", "--arm", "x"], "--arm is an option of `plan PRESET`, not of `plan FILE.yaml`"),
        (["plan", "e.yaml", "ffn=swiglu"], "ffn=swiglu: unexpected argument; the arms are defined in e.yaml"),
        (["calibrate", "e.yaml", "ffn=swiglu"], "ffn=swiglu: unexpected argument; the arms are defined in e.yaml"),
        (["plan", "e.yaml", "--data", "arithmetic"], "--data is an option of `"),
        (["plan", "e.yaml", "--sd", "-1"], "sd=-1"),
    ],
)
def test_options_that_commands_do_not_have_are_refused(here: Path, words: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        partwise(*words)
    assert not (here / "runs").exists()


def test_trials_left_over_take_a_whole_round() -> None:
    assert TrialTime(10.0, arms=2, workers=2, machines=4).of(4) == 10.0
    assert TrialTime(10.0, arms=3, workers=2, machines=4).of(3) == 20.0
    assert TrialTime(10.0, arms=3).of(3) == 90.0

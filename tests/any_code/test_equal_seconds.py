"""Matching commands in seconds: short trials give the time of a step, and the steps of the arms follow from it."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from partwise.any_code.command_comparison import CommandComparison
from partwise.any_code.equal_seconds import match_seconds
from partwise.cli import main
from partwise.comparison.experiment import Comparison
from partwise.comparison.trials.trial import Trial
from partwise.config import ConfigError
from programs import PYTHON, comparison

SLOW = """\
import argparse, random, time
parser = argparse.ArgumentParser()
parser.add_argument("--seed", type=int)
parser.add_argument("--steps", type=int, default=200)
parser.add_argument("--step-seconds", type=float, default=0)
parser.add_argument("--start", type=float, default=0)
options = parser.parse_args()
time.sleep(options.start + options.steps * options.step_seconds)
print(f"val loss {1 / options.steps + random.Random(options.seed).gauss(0, 0.01)}")
"""
COMMAND = f"{PYTHON} slow.py --seed={{seed}} --steps={{steps}} {{args}}"
STEP = 0.002


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "slow.py").write_text(SLOW)
    return tmp_path


def steady_seconds(trial: Trial) -> float:
    """What the trial takes without the load of this machine: from the arguments that it ran with."""
    config = json.loads((trial.folder / "job.json").read_text())["job"]["config"]
    options = dict(word.removeprefix("--").split("=") for word in config["args"])
    return 0.7 + float(options.get("start", 0)) + config["settings"]["steps"] * float(options["step-seconds"])


def matched(here: Path, name: str = "c", match: str = "seconds", steps: Any = 200, **changes: Any) -> CommandComparison:
    arms = {
        "base": {"args": f"--step-seconds={STEP} --start=0.3"},
        "twice": {"args": f"--step-seconds={2 * STEP}"},  # it starts sooner, which must not count
    }
    settings = {"command": COMMAND, "arms": arms, "settings": {"steps": steps}, "negative_control": True, **changes}
    return comparison(here, name, {"seeds": 2, "match": match}, **settings)


def test_an_arm_with_steps_of_twice_the_time_gets_half_as_many(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("partwise.any_code.equal_seconds.seconds_of", steady_seconds)
    made = matched(here)
    results = made.run()
    assert results.match is not None
    (match,) = results.match.arms
    assert (match.arm, match.key, match.old, match.new) == ("twice", "steps", 200, 100)
    base, twice, control = (arm.config.settings["steps"] for arm in made.plan.arms)
    assert (base, twice, control) == (200, match.new, 200)
    run = json.loads((here / "runs/c/runs/1-twice/seed-0/job.json").read_text())
    assert run["job"]["config"]["settings"]["steps"] == match.new
    report = (here / "runs/c/report.md").read_text()
    assert (
        f"steps of twice changed from 200 to {match.new}" in report
        and "seconds are those of one trial, the median" in report
    )
    assert not (here / "runs/c/timing").exists()
    monkeypatch.undo()
    monkeypatch.chdir(here)
    repeated = matched(here).run()  # the times are stored
    assert repeated.match == results.match


def test_an_interrupted_timing_keeps_its_finished_trials(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from partwise.comparison.trials import executor as trials_executor

    original, finished = trials_executor.run_trials, []

    def interrupt(executor: Any, trials: Any, on_progress: Any) -> None:
        original(executor, trials[:3], on_progress)
        finished.extend(trial.folder / "result.json" for trial in trials[:3])
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(trials_executor, "run_trials", interrupt)
        with pytest.raises(KeyboardInterrupt):
            matched(here).run()
    before = [path.stat().st_mtime_ns for path in finished]
    after: list[int] = []

    def watch(executor: Any, trials: Any, on_progress: Any) -> None:
        original(executor, trials, on_progress)
        after.extend(path.stat().st_mtime_ns for path in finished)

        raise KeyboardInterrupt

    monkeypatch.setattr(trials_executor, "run_trials", watch)
    with pytest.raises(KeyboardInterrupt):
        matched(here).run()
    assert after == before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"match": "flops"}, "--match flops: partwise cannot measure the flops of a command: use --match seconds"),
        ({"steps": 5}, "--match seconds: arm 'base' has steps=5: give the command the placeholder"),
        ({"steps": "many"}, "has steps=many"),
        ({"steps": True}, "has steps=True"),
        ({"command": COMMAND.replace("{steps}", "9"), "settings": {}}, "has steps=None"),
    ],
)
def test_what_cannot_be_matched_is_refused_before_anything_runs(
    here: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        matched(here, **options)
    assert not (here / "runs").exists()


def test_a_short_trial_that_fails_is_told(here: Path) -> None:
    arms = {"base": {}, "fails": {"args": "--step-seconds=never"}}
    with pytest.raises(ConfigError, match=r"a short trial of fails failed: exit status 2.*its output is in"):
        matched(here, arms=arms).run()


def test_a_command_that_ignores_its_steps_is_told(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("partwise.any_code.equal_seconds.seconds_of", lambda trial: 0.25)
    with pytest.raises(ConfigError, match=r"more steps of base took no more time: does the command use {steps}\?"):
        matched(here).run()


def test_rounding_to_whole_steps_must_stay_within_a_percent(here: Path) -> None:
    plan = matched(here, steps=40).plan
    found, matching = match_seconds(plan, {"base": 1.0, "twice": 2.0})
    assert found.arm("twice").config.settings["steps"] == 20 and matching.arms[0].residual == 0.0
    with pytest.raises(
        ConfigError, match=r"twice still differs by -1\.2% at the nearest steps=13, more than 1%: use more steps"
    ):
        match_seconds(plan, {"base": 1.0, "twice": 3.04})


def test_the_command_line_has_it(here: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    made: list[Comparison] = []
    monkeypatch.setattr(Comparison, "run", lambda self, on_progress=None: made.append(self) or exit_now())
    metric = {"name": "loss", "margin": 0.1, "pattern": r"val loss (\S+)"}
    arms = {"a": {}, "b": {"args": "--start=0.1"}}
    experiment = {"command": COMMAND, "settings": {"steps": 100}, "arms": arms, "metric": metric}
    (here / "e.yaml").write_text(yaml.safe_dump(experiment))
    monkeypatch.setattr("sys.argv", ["partwise", "compare", "e.yaml", "--match", "seconds", "--seeds", "2"])
    with pytest.raises(SystemExit):
        main()
    assert made and made[0].match == "seconds" and made[0].fixed().values["match"] == "seconds"


def exit_now() -> None:
    raise SystemExit(0)

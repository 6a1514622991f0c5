"""`--horizons`: every trial has a run that ends at each number of steps, and each is the run that it would be alone."""

import json
from pathlib import Path

import pytest

import partwise
from comparisons import SETTINGS, TINY
from partwise.ablation.run_comparison import plan_comparison
from partwise.comparison.experiment import Comparison
from partwise.config import ConfigError

WSD = [*(word for word in TINY if not word.startswith("train.steps")), "schedule=wsd", "schedule.warmup=2"]
COMMON = [*WSD, "schedule.decay_fraction=0.5", "train.lr=0.01"]


def compare(name: str, *common: str, **options: object) -> Comparison:
    settings = {**SETTINGS, "common": [*COMMON, *common], "seeds": 2, "name": name, "progress": False, **options}
    return partwise.compare("mingpt", "positions=rope", **settings)  # type: ignore[arg-type]


def test_each_horizon_has_the_values_of_a_comparison_of_its_own(here: Path) -> None:
    results = compare("several", horizons=[4, 8, 16]).results
    for steps in (4, 8, 16):
        alone = compare(f"alone-{steps}", f"train.steps={steps}").results
        for arm, other in zip(results.arms, alone.arms, strict=True):
            assert [dict(trial.horizons)[steps] for trial in arm.trials] == [trial.value for trial in other.trials]
        point = next(point for point in results.claims[0].effect_over_horizons if point.step == steps)
        assert point.mean == pytest.approx(alone.effects[0].mean, abs=1e-12)
    assert [arm.values for arm in results.arms] == [arm.values for arm in alone.arms]
    # of 16 steps, the run of 8 steps took the first 8 - 4 + 1, and the run of 4 steps 4 - 2 + 1 of these
    metrics = (here / "runs/several/runs/0-mingpt/seed-0/metrics.jsonl").read_text().splitlines()
    alone_metrics = (here / "runs/alone-16/runs/0-mingpt/seed-0/metrics.jsonl").read_text().splitlines()
    steps_of = [[json.loads(line)["step"] for line in lines] for lines in (metrics, alone_metrics)]
    assert steps_of[0] == steps_of[1]


def test_a_finished_trial_is_not_trained_again_and_an_interrupted_one_continues(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = compare("whole", horizons=[4, 8, 16]).results

    def interrupt(comparison: Comparison) -> None:
        if any(trial.progress() >= 4 for trial in comparison.trials):
            raise KeyboardInterrupt

    settings = {**SETTINGS, "common": COMMON, "seeds": 2, "name": "cut", "horizons": [4, 8, 16]}
    with pytest.raises(KeyboardInterrupt):
        plan_comparison("mingpt", "positions=rope", **settings).run(interrupt)
    folder = here / "runs/cut/runs/0-mingpt/seed-0"
    first = folder / "horizons/4/result.json"
    written = first.stat().st_mtime_ns if first.exists() else None
    resumed = compare("cut", horizons=[4, 8, 16]).results
    assert [arm.values for arm in resumed.arms] == [arm.values for arm in whole.arms]
    assert written in (None, first.stat().st_mtime_ns)


def test_a_changed_result_of_a_shorter_run_is_refused(here: Path) -> None:
    compare("whole", horizons=[4, 8])
    path = here / "runs/whole/runs/1-positions=rope/seed-1/horizons/4/result.json"
    path.write_text(path.read_text().replace('"step": 4', '"step": 5'))
    with pytest.raises(ConfigError, match="was changed after the run had ended"):
        compare("whole", horizons=[4, 8])


def test_horizons_are_part_of_the_plan(here: Path) -> None:
    compare("whole", horizons=[4, 8])
    with pytest.raises(ConfigError, match="another"):
        compare("whole", horizons=[2, 8])


def test_several_seeds_in_one_process(here: Path) -> None:
    one = compare("one", horizons=[4, 8], seeds=3).results
    vectorized = compare("vmap", horizons=[4, 8], seeds=3, seeds_per_process=3).results
    for arm, other in zip(one.arms, vectorized.arms, strict=True):
        for trial, same in zip(arm.trials, other.trials, strict=True):
            assert dict(trial.horizons) == pytest.approx(dict(same.horizons), abs=1e-5)


def test_tuning_runs_have_their_own_length(here: Path) -> None:
    comparison = compare("tuned", horizons=[4, 8], tune="train.lr=0.003,0.01", tune_steps=3)
    run = json.loads(next((here / "runs/tuned/tuning").glob("*/seed-*/run.json")).read_text())
    assert run["config"]["train"]["steps"] == 3
    assert all(len(trial.horizons) == 2 for arm in comparison.results.arms for trial in arm.trials)
    with pytest.raises(ConfigError, match="another"):
        compare("tuned", horizons=[4, 8], tune="train.lr=0.003,0.01", tune_steps=4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"horizons": [8]}, "at least two"),
        ({"horizons": [8, 4]}, "ascending"),
        ({"horizons": [4, 4]}, "ascending"),
        ({"horizons": [0, 4]}, "ascending"),
        ({"horizons": [4, 8], "match": "flops"}, "leave out one of them"),
        ({"horizons": [4, 8], "common": [*COMMON, "train.steps=9"]}, "leave out train.steps"),
        ({"horizons": [4, 8], "arms": ["ffn=swiglu train.steps=9"]}, "leave out train.steps"),
        ({"tune_steps": 4}, "nothing is tuned"),
    ],
)
def test_what_contradicts_horizons_is_refused(here: Path, options: dict[str, object], message: str) -> None:
    settings = {**SETTINGS, "common": COMMON, **options}
    with pytest.raises(ConfigError, match=message) as error:
        plan_comparison("mingpt", "positions=rope", **settings)
    assert "\n" not in str(error.value)


def test_the_compute_saved_is_stated(here: Path) -> None:
    results = compare("whole", horizons=[4, 8, 16], failure=100.0, margin=1e-6).results
    claim = results.claims[0]
    assert claim.compute_saved is not None
    report = (here / "runs/whole/report.md").read_text()
    assert "Compute saved" in report and "Numbers of steps" in report
    plain = compare("plain", "train.steps=4").results
    assert plain.claims[0].compute_saved is None
    if plain.effects[0].verdict:
        assert "it needs runs that end at several numbers of steps" in (here / "runs/plain/report.md").read_text()

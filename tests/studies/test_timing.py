"""Steps of the arms of a study are timed in turn, and the seconds saved follow from them."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from partwise.ablation.throughput import STEPS_IN_TURN
from partwise.cli import app
from partwise.config import ConfigError
from partwise.machine import hardware
from partwise.studies.claims import find_outcomes
from partwise.studies.claims_page import facts, horizon_table
from partwise.studies.study import LIBRARY, Study, StudyResults, find_study
from partwise.studies.timing import time_study


@pytest.fixture
def rates(here: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """Tokens per second by arm, which are measured instead of the true ones."""
    rates = {"llama": 1000.0, "tie_embeddings=false": 250.0}

    def measured(plan: Any, dataset: Any, runtime: Any, plans: Any, steps: int) -> tuple[dict[str, float], None]:
        assert steps == STEPS_IN_TURN and set(plans) == set(rates) == {arm.name for arm in plan.arms}
        return rates, None

    monkeypatch.setattr("partwise.ablation.run_workload.measure_throughput", measured)
    monkeypatch.setattr("partwise.ablation.run_workload.RunWorkload.dataset", lambda *_: None)
    return rates


def seconds_cell(study: Study) -> str:
    return list(horizon_table(study, find_outcomes([study])[study.name]))[-1].split("|")[-2].strip()


def test_the_seconds_saved_follow_from_steps_timed_in_turn(rates: dict[str, float]) -> None:
    study = find_study("tying")
    assert study.results is not None and study.results.is_relative_to(LIBRARY)
    done = CliRunner().invoke(app, ["study", "time", "tying"])
    assert done.exit_code == 0
    (timed,) = StudyResults.from_json(study.own_results).comparisons.values()
    saved = timed.claims[0].compute_saved
    assert saved is not None and timed.timed_on == hardware()["cpu"]
    steps, seconds = saved.ratios["steps"], saved.ratios["seconds"]
    told = f"tying, shakespeare, tie_embeddings=false train.lr=4e-3: {1 / (seconds.ratio or math.nan):.2f} times ("
    assert told in " ".join(done.output.split()) and "as many seconds" in " ".join(done.output.split())
    for name in ("ratio", "low", "high"):
        assert math.isclose(getattr(seconds, name), getattr(steps, name) / 4, rel_tol=1e-12), "steps four times as long"
    assert [arm.tokens_per_second for arm in timed.arms] == [1000.0, 250.0]
    assert seconds_cell(study).startswith("0.21") and " ".join(facts([study])).endswith(
        f"Steps timed in turn on: {timed.timed_on}."
    )
    rates |= {"tie_embeddings=false": 1000.0}
    (again,) = time_study(study).comparisons.values()
    found = again.claims[0].compute_saved
    assert found is not None and found.ratios["seconds"] == found.ratios["steps"] == steps
    assert timed.effects == again.effects, "verdicts stay"


def test_seconds_of_shared_runs_are_not_shown_unless_timed_in_turn(here: Path) -> None:
    study = find_study("tying")
    stored = StudyResults.from_json(LIBRARY / "tying" / "results.json")
    (results,) = stored.comparisons.values()
    study.write(
        stored.model_copy(update={"comparisons": {"shakespeare": results.model_copy(update={"timed_on": None})}})
    )
    assert seconds_cell(study) == "–" and "timed in turn" not in " ".join(facts([study]))


def test_what_cannot_be_timed_is_refused(rates: dict[str, float]) -> None:
    study = find_study("tying")
    ((key, results),) = StudyResults.from_json(LIBRARY / "tying" / "results.json").comparisons.items()
    arms = (results.arms[0], results.arms[1].model_copy(update={"name": "tie_embeddings=false2"}))
    stored = StudyResults.from_json(LIBRARY / "tying" / "results.json")
    study.write(stored.model_copy(update={"comparisons": {key: results.model_copy(update={"arms": arms})}}))
    with pytest.raises(ConfigError, match=r"tying, shakespeare: its arms have changed since its results: run it again"):
        time_study(study)
    study.write(stored.model_copy(update={"comparisons": {"renamed": results}}))
    with pytest.raises(ConfigError, match="tying: its comparisons have changed since its results: run it again"):
        time_study(study)
    with pytest.raises(ConfigError, match="new has no results: `partwise study run new`"):
        time_study(replace(study, path=Path("new.yaml")))

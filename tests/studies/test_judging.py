"""Stored results judged again: every number of the package's verdicts follows from the values and losses stored beside it."""

import math
from dataclasses import fields
from functools import cache
from pathlib import Path

import pytest
from typer.testing import CliRunner

from partwise.cli import app
from partwise.comparison.results import Results
from partwise.config import ConfigError
from partwise.studies.judging import judge_again, judge_study
from partwise.studies.study import StudyResults, find_study, study_files


@cache
def stored(name: str) -> dict[str, Results]:
    """The stored comparisons of a study by key; none if it has not been run."""
    study = find_study(name)
    return dict(StudyResults.from_json(study.results).comparisons) if study.results else {}


WORDS = {"sentence", "differences"}
"""Fields that are not compared as they are: words may change, and the differences are compared one by one."""


@pytest.mark.parametrize("name", study_files())
def test_the_verdicts_of_the_package_follow_from_their_values(name: str) -> None:
    for results in stored(name).values():
        for old, new in zip(results.effects, judge_again(results).effects, strict=True):
            for key in {field.name for field in fields(old)} - WORDS:
                before, now = getattr(old, key), getattr(new, key)
                if isinstance(before, float) and isinstance(now, float):
                    assert math.isclose(before, now, rel_tol=1e-6, abs_tol=1e-12), key
                else:
                    assert before == now, key
            assert new.differences == pytest.approx(old.differences, rel=1e-6, abs=1e-12)


def test_a_study_is_judged_again_without_training(here: Path) -> None:
    study = find_study("token-shift")
    stored = judge_study(study)
    ((key, results),) = stored.comparisons.items()
    (claim,) = results.claims
    shifted = claim.model_copy(update={"effect": claim.effect.replace(mean=9.0, verdict="worse")})
    study.write(stored.model_copy(update={"comparisons": {key: results.model_copy(update={"claims": (shifted,)})}}))
    done = CliRunner().invoke(app, ["study", "judge", "token-shift"])
    assert done.exit_code == 0 and f"worse -> {claim.effect.verdict}" in done.output
    assert study.results == study.own_results and StudyResults.from_json(study.own_results) == stored
    again = CliRunner().invoke(app, ["study", "judge", "token-shift"])
    assert again.exit_code == 0 and "nothing changes" in again.output


def test_a_warning_of_the_ledger_is_kept() -> None:
    results = next(iter(stored("swiglu").values()))
    warned = results.model_copy(update={"warnings": (*results.warnings, "not recorded there")})
    assert judge_again(warned).warnings == judge_again(judge_again(warned)).warnings == warned.warnings


def test_what_cannot_be_judged_is_refused(here: Path) -> None:
    results = next(each for name in study_files() for each in stored(name).values() if each.tuning)
    tuning = results.tuning
    assert tuning is not None
    without = results.model_copy(update={"tuning": tuning.model_copy(update={"arms": ()})})
    with pytest.raises(ConfigError, match="run the comparison again"):
        judge_again(without)
    (here / "studies").mkdir(exist_ok=True)
    (here / "studies" / "not-run.yaml").write_text(find_study("swiglu").path.read_text())
    refused = CliRunner().invoke(app, ["study", "judge", "not-run"])
    assert isinstance(refused.exception, ConfigError)
    assert str(refused.exception) == "not-run has no results: `partwise study run not-run`"
    (claim, *_) = results.claims
    against_sum = claim.model_copy(update={"effect": claim.effect.replace(against="a + b")})
    with pytest.raises(ConfigError, match="a sum of effects"):
        judge_again(Results.model_copy(results, update={"claims": (against_sum,)}))

"""Stored results judged again: every number of the package's verdicts follows from the values and losses stored beside it."""

import math
from pathlib import Path

import pytest
from typer.testing import CliRunner

from partwise.cli import app
from partwise.comparison.results import Results
from partwise.config import ConfigError
from partwise.studies.judging import judge_again, judge_study
from partwise.studies.study import StudyResults, all_studies, find_study

STORED = {
    f"{study.name}, {key}": results
    for study in all_studies()
    if study.results
    for key, results in StudyResults.from_json(study.results).comparisons.items()
}


@pytest.mark.parametrize("key", STORED)
def test_the_verdicts_of_the_package_follow_from_their_values(key: str) -> None:
    stored = STORED[key]
    for old, new in zip(stored.effects, judge_again(stored).effects, strict=True):
        assert new.verdict == old.verdict and new.seeds_to_decide == old.seeds_to_decide
        for name in ("mean", "low", "high", "p_adjusted", "p_equivalence_adjusted", "tuning_error"):
            before, now = getattr(old, name), getattr(new, name)
            assert before == now or math.isclose(before, now, rel_tol=1e-6, abs_tol=1e-12), name


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
    results = next(iter(STORED.values()))
    warned = results.model_copy(update={"warnings": (*results.warnings, "not recorded there")})
    assert judge_again(warned).warnings == judge_again(judge_again(warned)).warnings == warned.warnings


def test_what_cannot_be_judged_is_refused(here: Path) -> None:
    results = next(each for each in STORED.values() if each.tuning)
    tuning = results.tuning
    assert tuning is not None
    without = results.model_copy(update={"tuning": tuning.model_copy(update={"arms": ()})})
    with pytest.raises(ConfigError, match="run the comparison again"):
        judge_again(without)
    (here / "studies").mkdir(exist_ok=True)
    (here / "studies" / "not-run.yaml").write_text(find_study("swiglu").path.read_text())
    refused = CliRunner().invoke(app, ["study", "judge", "not-run"])
    assert isinstance(refused.exception, ConfigError)
    assert str(refused.exception) == "not-run has no results: partwise study run not-run"
    (claim, *_) = results.claims
    against_sum = claim.model_copy(update={"effect": claim.effect.replace(against="a + b")})
    with pytest.raises(ConfigError, match="a sum of effects"):
        judge_again(Results.model_copy(results, update={"claims": (against_sum,)}))

"""Studies: the outcome of a claim follows from the verdict, and covers the setting of its comparisons only."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from comparisons import TINY
from partwise.cli import app
from partwise.comparison.stats.intervals import judge
from partwise.config import ConfigError
from partwise.studies.claims import markdown, overall, scope
from partwise.studies.study import StudyResults, find_study, outcome


@pytest.mark.parametrize(
    ("expected", "verdict", "diverged", "written"),
    [
        ("better", "better", 0, "reproduced"),
        ("better", "worse", 0, "not reproduced"),
        ("better", "equivalent", 0, "not reproduced"),
        ("better", "undecided", 0, "not testable here"),
        ("equivalent", "equivalent", 0, "reproduced"),
        ("worse", None, 2, "not testable here"),
        ("diverges", None, 2, "reproduced"),
        ("diverges", "worse", 0, "not reproduced"),
        (None, "better", 0, ""),
    ],
)
def test_the_outcome_follows_from_the_verdict_only(
    expected: str | None, verdict: str | None, diverged: int, written: str
) -> None:
    effect = replace(judge("a", "b", {0: 1.0, 1: 1.0, 2: 1.0}, {0: 1.0}), verdict=verdict, failed_arm=diverged)
    assert outcome(expected, effect) == written


def test_an_outcome_covers_the_setting_of_its_study_only(here: Path) -> None:
    folder = here / "studies"
    folder.mkdir()
    text = "claim: it helps\nsource: a paper\npublished: 1 to 2\ncomparisons:\n  one:\n    preset: mingpt\n"
    text += "    change: [attention.fused_qkv=false]\n    data: text.txt\n    seeds: 2\n    failure: 100\n"
    text += f"    common: {json.dumps(TINY)}\n"
    (folder / "same.yaml").write_text(text + "    grid: [train.steps=4]\n    expect: equivalent\n")
    study = find_study("same")
    assert overall(study) == "not run yet" and list(study.comparisons) == ["one train.steps=4"]
    done = CliRunner().invoke(app, ["study", "run", "same"])
    assert done.exit_code == 0, done.output
    assert overall(study) == "reproduced" and scope(study) == "text.txt, 4 and 12 steps only"
    assert (
        "| **reproduced** |" in markdown([study]) and "reproduced" in CliRunner().invoke(app, ["study", "list"]).output
    )
    assert "## The claim" in (Path("runs/study-same-one-train.steps=4") / "report.md").read_text()
    stored = StudyResults.from_json(folder / "same" / "results.json").comparisons["one train.steps=4"]
    assert not any(trial.training_curve or trial.evaluations for arm in stored.arms for trial in arm.trials)
    assert stored.study is not None and stored.study.expect == {"": "equivalent"}
    for word, message in (
        ("expect: good", "expect='good'"),
        ("expect: {ffn=x: better}", "names no arm"),
        ("seed: 3", "seed"),
        (
            "variance: residual",
            "variance=residual of one no longer exists, as it erred with unequal SDs: delete this line",
        ),
    ):
        (folder / "bad.yaml").write_text(text + f"    {word}\n")
        with pytest.raises(ConfigError, match=message):
            list(find_study("bad").plan())

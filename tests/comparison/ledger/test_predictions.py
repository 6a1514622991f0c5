"""Predictions of a comparison: in the ledger before the first trial, once, and answered by the result."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from partwise.cli import main
from partwise.comparison.ledger.project import project_ledger

EXPERIMENT = {
    "command": "echo loss {n}{seed}",
    "arms": {"a": {"n": 3}, "b": {"n": 2}},
    "metric": {"pattern": r"loss (\S+)", "margin": 1},
}

Compare = Callable[..., tuple[int, str, str]]


@pytest.fixture
def compare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Compare:
    """Run `compare` of an experiment whose arms differ by -10: its exit status, standard output and standard error."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "e.yaml").write_text(yaml.safe_dump(EXPERIMENT))

    def run(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["partwise", "compare", "e.yaml", "--seeds", "3", "--workers", "1", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capsys.readouterr()
        return int(ended.value.code or 0), out, err

    return run


def records(kind: str) -> list[dict[str, Any]]:
    return [each.content for each in project_ledger().read() if each.content["kind"] == kind]


def test_a_prediction_is_recorded_before_the_trials_and_answered_once(compare: Compare) -> None:
    status, out, err = compare("--predict=-12,-8")
    assert status == 0, err
    kinds = [each.content["kind"] for each in project_ledger().read()]
    assert kinds == ["started", "prediction", "result", "predicted result"]
    [predicted] = records("prediction")
    assert (predicted["arm"], predicted["against"], predicted["low"], predicted["high"]) == ("b", "a", -12, -8)
    assert "predicted -12 to -8 for b, measured -10: inside" in out
    assert compare("--predict=-12,-8")[0] == 0  # the same command shows its results again
    assert len(records("prediction")) == len(records("predicted result")) == 1


def test_another_prediction_and_one_after_the_trials_are_refused(compare: Compare) -> None:
    assert compare("--predict=1,2")[0] == 0
    assert records("predicted result")[0]["inside"] is False
    status, _, err = compare("--predict=-12,-8")
    assert status == 2 and "already predicts 1 to 2 for b, which stands" in err
    assert compare("--name", "other")[0] == 0
    status, _, err = compare("--name", "other", "--predict=-12,-8")
    assert status == 2 and "has trials already: predict before the first one" in err
    assert len(records("prediction")) == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--predict=2,1"], "the first number is the smaller one: 1,2"),
        (["--predict=better"], "expected two numbers"),
        (["--predict=1,2", "--grid", "n=1,2"], "--predict are about one comparison: leave out --grid"),
    ],
)
def test_a_wrong_prediction_starts_nothing(compare: Compare, words: list[str], message: str) -> None:
    status, _, err = compare(*words)
    assert status == 2 and message in err
    assert not project_ledger().read()

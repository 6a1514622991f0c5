"""Experiments that were named when the studio was started, and what can be done with a finished comparison."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from lazy_imports import lazy_module
from partwise.cli import main
from partwise.comparison.ledger.project import project_ledger

lazy_module("starlette.testclient")
folders = lazy_module("studio.folders", needs="starlette")
again = lazy_module("partwise.studio.again")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".git").mkdir()
    (tmp_path / "e.yaml").write_text(yaml.safe_dump(folders.EXPERIMENT))
    return tmp_path


def client_of(folder: Path, *experiments: str) -> Any:
    client = folders.make_client(folder)
    client.studio.allowed = folders.Allowed(experiments=experiments)
    return client


def test_an_experiment_named_at_the_start_runs_as_in_a_terminal(folder: Path) -> None:
    client = client_of(folder, "e.yaml")
    said = client.post("/api/question", json={"experiment": "e.yaml", "seeds": 3}).json()
    assert [arm["name"] for arm in said["arms"]] == ["a", "b"] and said["margin"] == 1
    assert said["command"] == "partwise compare e.yaml --seeds 3 --name e"
    asked = {"experiment": "e.yaml", "seeds": 3, "name": "e", "prediction": {"low": -45, "high": -40}}
    assert client.post("/api/comparisons", json=asked).json() == {"name": "e"}
    assert client.studio.processes.started["e"].process.wait(60) == 0
    result = client.get("/api/comparisons/e/result").json()
    assert result["verdicts"][0]["verdict"] == "better" and result["outcome"]["inside"]
    kinds = [each.content["kind"] for each in project_ledger(folder).read()]
    assert kinds == ["started", "prediction", "result", "predicted result"]


@pytest.mark.parametrize(
    "values",
    [
        {"experiment": "other.yaml"},
        {"experiment": "./e.yaml"},
        {"experiment": "../e.yaml"},
        {"experiment": "--import"},
        {"experiment": ["e.yaml"]},
        {"experiment": "e.yaml", "command": "touch evil"},
        {"experiment": "e.yaml", "name": "../evil"},
        {"experiment": "e.yaml", "seeds": "3; touch evil"},
    ],
)
def test_no_other_experiment_is_read_or_run(
    folder: Path, values: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "other.yaml").write_text((folder / "e.yaml").read_text())
    client = client_of(folder, "e.yaml")
    monkeypatch.setattr(subprocess, "Popen", None)
    for address in ("/api/question", "/api/comparisons", "/api/estimate"):
        assert client.post(address, json=values).status_code == 400
    assert folders.make_client(folder).post("/api/question", json={"experiment": "e.yaml"}).status_code == 400
    assert not (folder / "runs").exists()


def test_a_stored_question_cannot_bring_another_experiment(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is below runs/.studio may be written by others: it is checked as a page's question is."""
    folders.make_running(folder)
    notes = folder / "runs" / ".studio"
    notes.mkdir()
    (notes / "night.json").write_text(json.dumps({"experiment": "e.yaml", "name": "night"}))
    client = folders.make_client(folder)
    monkeypatch.setattr(subprocess, "Popen", None)
    answer = client.post("/api/comparisons/night/resume", json={})
    assert answer.status_code == 400 and "started with" in answer.json()["error"]


@pytest.mark.parametrize(("file", "message"), [("none.yaml", "no such file"), ("n.yaml", "expected an experiment")])
def test_what_is_no_experiment_is_told_at_the_start(
    folder: Path, file: str, message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "n.yaml").write_text("d_model: 16\n")
    monkeypatch.setattr(sys, "argv", ["partwise", "studio", file])
    with pytest.raises(SystemExit):
        main()
    assert message in capsys.readouterr().err


def test_a_finished_comparison_is_checked_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders.make_finished(folder, monkeypatch)
    client = folders.make_client(folder)
    commands = client.get("/api/comparisons/done/result").json()["again"]
    assert commands["check"] == "partwise verify runs/done"
    assert commands["replicate"].endswith("--first-seed 3 --name done-from-3")
    found = client.post("/api/comparisons/done/verify", json={"trials": 0}).json()
    assert found["certificates"][0]["holds"]
    path = folder / "runs" / "done" / "certificate.json"
    path.write_text(path.read_text().replace('"verdict": "better"', '"verdict": "worse"'))
    changed = client.post("/api/comparisons/done/verify", json={"trials": 0}).json()
    assert not changed["certificates"][0]["holds"]
    for trials in (-1, 101, 1.5, "1", True):
        assert client.post("/api/comparisons/done/verify", json={"trials": trials}).status_code == 400


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (
            "partwise compare m a=b --seeds 3 --name n",
            "partwise compare m a=b --seeds 3 --first-seed 9 --name n-from-9",
        ),
        (
            "partwise compare e.yaml --predict=-1,2 --first-seed 4",
            "partwise compare e.yaml --first-seed 9 --name n-from-9",
        ),
        ("partwise demo", ""),
        ("", ""),
        ("partwise compare 'm", ""),
    ],
)
def test_a_replication_differs_in_its_seeds_and_its_name(command: str, expected: str) -> None:
    assert again.replication("n", command, 9) == expected

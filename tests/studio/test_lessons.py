"""Lessons in the studio: nothing of an answer before its runs, and the commands of a terminal."""

import json
from pathlib import Path
from typing import Any

import pytest

from lazy_imports import lazy_module
from partwise.lessons.exercises import CHECKS, FILE_ANSWERS
from partwise.lessons.lesson import all_lessons, find_lesson
from partwise.lessons.predictions import record_prediction

lazy_module("starlette.testclient")
folders = lazy_module("studio.folders", needs="starlette")
predictions = lazy_module("partwise.comparison.ledger.predictions")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".git").mkdir()
    return tmp_path


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The words of the processes that were started, none of which runs."""
    found: list[list[str]] = []

    class Process:
        def __init__(self, words: list[str], **_: Any) -> None:
            found.append(words[3:])

        def poll(self) -> None:
            return None

    monkeypatch.setattr("partwise.studio.processes.subprocess.Popen", Process)
    return found


def test_every_lesson_is_listed_with_the_place_of_its_reader(folder: Path) -> None:
    (folder / "runs").mkdir()
    (folder / "runs" / "lessons.json").write_text(json.dumps({"3": "The run"}))
    listed = folders.make_client(folder).get("/api/lessons").json()
    assert [each["number"] for each in listed] == list(all_lessons()) == list(range(1, 13))
    assert listed[2]["at"] == "The run" and {each["state"] for each in listed} == {"new"}


def test_a_lesson_shows_its_answer_only_after_its_runs(folder: Path) -> None:
    client = folders.make_client(folder)
    lesson = client.get("/api/lessons/2").json()
    titles = [each["title"] for each in lesson["sections"]]
    assert titles == ["The problem", "The idea", "Your prediction", "The run"]
    assert lesson["figure"]["picture"].startswith("data:image/svg+xml;base64,") and lesson["figure"]["table"][1:]
    assert "expected" not in lesson and "answer" not in json.dumps([*lesson])
    answer = client.post("/api/lessons/2/answer", json={})
    assert answer.status_code == 400 and "have not ended" in answer.json()["error"]
    folders.end_lesson(folder, 2)
    after = client.get("/api/lessons/2").json()
    assert after["state"] == "finished"
    assert [each["title"] for each in after["sections"]][4:] == ["The answer", "An exercise"]
    assert after["answer_figure"]["picture"].startswith("data:image/svg+xml;base64,")
    assert after["answer_figure"] != after["figure"] == lesson["figure"]


def check(client: Any, number: int, answer: Any) -> tuple[int, dict[str, Any]]:
    body, kind = json.dumps({"answer": answer}), {"content-type": "application/json"}
    said = client.post(f"/api/lessons/{number}/check", content=body, headers=kind)
    return said.status_code, said.json()


def test_an_answer_is_checked_by_the_command_of_a_terminal(folder: Path) -> None:
    client = folders.make_client(folder)
    status, early = check(client, 3, "200,300")
    assert status == 400 and "have not ended" in early["error"]
    folders.end_lesson(folder, 3)
    right = {"lesson": 3, "right": True, "said": "right", "command": "partwise lesson 3 --check 200,300"}
    assert check(client, 3, "200,300") == (200, right)
    status, wrong = check(client, 3, "--slides=300 200")
    assert status == 200 and wrong["said"] == "Give the earlier step first." and not wrong["right"]
    assert wrong["command"] == "partwise lesson 3 '--check=--slides=300 200'"
    assert not list(folder.rglob("*300*"))


def test_an_answer_that_is_a_file_or_no_plain_text_starts_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "mine.py").write_text("open('ran', 'w')")
    for number in (5, 12):
        folders.end_lesson(folder, number)
    client = folders.make_client(folder)

    async def query(*_: Any, **__: Any) -> None:
        raise AssertionError("a process was started")

    monkeypatch.setattr(client.studio.processes, "query", query)
    status, refused = check(client, 12, "mine.py")
    assert status == 400 and "runs no file that was not named" in refused["error"]
    assert client.get("/api/lessons/12").json()["unchecked"] == refused["error"]
    assert client.get("/api/lessons/5").json()["unchecked"] == ""
    for answer in ("", "../mine.py", "0.9\n", "0\0", "\ud800", "é", "$(ls)", "1" * 201, 0.918, None, ["0.918"]):
        status, refused = check(client, 5, answer)
        assert status == 400 and refused["error"].startswith("answer: expected 1 to 200"), answer
    for number in set(CHECKS) - FILE_ANSWERS:
        CHECKS[number]("mine.py")
    assert not (folder / "ran").exists()


def test_a_lesson_runs_as_in_a_terminal_after_its_prediction(folder: Path, started: list[list[str]]) -> None:
    client = folders.make_client(folder)
    refused = client.post("/api/lessons/2/start", json={})
    assert refused.status_code == 400 and "prediction before its first run" in refused.json()["error"]
    said = client.post("/api/lessons/2/start", json={"prediction": {"low": -0.1, "high": 0.25}}).json()
    assert said["state"] == "running"
    assert started == [["lesson", "2", "--predict=-0.1,0.25"]]
    again = client.post("/api/lessons/2/start", json={"prediction": {"low": 0, "high": 1}})
    assert again.status_code == 400 and "running" in again.json()["error"]


def test_the_prediction_of_a_terminal_stands(folder: Path, started: list[list[str]]) -> None:
    record_prediction(find_lesson(2), "runs/lesson-02", predictions.Prediction(0.0, 0.5))
    client = folders.make_client(folder)
    assert client.get("/api/lessons/2/state").json()["prediction"] == {"low": 0.0, "high": 0.5}
    client.post("/api/lessons/2/start", json={"prediction": {"low": 7, "high": 8}})
    assert started == [["lesson", "2"]]


@pytest.mark.parametrize("number", ["0", "13", "x", "-1", "2.5", "1e1", "..%2f2", "%C2%B2"])
def test_only_the_twelve_lessons_open(folder: Path, started: list[list[str]], number: str) -> None:
    client = folders.make_client(folder)
    assert client.get(f"/api/lessons/{number}").status_code in (400, 404)
    body = {"prediction": {"low": 0, "high": 1}}
    assert client.post(f"/api/lessons/{number}/start", json=body).status_code in (400, 404)
    assert not started

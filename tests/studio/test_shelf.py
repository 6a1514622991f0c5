"""The shelf: runs, comparisons and searches below the folder, by the thousand; a search opens to what its command prints."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from lazy_imports import lazy_module

lazy_module("starlette.testclient")
folders = lazy_module("studio.folders", needs="starlette")


def cpu_seconds() -> float:
    """Of this process and of those that it has waited for: what a machine that does nothing else takes."""
    return sum(os.times()[:4])


def test_a_thousand_runs_are_listed_with_little_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folders.make_many(tmp_path)
    client = folders.make_client(tmp_path)
    start = cpu_seconds()
    assert client.get("/shelf").status_code == 200
    shown = cpu_seconds()
    listed = client.get("/api/shelf").json()["runs"]
    assert cpu_seconds() - shown < 2
    assert shown - start < 0.5
    kinds = [each["kind"] for each in listed]
    assert (kinds.count("run"), kinds.count("comparison")) == (1000, 8)
    assert {each["state"] for each in listed} == {"finished"}


def test_searches_are_listed_and_shown_as_their_command_prints_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders.make_search(tmp_path, monkeypatch)
    client = folders.make_client(tmp_path)
    [entry] = client.get("/api/shelf").json()["runs"]
    assert (entry["name"], entry["kind"], entry["verdict"]) == ("s", "search", "best: try 1")
    assert entry["state"].endswith("2 tried, 1 kept") and entry["what"].startswith("env SEED=")
    before = {each: each.stat().st_mtime_ns for each in tmp_path.rglob("*")}
    shown = client.get("/api/searches/s").json()
    words = [sys.executable, "-m", "partwise", "try", "--search", "s", "--json"]
    printed = json.loads(subprocess.run(words, cwd=tmp_path, check=True, capture_output=True, text=True).stdout)
    assert shown == printed
    assert [each["decision"] for each in shown["tries"]] == ["keep", "discard"]
    assert client.get("/search/s").status_code == 200
    assert before == {each: each.stat().st_mtime_ns for each in tmp_path.rglob("*")}


@pytest.mark.parametrize("name", ["nothing", "%2e%2e", "..%2fruns", "night"])
def test_only_searches_open_as_searches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """No process starts for another name."""
    monkeypatch.chdir(tmp_path)
    folders.make_running(tmp_path)
    client = folders.make_client(tmp_path)
    monkeypatch.setattr(client.studio.processes, "query", None)
    assert client.get(f"/api/searches/{name}").status_code in (400, 404)

"""A search: what is kept and discarded, its pools, its ledger, kills, and what a candidate cannot change."""

import json
from pathlib import Path

import pytest

from searches import commit, make_repository, ran, try_, words


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    make_repository(tmp_path)
    return tmp_path


def test_from_command_to_verdict(repository: Path) -> None:
    """A change that helps is kept and its fresh repeats are the next pool; the old best is then discarded after one run."""
    good = commit("helps", settings__sh="GAIN=-200\nFAIL=\n")
    done = try_(good, *words(repository, "--start", "HEAD~1", "--json"))
    assert done.exit_code == 0, done.output
    state = json.loads(done.stdout)
    assert state["answer"]["decision"] == "keep" and state["answer"]["description"] == "helps"
    assert state["best"]["commit"] == good and len(state["best"]["values"]) == 8
    assert state["answer"]["peak_memory"] > 2**20
    first = ran(repository)
    assert first == [*range(12), *range(100, 105), *range(200, 208)] and state["runs"] == len(first)

    done = try_("HEAD~1", "--search", "s")
    assert done.exit_code == 1 and "✕ discard: the start" in done.output
    assert ran(repository)[len(first) :] == [300]

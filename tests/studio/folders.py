"""A project's folder with comparisons: one that runs, as its files show it, and one that has ended."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

import searches
from partwise.cli import main
from partwise.comparison.ledger.project import project_ledger
from partwise.lessons.lesson import find_lesson
from partwise.studio.comparisons import Comparisons
from partwise.studio.pages import PUBLIC, Studio
from partwise.studio.processes import Processes
from partwise.studio.questions import Allowed
from partwise.web_guard import HEADER, Guard

ARMS = ("mingpt", "ffn=swiglu")
LOSSES = {"mingpt": 2.5, "ffn=swiglu": 2.25}
QUESTION = {
    "preset": "mingpt",
    "change": ["ffn=swiglu"],
    "data": "text.txt",
    "size": "preset",
    "common": ["d_model=16", "n_layers=2", "attention.n_heads=2", "context_length=16", "train.batch_size=4"],
    "seeds": 3,
    "steps": 12,
    "margin": 0.05,
}
EXPERIMENT = {
    "command": "echo loss {n}{seed}",
    "arms": {"a": {"n": 3}, "b": {"n": -1}},
    "metric": {"pattern": r"loss (\S+)", "margin": 1},
}


def make_running(folder: Path, name: str = "night", seeds: int = 2) -> Path:
    """A comparison of two arms, of which the last seed is half done, without a process."""
    path = folder / "runs" / name
    arms = [{"name": arm, "config": {"train": {"steps": 10}}} for arm in ARMS]
    path.mkdir(parents=True)
    content = {"kind": "started", "name": name, "folder": f"runs/{name}", "question": "Does it?", "questions": {}}
    started = project_ledger(folder).append(
        lambda _: {**content, "plan": "", "seeds": seeds, "online": None, "identity": {"arms": []}}
    )
    assert started is not None
    plan = {"format": 1, "plan": {"arms": arms, "margin": 0.02}, "hash": "", "looks": [], "ledger": started.number}
    (path / "compare.json").write_text(json.dumps(plan))
    for number, arm in enumerate(ARMS):
        for seed in range(seeds):
            trial = path / "runs" / f"{number}-{arm}" / f"seed-{seed}"
            trial.mkdir(parents=True)
            done = 10 if seed < seeds - 1 else 5
            lines = [{"kind": "step", "step": step, "loss": LOSSES[arm] + seed / 8} for step in range(1, done + 1)]
            (trial / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
            (trial / "run.json").write_text("{}")
            if done == 10:
                (trial / "status.json").write_text('["done"]')
    return path


def end_lesson(folder: Path, number: int) -> None:
    """What the runs of a lesson leave."""
    lesson = find_lesson(number)
    for key in lesson.head.runs:
        path = make_running(folder, lesson.name if key == "main" else f"{lesson.name}-{key}")
        for file in ("results.json", "report.html"):
            (path / file).write_text("{}")


def make_finished(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str = "done") -> None:
    """A comparison of two commands, whose arm `b` is better by about 42."""
    monkeypatch.chdir(folder)
    (folder / "e.yaml").write_text(yaml.safe_dump(EXPERIMENT))
    words = ["compare", "e.yaml", "--seeds", "3", "--workers", "1", "--predict=-45,-40", "--name", name]
    monkeypatch.setattr(sys, "argv", ["partwise", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code


def make_many(folder: Path, runs: int = 1000, comparisons: int = 8) -> None:
    """Runs and comparisons by the thousand: copies of a run and of a comparison of another folder, without its trials."""
    stored = Path(__file__).parents[1] / "formats_on_disk" / "2" / "runs"
    for name, number in {"run": runs, "comparison": comparisons}.items():
        files = {each.name: each.read_bytes() for each in (stored / name).glob("*.json")}
        for each in range(number):
            path = folder / "runs" / f"{name}-{each}"
            path.mkdir(parents=True)
            for file, content in files.items():
                (path / file).write_bytes(content)


def make_search(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The search `s` of a small program: a commit is kept, and a command discarded."""
    searches.make_repository(folder, monkeypatch)
    better = searches.commit("a gain", settings__sh="GAIN=-5000\nFAIL=\n")
    searches.git("checkout", "--quiet", "HEAD~1")
    for candidate in (better, f"{searches.command(folder)} 90000"):
        searches.answer(folder, candidate)


def make_client(folder: Path, opened: bool = True, **options: Any) -> Any:
    """A client of the studio of a folder, behind its guard; `opened` has exchanged a link."""
    from starlette.testclient import TestClient

    processes = Processes(folder)
    studio = Studio(Comparisons(folder, processes), processes, Allowed(data=("text.txt",)), **options)
    guard = Guard(studio.application(), "partwise-test", public=PUBLIC, **options)
    client = TestClient(guard, base_url="http://127.0.0.1:8765", follow_redirects=False)
    client.headers.update({HEADER: "1"})
    client.studio = studio  # type: ignore[attr-defined]
    if opened:
        answer = client.post("/session", json={"token": guard.sessions.new_link()})
        assert answer.status_code == 200
    return client

"""`assign`, `compare COURSE.yaml` and what `collect` makes of an executed hand-in, without training."""

import json
from pathlib import Path
from typing import Any

import pytest

from command_line import run
from partwise.classroom.assignment import Assignment
from partwise.cli.commands import compare_course
from partwise.cli.commands.hand_in_runs import reported

ASSIGN = [
    "assign",
    "course.yaml",
    "--data",
    "text.txt",
    "--common",
    "d_model=16",
    "--common",
    "attention.n_heads=2",
    "--common",
    "context_length=16",
    "--families",
    "norm,ffn",
    "--seeds",
    "5",
    "--margin",
    "0.02",
]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "text.txt").write_text("the quick brown fox\n" * 200, encoding="utf-8", newline="\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_an_assignment_becomes_the_comparison_of_a_number(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Once written, it stays; students get its plan, their seeds, and one line for anything else."""
    assert run(monkeypatch, *ASSIGN) == 0
    assert "--student 0 --name teacher" in capsys.readouterr().out
    sheet = Path("course.md").read_text(encoding="utf-8")
    assignment = Assignment.read(Path("course.yaml"))
    assert f"Plan `{assignment.plan_hash[:16]}`" in sheet and "from 1 to 30" in sheet and "`text.txt`" in sheet
    assert assignment.families == ("norm", "ffn") and assignment.plan["margin"] == 0.02
    before = Path("course.yaml").read_bytes()
    assert run(monkeypatch, *ASSIGN) == 2 and Path("course.yaml").read_bytes() == before
    assert "course.yaml exists: an assignment that was handed out stays" in capsys.readouterr().err

    asked: list[dict[str, Any]] = []
    monkeypatch.setattr(compare_course, "compare_variants", lambda request, *others: asked.append(request))
    assert run(monkeypatch, "compare", "course.yaml", "ffn=swiglu", "ffn.expansion=4", "--student", "7") == 0
    assert asked[0]["first_seed"] == 1035 and asked[0]["seeds"] == 5 and asked[0]["margin"] == 0.02
    assert asked[0]["change"] == ["ffn=swiglu", "ffn.expansion=4"] and asked[0]["common"] == list(assignment.common)
    for words, message in {
        (
            "ffn=swiglu",
            "norm=none",
            "--student",
            "7",
        ): "changes ffn and norm: the assignment is to change one of norm or ffn",
        ("train.lr=1", "--student", "7"): "train.lr=1: the assignment is to change norm or ffn",
        ("--student", "7"): "give the change that you chose, of norm or ffn",
        ("ffn=swiglu",): "give your number, from 1 to 30, by --student",
        ("ffn=swiglu", "--student", "31"): "--student 31: the numbers of this class are 1 to 30",
        ("ffn=swiglu", "--student", "7", "--margin", "1"): "--margin is an option of",
    }.items():
        assert run(monkeypatch, "compare", "course.yaml", *words) == 2
        err = capsys.readouterr().err
        assert message in err and len(err.splitlines()) == 1
    Path("course.yaml").write_text(before.decode().replace("margin: 0.02", "margin: 2"), encoding="utf-8", newline="\n")
    assert run(monkeypatch, "compare", "course.yaml", "ffn=swiglu", "--student", "7") == 2
    assert "course.yaml was changed after `partwise assign` wrote it" in capsys.readouterr().err
    assert len(asked) == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["course.txt", "--families", "ffn"], "give a file that ends in .yaml"),
        (["course.yaml", "--families", "fnn"], "--families fnn: 'fnn' is not a family of parts; did you mean"),
        (["course.yaml", "--families", "data"], "--families data: 'data' is not a family of parts"),
        (["course.yaml", "--families", ","], "--families is empty"),
    ],
)
def test_a_wrong_assignment_is_one_line(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    message: str,
) -> None:
    assert run(monkeypatch, "assign", *words, "--data", "text.txt") == 2
    err = capsys.readouterr().err
    assert message in err and len(err.splitlines()) == 1 and not Path("course.yaml").exists()


def document(**repeated: Any) -> str:
    return json.dumps({"certificates": [{"repeated": [repeated]}]})


@pytest.mark.parametrize(
    ("out", "outcome", "text"),
    [
        (document(statement="seed 3", fault=None, difference=0.0), "holds", "seed 3"),
        (document(statement="seed 3", fault=None, difference=-0.01), "told", "seed 3"),
        (document(statement="seed 3", fault="it gave 4", difference=1e-9), "objection", "seed 3: no, it gave 4"),
        ("", "objection", "it could not be run: the last line"),
        ("[1]", "objection", "it could not be run: the last line"),
        ("[" * 100_000, "objection", "it could not be run: the last line"),
    ],
)
def test_what_an_executed_hand_in_reports(out: str, outcome: str, text: str) -> None:
    (check,) = reported(out, "first\nthe last line\n")
    assert check.what == "run" and check.outcome == outcome and text in check.text

"""`partwise ledger`: listing, export and verification, with their exit statuses."""

import json
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from command_line import run
from partwise import studies
from partwise.comparison.ledger.chain import Ledger
from partwise.comparison.ledger.project import LEDGER_FILE
from partwise.studies.study import StudyResults

START = {
    "kind": "started",
    "name": "glu",
    "folder": "runs/glu",
    "question": "Does ffn=swiglu help?",
    "plan": "0",
    "seeds": 5,
}
VERDICT = {"arm": "ffn=swiglu", "against": "mingpt", "role": "claim", "verdict": "better", "question": "key", "n": 5}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a project with two comparisons, one of them unfinished; the current folder lies within."""
    ledger = Ledger(tmp_path / LEDGER_FILE)
    (tmp_path / ".git").mkdir()
    (tmp_path / "a folder").mkdir()
    monkeypatch.chdir(tmp_path / "a folder")
    start = {**START, "questions": {"ffn=swiglu - mingpt": "key"}, "online": None}
    ledger.append(lambda _: start)
    ledger.append(lambda _: {"kind": "result", "started": 1, "seeds": 5, "verdicts": [VERDICT]})
    ledger.append(lambda _: {**start, "name": "[bold]again", "online": {"alpha": 0.05, "level": 0.0032}})
    return tmp_path


def test_all_comparisons_are_listed(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "ledger") == 0
    text = capsys.readouterr().out
    assert "ffn=swiglu better" in text and "[bold]again" in text and "0.0032" in text
    assert "comparisons: 2, questions: 1, better: 1, unfinished: 1" in text


def test_comparisons_are_one_json_document(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "ledger", "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert document.keys() == {"file", "comparisons", "counts"}
    assert document["counts"]["comparisons"] == len(document["comparisons"]) > 0
    assert run(monkeypatch, "ledger") == 0
    shown = capsys.readouterr().out
    for row in document["comparisons"]:
        assert row["name"] in shown and {"number", "time", "question", "seeds", "level", "outcome"} <= row.keys()


def test_records_are_exported(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "ledger", "export") == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["kind"] for line in lines] == ["started", "result", "started"]
    assert run(monkeypatch, "ledger", "export", "my records.csv") == 0
    assert Path("my records.csv").read_text().count("\n") == 4
    assert run(monkeypatch, "ledger", "export", "no/folder.csv") == 2


def test_the_chain_is_verified(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "ledger", "verify") == 0
    assert Ledger(project / LEDGER_FILE).read()[-1].hash in capsys.readouterr().out
    with sqlite3.connect(project / LEDGER_FILE) as connection:
        connection.execute("UPDATE records SET content = replace(content, 'better', 'worse') WHERE number = 2")
    assert run(monkeypatch, "ledger", "verify") == 1
    assert "record 2: its content does not match its hash" in " ".join(capsys.readouterr().err.split())
    assert run(monkeypatch, "ledger") == 2
    (project / LEDGER_FILE).write_text("no database, but text of some length" * 20)
    assert run(monkeypatch, "ledger", "verify") == 2


def test_without_a_ledger_one_line_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for words in (["ledger"], ["ledger", "verify"], ["ledger", "export"], ["verify", "none.json"]):
        assert run(monkeypatch, *words) == 2
        assert len(capsys.readouterr().err.splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_listing_imports_no_torch(project: Path) -> None:
    code = "import runpy, sys; sys.argv = ['partwise', 'ledger']\n"
    code += "try: runpy.run_module('partwise', run_name='__main__')\nfinally: print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "False"


def test_a_report_is_written_from_the_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A comparison by its name or folder, from `results.json` alone; a run is tested with the command `train`."""
    folder = tmp_path / "runs" / "glu"
    folder.mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    study = StudyResults.from_json(Path(studies.__file__).parent / "library" / "swiglu" / "results.json")
    study.comparisons["shakespeare"].to_json(folder / "results.json")
    for name in ("glu", "runs/glu", str(folder)):
        assert run(monkeypatch, "report", name) == 0
        assert capsys.readouterr().out.strip().endswith("runs/glu/report.html")
        assert "</html>" in (folder / "report.html").read_text("utf-8")
        (folder / "report.html").unlink()
    (folder / "results.json").rename(folder / "compare.json")
    assert run(monkeypatch, "report", "glu") == 2
    assert "no results yet" in capsys.readouterr().err
    assert run(monkeypatch, "report", "glo") == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "there is no run or comparison 'glo'; did you mean 'glu'?" in error

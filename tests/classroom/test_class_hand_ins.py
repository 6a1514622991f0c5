"""The class of tests/class_hand_ins.py, smaller: which of its eight cheats are found by reading, and which by running."""

from pathlib import Path

import pytest

import class_hand_ins
from partwise.classroom.assignment import Assignment
from partwise.classroom.baseline import Baseline
from partwise.classroom.collection import Collection, collect
from partwise.cli.commands.hand_in_runs import execute

NUMBERS = sorted({*class_hand_ins.CHEATS, 5, 10, 17, 21})
HONEST = {5, 10, 17}

READING = {
    4: ("baseline", "train.lr was assigned as 0.01, and is 0.0005"),
    8: ("one change", "2 changes: ffn, norm"),
    12: ("ledger", "it was written for other values"),
    15: ("seeds", "are those of no number"),
    21: ("copy", "it shares the certificate with 22"),
    22: ("copy", "it shares the certificate with 21"),
    26: ("ledger", "an earlier ledger is gone"),
}
RUNNING = {
    19: "no position sees the tokens that it predicts, before training: no, when later tokens change",
    29: "the rerun gave",
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("class")
    class_hand_ins.make_class(root, NUMBERS, seeds=3)
    return root


def read(root: Path, *numbers: int) -> Collection:
    assignment = Assignment.read(root / "course.yaml")
    paths = sorted((root / "handed").iterdir())
    chosen = [path for path in paths if not numbers or int(path.stem) in numbers]
    return collect(chosen, assignment, Baseline.read([root / "runs" / "teacher"], assignment))


def test_six_cheats_are_found_by_reading(made: Path) -> None:
    found = read(made)
    assert not found.refused and [int(entry.name) for entry in found.entries if entry.objections] == sorted(
        READING,
        key=lambda number: (number == 15, number),  # without a number, it is the last
    )
    for entry in found.entries:
        if int(entry.name) in READING:
            what, text = READING[int(entry.name)]
            assert any(check.what == what and text in check.text for check in entry.objections), entry.name


def test_honest_students_have_no_objection(made: Path) -> None:
    entries = {int(entry.name): entry for entry in read(made).entries}
    told = [check.text for check in entries[5].checks if check.outcome == "told"]
    assert told == ["1 comparison of other changes before: norm=rmsnorm - mingpt"]
    assert [check.outcome for check in entries[10].checks if check.what in ("part", "claimed check")] == [
        "holds",
        "holds",
    ]
    assert {check.what for check in entries[17].missing} == {"results", "ledger"}
    assert all(check.outcome in ("holds", "told", "missing") for number in HONEST for check in entries[number].checks)


def test_two_cheats_are_found_by_running_alone(
    made: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A part that sees the future and says that it was checked, and values forged in certificate, results and ledger."""
    monkeypatch.chdir(made)
    found = read(made, *RUNNING)
    assert not any(entry.objections for entry in found.entries)
    execute(found, run_parts=True, trials=4, limit=300)  # of the six, at least one of the arm that was forged
    for entry in found.entries:
        (text, *_) = [check.text for check in entry.objections if check.what == "run"]
        assert RUNNING[int(entry.name)] in text
    assert not found.judged and "this executes code of the hand-ins as you" in capsys.readouterr().out


def test_a_hand_in_that_never_ends_is_ended(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(made)
    found = read(made, 10)
    (entry,) = found.entries
    entry.hand_in.sources["mine_10.py"] = b"while True: pass"  # as read, it would not have the hash that is checked
    execute(found, run_parts=True, trials=0, limit=5)
    assert [check.text for check in entry.missing if check.what == "run"] == ["it did not end within 5 seconds"]

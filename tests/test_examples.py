"""The examples run, at tiny sizes."""

import json
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch

EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.mark.parametrize("name", ["plain_loop", "lightning_style"])
def test_training_examples_learn(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [name, "40"])
    losses = runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")["losses"]
    assert losses[-1] < losses[0] - 0.5
    assert "nats per " in capsys.readouterr().out


def test_look_inside(here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The last layer of the lens is the model's own prediction, and attention weights sum to 1 without the future."""
    monkeypatch.setattr(sys, "argv", ["look_inside", "4"])
    names = runpy.run_path(str(EXAMPLES / "look_inside.py"), run_name="__main__")
    with torch.no_grad():
        own = names["model"](names["ids"])[0, -1].softmax(-1)
    torch.testing.assert_close(names["lens"]["layer 1"], own, rtol=1e-4, atol=1e-6)
    for weights in names["maps"].values():
        torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:2]))
        assert not weights.triu(1).any()
    assert "nats per character" in capsys.readouterr().out


@pytest.mark.parametrize(("name", "package"), [("digits", "sklearn"), ("hf_trainer", "accelerate")])
def test_functions_of_other_libraries(name: str, package: str, here: Path) -> None:
    pytest.importorskip(package)
    command = [sys.executable, str(EXAMPLES / "any_code" / f"{name}.py"), "2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    assert "3 arms, 2 paired seeds" in done.stdout and "no value" not in done.stdout, done.stdout


def test_your_own_part(here: Path) -> None:
    """As a process of its own: its workers import the part from the script's source."""
    command = [sys.executable, str(EXAMPLES / "your_own_part.py"), "3"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    assert "Comparison in runs/own-part: 2 arms, 2 paired seeds" in done.stdout and "failed: " not in done.stdout
    assert (here / "runs/own-part/report.html").exists()


def test_batch_norm_is_refused_with_the_reason(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In training it sees later tokens and other rows; in evaluation neither."""
    path = str(EXAMPLES / "batch_norm.py")
    runpy.run_path(path, run_name="__main__")
    training, evaluation = capsys.readouterr().out.splitlines()
    assert training.startswith("training: ") and not training.endswith(" 0.000")
    assert evaluation == "evaluation: the last token changes the first output by 0.000"
    (here / "text.txt").write_text("to be or not to be\n" * 200)
    sizes = ["d_model=16", "n_layers=1", "attention.n_heads=2", "context_length=16", "--data", "text.txt"]
    command = [sys.executable, "-m", "partwise", "check", "mingpt", "norm=example_batch_norm", *sizes, "--import", path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert done.returncode == 1, done.stderr
    shown = " ".join(done.stdout.split())
    assert "no position sees later ones leak when later tokens change, logits of" in shown and "in training" in shown
    assert "rows are independent warning when other rows change" in shown
    assert "train and compare refuse this model" in shown


def test_a_program_that_searches(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A change without effect and one that crashes, judged through --json; the stand-in program does what its tables say."""
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "search" / "search.py"), "--changes", "2", "--seeds", "4"],
        capture_output=True,
        text=True,
        check=True,
    )
    rows = [line.split() for line in done.stdout.splitlines()]
    assert [row[-1] for row in rows] == ["false", rows[1][-1], rows[2][-1], rows[3][-1]] and len(rows) == 4
    assert rows[1][:3] == ["verdict", "better,", "online"] and rows[1][3] == "0"
    assert len(list(here.glob("runs/change-*/results.json"))) == 2

    train = runpy.run_path(str(EXAMPLES / "search" / "train.py"))
    values = {}
    for change in (0, 1, *train["REAL"], *list(train["HARMFUL"])[:2]):
        losses = []
        for seed in range(300):
            monkeypatch.setattr(sys, "argv", ["train", "--seed", str(seed), "--change", str(change)])
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr("builtins.print", lambda text, found=losses: found.append(float(text.split()[-1])))
                train["main"]()
        values[change] = sum(losses) / 300
    assert abs(values[1] - values[0]) < 1e-3
    for change, effect in train["REAL"].items():
        assert abs(values[0] - values[change] - effect) < 1e-3
    for change in list(train["HARMFUL"])[:2]:
        assert abs(values[change] - values[0] - train["HARMFUL"][change]) < 1e-3
    assert 2 in train["CRASHING"]
    results = json.loads((here / "runs/change-2/results.json").read_text())
    assert [trial["value"] for trial in results["arms"][1]["trials"]] == [None] * 4

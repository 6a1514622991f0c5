"""`eval` computes as training did: with the run's threads, precision and backends, which it names."""

import json
import sys
from pathlib import Path

import pytest
import torch

from partwise.cli import main
from partwise.compute.backend_plan import EAGER, BackendPlan
from partwise.train import trained_model
from partwise.train.metrics import read_metrics
from partwise.train.trained_model import open_trained

WORDS = ["mingpt", "--data", "text.txt", "d_model=64", "n_layers=2", "context_length=64", "train.device=cpu"]
WORDS += ["train.batch_size=4", "train.steps=4", "train.eval_every=4"]


def run(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["partwise", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


def scores(monkeypatch: pytest.MonkeyPatch, *words: str) -> dict[str, object]:
    assert run(monkeypatch, "eval", "run", *words, "--json", "scores.json") == 0
    found: dict[str, object] = json.loads(Path("scores.json").read_text())
    return found


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_eval_repeats_the_losses_of_training(here: Path, monkeypatch: pytest.MonkeyPatch, precision: str) -> None:
    settings = ["train.threads=3", f"train.precision={precision}", "train.block_backend=eager", "averaging=ema"]
    assert run(monkeypatch, "train", *WORDS, *settings, "--name", "run") == 0
    *_, final = (line for line in read_metrics(here / "runs" / "run") if line["kind"] == "evaluation")
    torch.set_num_threads(1)
    found = scores(monkeypatch)
    assert (found["validation"], found["training"]) == (final["validation"], final["training"])
    assert (found["precision"], found["device"], found["threads"]) == (precision, "cpu", 3)
    assert torch.get_num_threads() == 3


def test_eval_names_the_precision_and_takes_another(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    line = "computed in {} on cpu, with 1 thread"
    assert run(monkeypatch, "train", *WORDS, "train.threads=1", "train.precision=bfloat16", "--name", "run") == 0
    assert line.format("bfloat16") in capsys.readouterr().out
    rough = scores(monkeypatch)
    assert line.format("bfloat16") in capsys.readouterr().out
    exact = scores(monkeypatch, "--precision", "float32")
    assert line.format("float32") in capsys.readouterr().out
    assert exact["precision"] == "float32"
    assert exact["validation"] != rough["validation"] == pytest.approx(exact["validation"], abs=0.05)
    assert run(monkeypatch, "eval", "run", "--precision", "float8") == 2
    assert "precision=float8: must be float32 or bfloat16" in capsys.readouterr().err


def test_a_run_is_evaluated_with_its_backends_on_its_machine_only(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An arm of a comparison may have slower backends than a run of its own: those that all arms share."""
    assert run(monkeypatch, "train", *WORDS, "train.precision=float32", "--name", "run") == 0
    path = here / "runs" / "run" / "run.json"
    metadata = json.loads(path.read_text())
    metadata["plan"] = [each | {"backend": EAGER, "chain": []} for each in metadata["plan"]]
    path.write_text(json.dumps(metadata))
    applied: list[BackendPlan] = []
    monkeypatch.setattr(BackendPlan, "apply", lambda plan, model: applied.append(plan))
    open_trained("run")
    assert all(each.chain == () for each in applied[-1].choices.values())
    monkeypatch.setattr(trained_model, "machine_info", lambda: metadata["machine"] | {"cpu": "another"})
    open_trained("run")
    assert any(each.chain for each in applied[-1].choices.values())


def test_a_run_of_a_device_that_is_not_here_is_evaluated_on_the_cpu(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "train", *WORDS, "train.precision=float32", "--name", "run") == 0
    path = here / "runs" / "run" / "run.json"
    metadata = json.loads(path.read_text())
    for device in ("mps", "abacus"):
        metadata["runtime"]["device"] = device
        path.write_text(json.dumps(metadata))
        assert scores(monkeypatch)["device"] == "cpu"
        assert "computed in float32 on cpu" in capsys.readouterr().out
    metadata["runtime"]["threads"] = "all"
    path.write_text(json.dumps(metadata))
    assert run(monkeypatch, "eval", "run") == 2
    assert "run.json is damaged: its runtime has threads=all" in capsys.readouterr().err

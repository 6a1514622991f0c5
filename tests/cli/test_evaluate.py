"""`eval` computes as training did: with the run's threads, precision and backends, which it names."""

import json
from pathlib import Path

import pytest
import torch

from command_line import run
from partwise.compute.backend_plan import EAGER, BackendPlan
from partwise.data import Windows
from partwise.evaluate.loss import mean_loss
from partwise.model.reconfigured import reconfigured
from partwise.train import trained_model
from partwise.train.metrics import read_metrics
from partwise.train.trained_model import open_trained

WORDS = ["mingpt", "--data", "text.txt", "d_model=64", "n_layers=2", "context_length=64", "train.device=cpu"]
WORDS += ["train.batch_size=4", "train.steps=4", "train.eval_every=4"]


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


def test_eval_of_longer_windows_scores_the_same_targets_with_the_same_weights(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rope = ["positions=rope", "positions.theta=500", "train.threads=1", "train.precision=float32"]
    assert run(monkeypatch, "train", *WORDS, *rope, "--name", "run") == 0
    plain, longer = scores(monkeypatch), scores(monkeypatch, "--seq-len", "96")
    assert "in windows of 96 without earlier context" in capsys.readouterr().out
    assert longer["tokens"] == plain["tokens"] and longer["validation"] != plain["validation"]
    # as trained: the stored configuration is untouched, and the same length gives the same loss
    assert scores(monkeypatch, "--seq-len", "64") == {**plain, "seq_len": 64} and plain == scores(monkeypatch)
    trained = open_trained("run")
    ids = trained.config.prepare().split("val")
    changed = reconfigured(trained.model, trained.config.model.model_copy(update={"context_length": 96}))
    # the backends of the run round otherwise than those of a model alone
    assert longer["validation"] == pytest.approx(mean_loss(changed, Windows(ids, 96).eval_batches()), abs=1e-5)
    assert longer["validation"] != pytest.approx(plain["validation"], abs=1e-4)
    scaled = ["positions=rope_ntk", "positions.factor=1.5", "positions.theta=500"]
    ntk = scores(monkeypatch, "--seq-len", "96", *scaled)
    assert (ntk["seq_len"], ntk["overrides"]) == (96, scaled)
    assert ntk["tokens"] == plain["tokens"] and ntk["validation"] not in (plain["validation"], longer["validation"])
    one = scores(monkeypatch, "positions=rope_ntk", "positions.factor=1", "positions.theta=500")
    assert one["validation"] == pytest.approx(plain["validation"], abs=1e-6)
    # a file may have `=` in its name
    assert run(monkeypatch, "eval", "run", "scores_positions=rope.json", "attention.window=4", "--json") == 0
    assert json.loads(Path("scores_positions=rope.json").read_text())["validation"] != plain["validation"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["positions=rope_ntk", "positions.factor=2"], "trained with 500: add positions.theta=500, or the value"),
        (["train.lr=1"], "train=...: overrides change how the trained model computes"),
        (["ffn.hidden=40"], "blocks.0.ffn.up.weight is 256x64, not 40x64"),
        (["--seq-len", "96", "positions=learned"], "positions=learned has no parameters beyond context_length=64"),
        (["--tasks", "arithmetic", "--seq-len", "8"], "--seq-len 8: --tasks scores the model as it was trained"),
        (["a.json", "b.json", "--json"], "eval run a.json b.json: evaluate one run at a time"),
    ],
)
def test_what_eval_cannot_change_is_refused_in_one_line(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    rope = ["positions=rope", "positions.theta=500", "train.steps=1", "train.eval_every=1"]
    assert run(monkeypatch, "train", *WORDS[:-2], *rope, "--name", "run") == 0
    capsys.readouterr()
    assert run(monkeypatch, "eval", "run", *words) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1

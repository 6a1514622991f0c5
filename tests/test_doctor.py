"""`doctor`: what it says of a machine is what happens there."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import partwise
from partwise.inspection.paths import paths
from partwise.kernels.library import ready
from partwise.parts import mlp, scores
from partwise.train.choices import Choices


def doctor(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "partwise", "doctor", *words]
    return subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, timeout=120)


CASES = {
    "plain": ["n_layers=3"],
    "windows": ["attention={cycle: [{part: multihead, window: 4}, multihead]}", "attention.n_heads=4", "n_layers=4"],
    "capped": ["attention.softcap=30"],
    "biased": ["positions=alibi"],
    "odd": ["ffn.hidden=33"],
    "dropped": ["ffn.hidden_dropout=0.1"],
    "elu": ["ffn=elu"],
    "pairs": ["encoder_layers=2", "padding_idx=0"],
}


@pytest.mark.parametrize("words", CASES.values(), ids=CASES)
def test_it_tells_the_paths_that_training_takes(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    if not ready():
        pytest.skip("no C++ compiler here")
    config = partwise.preset("mingpt", "d_model=32", "max_len=80", *words)
    attention, ffn = paths(config, Choices("cpu", "float32", "kernel", 1, "kernel"))
    calls: list[str] = []

    def counting(name: str, real: Any) -> Any:
        return lambda *x, **options: (calls.append(name), real(*x, **options))[1]

    monkeypatch.setattr(scores, "attention", counting("attention", scores.attention))
    monkeypatch.setattr(mlp, "mlp", counting("mlp", mlp.mlp))
    model = partwise.Transformer(config).train()
    model.use_path("kernel", "kernel")
    tokens = torch.ones(1, 80, dtype=torch.long)
    model(tokens, source=tokens if config.encoder_layers else None)
    assert calls.count("attention") == attention["kernel"]
    assert calls.count("mlp") == ffn["kernel"]
    assert sum(ffn.values()) == config.n_layers + config.encoder_layers
    cross = config.n_layers if config.encoder_layers else 0
    assert sum(attention.values()) == config.n_layers + config.encoder_layers + cross


def test_the_command(shared_cache: Path) -> None:
    done = doctor("mingpt", "gemma2", PARTWISE_CACHE=str(shared_cache), PARTWISE_MIRROR="/no such folder")
    assert done.returncode == 0, done.stderr
    assert torch.__version__ in done.stdout and "gemma2" in done.stdout
    assert "PARTWISE_MIRROR=/no such folder is no folder" in done.stdout
    unknown = doctor("mingtp", PARTWISE_CACHE=str(shared_cache))
    assert unknown.returncode == 2 and "did you mean 'mingpt'?" in unknown.stderr and unknown.stderr.count("\n") == 1


def test_without_a_compiler(tmp_path: Path) -> None:
    done = doctor("mingpt", CXX="no-such-compiler", PARTWISE_CACHE=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "missing: no C++ compiler: no-such-compiler of CXX is not there: install one" in done.stdout
    assert "kernel 8" not in done.stdout and "torch 8" in done.stdout

"""`doctor` reports the backends that training actually uses."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import partwise
from backends import counts, use_backends
from partwise.cli import main
from partwise.compute.backends import attention, block, mlp
from partwise.kernels.library import kernels_available

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
def test_reported_layer_backends_are_used(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    if not kernels_available():
        pytest.skip("no C++ compiler here")
    config = partwise.preset("mingpt", "d_model=32", "context_length=80", *words)
    planned = counts(config, block="eager")
    assert planned["block"] == {"eager": config.n_layers + config.encoder_layers}
    calls: list[str] = []

    def counting(name: str, real: Any) -> Any:
        return lambda *x, **options: (calls.append(name), real(*x, **options))[1]

    monkeypatch.setattr(attention, "attention", counting("attention", attention.attention))
    monkeypatch.setattr(mlp, "mlp", counting("mlp", mlp.mlp))
    model = partwise.Transformer(config).train()
    use_backends(model, "cpp", "cpp")
    tokens = torch.ones(1, 80, dtype=torch.long)
    model(tokens, source=tokens if config.encoder_layers else None)
    assert calls.count("attention") == planned["attention"]["cpp"]
    assert calls.count("mlp") == planned["ffn"]["cpp"]
    assert sum(planned["ffn"].values()) == config.n_layers + config.encoder_layers
    cross = config.n_layers if config.encoder_layers else 0
    assert sum(planned["attention"].values()) == config.n_layers + config.encoder_layers + cross


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("words", CASES.values(), ids=CASES)
def test_reported_compiled_blocks_are_used(words: list[str], precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if not kernels_available():
        pytest.skip("no C++ compiler here")
    config = partwise.preset("mingpt", "d_model=32", "context_length=80", *words)
    blocks, cores, ffn = counts(config, precision, attention="eager", ffn="eager").values()
    calls: list[Any] = []
    real = block.kernel.forward_blocks
    monkeypatch.setattr(
        "partwise.compute.backends.block.kernel.forward_blocks", lambda *x: (calls.extend(x[1]), real(*x))[1]
    )
    model = partwise.Transformer(config).train()
    use_backends(model, "eager", "eager", "cpp")
    tokens = torch.ones(2, 80, dtype=torch.long)
    model(tokens, source=tokens if config.encoder_layers else None)
    assert len(calls) == blocks["cpp"]
    rest = blocks["eager"]
    assert sum(blocks.values()) == config.n_layers + config.encoder_layers and sum(ffn.values()) == rest
    assert sum(cores.values()) == rest + (config.n_layers if config.encoder_layers else 0)


def test_the_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["partwise", "doctor", "mingpt", "gemma2"])
    with pytest.raises(SystemExit) as ended:
        main()
    shown = capsys.readouterr().out
    assert not ended.value.code
    assert torch.__version__ in shown and "gemma2" in shown
    monkeypatch.setattr(sys, "argv", ["partwise", "doctor", "mingtp"])
    with pytest.raises(SystemExit, match="2"):
        main()
    error = capsys.readouterr().err
    assert "did you mean 'mingpt'?" in error and error.count("\n") == 1


def test_without_a_compiler(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "partwise", "doctor", "mingpt"]
    environment = os.environ | {"CXX": "no-such-compiler", "PARTWISE_CACHE": str(tmp_path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "missing: no C++ compiler: CXX=no-such-compiler not found: install one" in done.stdout
    assert "cpp 8" not in done.stdout and "eager 8" in done.stdout

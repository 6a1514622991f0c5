"""The measurements of one accelerator run to their end on a CPU, go on where they stopped, and say what is unmeasured."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

import partwise
from recipes import error

ROOT = Path(__file__).parents[2]
BENCHMARKS = ROOT / "benchmarks"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, BENCHMARKS / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


plan = load("accelerator_plan")


def run(*words: str, path: str = "src") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words[:1], str(BENCHMARKS / "accelerator.py"), *words[1:]],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
    )


def test_a_piece_is_measured_once(tmp_path: Path) -> None:
    words = ("-B", "--rehearse", "--only", "attention", "--out", str(tmp_path))
    first = run(*words)
    assert first.returncode == 0, first.stderr
    results = json.loads((tmp_path / "accelerator.json").read_text())
    assert results["rehearsal"] and list(results["pieces"]) == ["attention"]
    assert 0 < results["pieces"]["attention"]["values"]["flash gradients"] < 0.02
    page = (tmp_path / "accelerator.md").read_text()
    assert "A rehearsal at small shapes, which measures nothing" in page and "| unmeasured |" in page
    again = run(*words)
    assert again.returncode == 0 and "attention" in first.stdout and "attention" not in again.stdout
    refused = run("-B", "--page", str(tmp_path))
    assert refused.returncode == 2 and "holds a rehearsal, which measures nothing" in refused.stderr
    results["machine"]["device"] = "another"
    (tmp_path / "accelerator.json").write_text(json.dumps(results))
    other = run(*words)
    assert other.returncode == 2 and len(other.stderr.splitlines()) == 1 and "is of another machine" in other.stderr


def test_a_machine_that_lacks_something_is_one_line(tmp_path: Path) -> None:
    without_gpu = run("-B", "--out", str(tmp_path))
    assert without_gpu.returncode == 2 and without_gpu.stderr.startswith("torch finds no CUDA device here")
    bare = run("-S", "--out", str(tmp_path))  # without site-packages
    assert bare.returncode == 2 and len(bare.stderr.splitlines()) == 1
    assert bare.stderr.startswith(
        "missing here: torch, numpy, pydantic, yaml, typing_extensions; where there is a network"
    )
    assert not list(tmp_path.iterdir())


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_all_pieces_run_to_their_end(tmp_path: Path) -> None:
    done = run("-B", "--rehearse", "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr
    pieces = json.loads((tmp_path / "accelerator.json").read_text())["pieces"]
    assert {name: piece.get("error") for name, piece in pieces.items()} == dict.fromkeys(
        piece.name for piece in plan.PIECES
    )


def test_the_page_is_what_the_results_say() -> None:
    piece, row = plan.PIECES[0], plan.PIECES[0].rows[0]
    result = {"values": {row.key: 2e-3}, "notes": ["slow"], "seconds": 1.0}
    page = plan.page({"machine": {"device": "a GPU"}, "pieces": {piece.name: result}})
    assert f"| {piece.name} | {row.what} | 0.002 | at most 0.001 | missed |" in page
    assert "Measured on: a GPU." in page and f"- {piece.name}: slow" in page
    rows = sum(len(piece.rows) for piece in plan.PIECES)
    assert plan.page(plan.read(Path("/nonexistent"))).count("| unmeasured |") == rows
    assert page.count("| unmeasured |") == rows - 1


def test_the_plain_reference_is_the_preset_without_biases() -> None:
    plain = load("plain_gpt")
    sizes = plain.Sizes(layers=2, width=32, heads=4, context=8, vocab=11)
    model = plain.PlainGPT(sizes).double().eval()
    words = "attention.bias=false attention.out_bias=false ffn.bias=false norm.bias=false ffn.approximate=none"
    shape = "d_model=32 n_layers=2 attention.n_heads=4 context_length=8"
    ours = partwise.Transformer(partwise.preset("gpt2", *words.split(), *shape.split(), vocab_size=11)).double().eval()
    names = {"qkv": "attention.qkv", "out": "attention.out", "up": "ffn.up", "down": "ffn.down"}
    names |= {"norm_1": "residual.norms.attention", "norm_2": "residual.norms.ffn"}
    state = {"embed.weight": model.embed.weight, "head.weight": model.embed.weight}
    state |= {"positions.weight": model.positions.weight, "residual.norm.weight": model.norm.weight}
    for index, block in enumerate(model.blocks):
        for name, own in names.items():
            weight = getattr(block, name).weight
            if name == "qkv":
                for key, part in zip("qkv", weight.chunk(3), strict=True):
                    state[f"blocks.{index}.attention.{key}.weight"] = part
            else:
                state[f"blocks.{index}.{own}.weight"] = weight
    ours.load_state_dict(state)
    tokens = torch.arange(16).view(2, 8) % 11
    with torch.no_grad():
        logits, _ = model(tokens, tokens)
        assert error(logits, ours(tokens)) <= 1e-12

"""One, two and four processes compute the same steps, by DDP and FSDP2, and continue each other's states."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data_parallel import CASES, KINDS, config
from partwise.config import ConfigError
from partwise.data import Batch
from partwise.train.distributed.processes import Processes

SCRIPT = Path(__file__).parents[2] / "data_parallel.py"
N_STEPS = 3
EXACT = 1e-12


def train(size: int, folder: Path, *cases: str, steps: int = N_STEPS) -> dict[str, Any]:
    """The results of `size` processes that torchrun starts."""
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(size)] if size > 1 else []
    done = subprocess.run(
        [sys.executable, *torchrun, str(SCRIPT), str(steps), str(folder), *cases],
        capture_output=True,
        text=True,
        timeout=200,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.returncode == 0, done.stderr
    return json.loads((folder / f"{size}.json").read_text())


@pytest.mark.slow
def test_four_processes_equal_one(tmp_path: Path) -> None:
    one, four = (train(size, tmp_path, *CASES) for size in (1, 4))
    for case in CASES:
        expected = np.array(one[f"{case} ddp"]["steps"])
        for kind in KINDS:
            result = four[f"{case} {kind}"]
            assert result["steps"] == pytest.approx(expected, rel=EXACT, abs=0), (case, kind)
            if case == "uneven":  # one reduction a step, not one per micro-batch
                assert result["bytes"] == 8 * config(case).model.parameters() * N_STEPS

    # the state of one process continues on four, and of four, sharded, on one
    for source, target in ((1, 4), (4, 1)):
        folder = tmp_path / f"from {source}"
        folder.mkdir()
        for case in ("plain", "muon"):
            kind = "ddp" if source == 1 else "fsdp"
            state = tmp_path / f"{source}-{case}-{kind}.safetensors"
            (folder / f"start-{case}.safetensors").write_bytes(state.read_bytes())
        train(target, folder, "plain", "muon")
    a, b = (json.loads((tmp_path / f"from {n}" / f"{5 - n}.json").read_text()) for n in (1, 4))
    for case in ("plain", "muon"):
        for kind in KINDS:
            assert a[f"{case} {kind}"]["steps"] == pytest.approx(np.array(b[f"{case} ddp"]["steps"]), rel=EXACT, abs=0)


@pytest.mark.long
def test_a_hundred_steps_of_one_two_and_four_processes_agree(tmp_path: Path) -> None:
    cases = ("plain", "uneven", "pairs", "bias", "muon")
    results = {size: train(size, tmp_path, *cases, steps=100) for size in (1, 2, 4)}
    for case in cases:
        expected = np.array(results[1][f"{case} ddp"]["steps"])
        for size in (2, 4):
            for kind in KINDS:
                steps = np.array(results[size][f"{case} {kind}"]["steps"])
                assert steps[0] == pytest.approx(expected[0], rel=EXACT, abs=0), (case, size, kind)
                assert steps == pytest.approx(expected, rel=1e-9, abs=0), (case, size, kind)


@pytest.mark.parametrize("n_rows", [4, 5, 7])
def test_rows_of_all_ranks_are_the_micro_batch(n_rows: int) -> None:
    batch = Batch(np.arange(n_rows * 2).reshape(n_rows, 2), np.arange(n_rows * 2).reshape(n_rows, 2) + 1)
    pieces = [Processes(rank, 4).rows(batch) for rank in range(4)]
    assert np.array_equal(np.concatenate([piece.inputs for _, piece in pieces]), batch.inputs)
    assert np.array_equal(np.concatenate([piece.targets for _, piece in pieces]), batch.targets)
    assert all(np.array_equal(piece.inputs, batch.inputs[first : first + len(piece.inputs)]) for first, piece in pieces)
    assert all(len(piece.inputs) for _, piece in pieces)


def test_more_processes_than_rows_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"4 processes need as many rows.* has 3 each"):
        Processes(0, 4).check_rows(batch_size=6, grad_accumulation=2)
    Processes(0, 3).check_rows(batch_size=6, grad_accumulation=2)

"""One, two and four processes compute the same steps, by DDP and FSDP2, and continue each other's states."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file

from data_parallel import CASES, KINDS, RESHARDED, Communication, config, new_run
from lazy_imports import lazy_module
from partwise.checkpoint import is_sharded, load_model, tensor_files, verify
from partwise.config import ConfigError
from partwise.data import Batch
from partwise.inspection.memory import step_memory
from partwise.train.distributed.environment import STORE
from partwise.train.distributed.processes import SINGLE, Processes, join
from partwise.train.run_checkpoints import RunCheckpoints

dcp = lazy_module("torch.distributed.checkpoint")

SCRIPT = Path(__file__).parents[2] / "data_parallel.py"
N_STEPS = 3
EXACT = 1e-12


def train(folder: Path, *cases: str, steps: int = N_STEPS) -> dict[str, Any]:
    """The results of four processes, of two of them, and of one."""
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4"]
    done = subprocess.run(
        [sys.executable, *torchrun, str(SCRIPT), str(steps), str(folder), *cases],
        capture_output=True,
        text=True,
        timeout=400,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.returncode == 0, done.stderr
    return json.loads((folder / "results.json").read_text())


@pytest.mark.parametrize(
    "cases", [("plain", "uneven", "fused"), pytest.param(tuple(CASES), marks=pytest.mark.long)], ids=["three", "all"]
)
@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")  # torch's reader, in this process alone
def test_one_launch_of_four_processes(tmp_path: Path, cases: tuple[str, ...]) -> None:
    """One test, so that the processes are launched once."""
    results = train(tmp_path, *cases)
    resharded = RESHARDED & {*cases}
    check_steps_are_equal(results, cases)
    check_gradients_are_communicated_once_a_step(results)
    check_any_number_of_processes_continues(results, resharded)
    check_a_full_disk_on_one_process(results["4 plain fsdp"])
    check_what_differs_is_refused(results)
    check_memory(results["memory"])
    for case in resharded:
        check_shards_become_whole(tmp_path / f"4 {case} fsdp", tmp_path / f"1 {case} ddp", case)


def check_steps_are_equal(results: dict[str, Any], cases: tuple[str, ...]) -> None:
    for case in cases:
        expected = np.array(results[f"1 {case} ddp"]["steps"])
        for size in (2, 4):
            for kind in KINDS:
                steps = results[f"{size} {case} {kind}"]["steps"]
                assert steps == pytest.approx(expected, rel=EXACT, abs=0), (size, case, kind)


def check_gradients_are_communicated_once_a_step(results: dict[str, Any]) -> None:
    """Not once per micro-batch: the batch of this case has two."""
    gradients = 8 * config("uneven").model.parameters() * N_STEPS
    for size in (2, 4):
        ddp, fsdp = (results[f"{size} uneven {kind}"]["bytes"] for kind in KINDS)
        assert ddp["allreduce_"] == gradients + 8 * N_STEPS  # and the loss
        assert gradients <= fsdp["_reduce_scatter_base_"] < 1.01 * gradients  # with rows that fill up the last shard
        # weights: twice per micro-batch for a block, once for what is outside of blocks
        assert 2 * gradients < fsdp["_allgather_base_"] < 4 * gradients
        assert fsdp["allreduce_"] == 2 * 8 * N_STEPS  # the loss and the norm
        assert {*ddp} == {"allreduce_", "broadcast_"} and {*fsdp} == {
            "allreduce_",
            "_reduce_scatter_base_",
            "_allgather_base_",
        }


def check_any_number_of_processes_continues(results: dict[str, Any], resharded: set[str]) -> None:
    """From the checkpoints of any other number, to the next two steps of one process."""
    moves = [name for name in results if "->" in name]
    assert len(moves) == len(resharded) * 5 * 5  # one process has no fsdp
    for name in moves:
        case = name.rpartition(" ")[2]
        assert results[name] == pytest.approx(np.array(results[f"1 {case} ddp"]["next"]), rel=EXACT, abs=0), name


def check_a_full_disk_on_one_process(result: dict[str, Any]) -> None:
    """All end with one line, and the last checkpoint is what is left."""
    first, *others = result["full disk"]
    assert re.fullmatch(r"ConfigError rank 2: cannot write .*: File too large: check disk space and .*", first)
    assert others == ["EndedTogether "] * 3 and result["left"] == [f"step-{N_STEPS:08}"]


def check_what_differs_is_refused(results: dict[str, Any]) -> None:
    """By one line of the first process, before anything is written."""
    for what, named in (
        ("versions", "partwise"),
        ("device", "the device"),
        ("precision", "the precision"),
        ("data", "the data"),
    ):
        first, *others = results["refused"][what]
        assert re.fullmatch(
            rf"ConfigError rank 2 has {named} \S+, but rank 0 has \S+: start every process with .*", first
        )
        assert others == ["EndedTogether "] * 3
    assert results["written"] is False


def check_memory(measured: list[list[int]]) -> None:
    """What `inspect memory --processes 4` says of a process is what the one with the most has, to the byte."""
    with default_dtype(torch.float64):
        expected = step_memory(config("plain", "fsdp"), "float32", rows=2, shards=4)
    most = [max(values) for values in zip(*measured, strict=True)]
    assert most == [expected.weights, expected.gradients, expected.optimizer]


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    earlier = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(earlier)


def check_shards_become_whole(sharded: Path, whole: Path, case: str) -> None:
    """Shards are read by torch's own reader, by every command, and consolidated, with the same tensors."""
    folder, expected = (path / "checkpoints" / f"step-{N_STEPS:08}" for path in (sharded, whole))
    assert len(list(folder.glob("model-shard-*-of-00004.safetensors"))) == 4 and is_sharded(folder)
    assert {path.suffix for path in folder.iterdir()} == {".json", ".safetensors"}
    kinds = {kind: dict(tensor_files(folder, kind)) for kind in ("model", "optimizer")}
    tensors = kinds["model"] | kinds["optimizer"]
    for name, tensor in tensor_files(expected, "model").items():
        assert torch.allclose(tensors[name], tensor, rtol=1e-9, atol=1e-12), name
    read = {name: torch.zeros_like(tensor) for name, tensor in tensors.items() if tensor.ndim}
    dcp.load(read, storage_reader=dcp.HuggingFaceStorageReader(str(folder)), no_dist=True)
    assert all(torch.equal(read[name], tensors[name]) for name in read)
    model, _ = load_model(folder)
    checkpoints = RunCheckpoints(folder.parent, new_run(case, "fsdp", SINGLE), print)
    checkpoints.consolidate()
    verify(folder)
    assert {path.name for path in folder.iterdir()} == {path.name for path in expected.iterdir()}
    for kind, before in kinds.items():
        after = load_file(folder / f"{kind}.safetensors")
        assert {*after} == {*before} and all(torch.equal(after[name], before[name]) for name in after)
    again, _ = load_model(folder)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))
    modified = (folder / "model.safetensors").stat().st_mtime_ns
    checkpoints.consolidate()
    assert (folder / "model.safetensors").stat().st_mtime_ns == modified


@pytest.mark.long
def test_a_hundred_steps_of_one_two_and_four_processes_agree(tmp_path: Path) -> None:
    cases = ("plain", "uneven", "pairs", "bias", "muon")
    results = train(tmp_path, *cases, steps=100)
    for case in cases:
        expected = np.array(results[f"1 {case} ddp"]["steps"])
        for size in (2, 4):
            for kind in KINDS:
                steps = np.array(results[f"{size} {case} {kind}"]["steps"])
                assert steps[0] == pytest.approx(expected[0], rel=EXACT, abs=0), (case, size, kind)
                assert steps == pytest.approx(expected, rel=1e-9, abs=0), (case, size, kind)


@pytest.fixture
def second_of_two() -> Iterator[Processes]:
    """The second of two processes whose other one only torch's fake backend knows: all that it would send is this one's."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=1, world_size=2)
    yield Processes(1, 2)
    dist.destroy_process_group()


@pytest.mark.promise
def test_a_shard_is_its_rows_of_every_tensor(second_of_two: Processes) -> None:
    """Of fused projections, too, which are saved one by one."""
    model = new_run("fused", "fsdp", second_of_two).parallel
    whole = new_run("fused", "fsdp", SINGLE).parallel.weights()
    assert {"blocks.0.attention.k.weight", "blocks.0.attention.v.weight"} < {*model.weights()}
    for name, (data, first, shape) in model.weights().items():
        assert shape == whole[name].shape and torch.equal(data, whole[name].data[first : first + len(data)]), name
    names = model.parameters()
    states = {f"{name}.momentum": torch.randn(tuple(model.shards[name].parameter.shape)) for name in names}
    for name in names:
        rows = model.state_rows(name, model.load_state(name, "momentum", states))
        assert rows is not None and torch.equal(rows.data, states[f"{name}.momentum"][rows.first :]), name


@pytest.mark.promise
def test_gradients_of_two_micro_batches_are_communicated_once(second_of_two: Processes) -> None:
    run = new_run("uneven", "fsdp", second_of_two)
    gradients = 8 * run.config.model.parameters()
    with Communication() as communication:
        run.update()
    assert gradients <= communication.bytes["_reduce_scatter_base_"] < 1.01 * gradients
    replicated = new_run("uneven", "ddp", second_of_two).parallel
    for last in (False, True):
        with replicated.synchronize(last):
            assert replicated.module.require_backward_grad_sync == last


@pytest.mark.parametrize("n_rows", [4, 5, 7])
def test_rows_of_all_ranks_are_the_micro_batch(n_rows: int) -> None:
    batch = Batch(np.arange(n_rows * 2).reshape(n_rows, 2), np.arange(n_rows * 2).reshape(n_rows, 2) + 1)
    pieces = [Processes(rank, 4).rows(batch) for rank in range(4)]
    assert np.array_equal(np.concatenate([piece.inputs for _, piece in pieces]), batch.inputs)
    assert np.array_equal(np.concatenate([piece.targets for _, piece in pieces]), batch.targets)
    assert all(np.array_equal(piece.inputs, batch.inputs[first : first + len(piece.inputs)]) for first, piece in pieces)
    assert all(len(piece.inputs) for _, piece in pieces)


def test_more_processes_than_rows_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"4 processes need at least 4 rows.* gives 3:"):
        Processes(0, 4).check_rows(batch_size=6, grad_accumulation=2)
    Processes(0, 3).check_rows(batch_size=6, grad_accumulation=2)


def test_a_backend_that_is_missing_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", STORE: str(tmp_path / "store")}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(dist, "is_gloo_available", lambda: False)
    with pytest.raises(ConfigError, match=r"^this torch has no gloo, which 2 processes need: start one process$"):
        join()
    monkeypatch.setattr(dist, "is_nccl_available", lambda: False)
    with pytest.raises(
        ConfigError, match=r"^this torch has no nccl, which 2 processes on CUDA need: set train.device=cpu$"
    ):
        Processes(0, 2).check_device("cuda")
    with pytest.raises(ConfigError, match=r"^2 processes cannot share a model on mps: set train.device=cpu$"):
        Processes(0, 2).check_device("mps")
    for device in ("cpu", "cuda", "mps"):
        Processes().check_device(device)
    Processes(0, 2).check_device("cpu")

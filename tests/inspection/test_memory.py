"""The forecast of memory equals torch's tracker, and that of real tensors."""

import gc
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from comparisons import last_of_each
from partwise.cli import main
from partwise.inspection.memory import (
    Allocations,
    compute_losses,
    fake_model,
    gathered_bytes,
    memory_warning,
    step_memory,
)
from partwise.machine import available_memory, is_out_of_memory
from partwise.model import Transformer
from partwise.train.config import RunConfig, run_config

SIZES = (
    "d_model=64",
    "n_layers=2",
    "attention.n_heads=2",
    "context_length=32",
    "train.seq_len=32",
    "train.batch_size=4",
)


def small(preset: str, *overrides: str) -> RunConfig:
    return run_config(preset, *SIZES, *overrides)


class CountersWithoutContent(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return 1 if func is torch.ops.aten._local_scalar_dense.default else func(*args, **(kwargs or {}))


def tracked(config: RunConfig, precision: str, sdpa: bool = False) -> tuple[dict[str, int], int]:
    """By torch's tracker: the live bytes by kind after the forward pass of the second step, and the peak."""
    from torch.distributed._tools.mem_tracker import MemTracker

    with FakeTensorMode(allow_non_fake_inputs=True):
        model = fake_model(config, sdpa)
        optimizer = config.optimizer.build(model, config.train.lr)
        tracker = MemTracker()
        tracker.track_external(model, optimizer)
        with tracker, CountersWithoutContent():
            for _ in range(2):
                tracker.reset_mod_stats()
                loss = compute_losses(model, config, precision, config.train.batch_size)
                middle = tracker.get_tracker_snapshot("current")
                loss.backward()
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
        (live,), (peak,) = middle.values(), tracker.get_tracker_snapshot("peak").values()
    return {getattr(kind, "name", kind): size for kind, size in live.items()}, peak["Total"]


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    "words",
    [["mingpt"], ["llama"], ["toy", "optimizer=muon"], ["mingpt", "ffn=moe"], ["mingpt", "mtp=heads"]],
    ids=" ".join,
)
def test_equals_torchs_tracker(words: list[str], precision: str) -> None:
    config = small(*words)
    ours = step_memory(config, precision)
    live, peak = tracked(config, precision)
    assert ours.weights == 4 * config.model.parameters() == live["PARAM"]
    assert ours.gradients == ours.weights and ours.optimizer == live["OPT"]
    assert ours.activations == pytest.approx(live["ACT"] + live["TEMP"], rel=0.02)
    assert ours.peak == pytest.approx(peak, rel=0.02)


def test_with_sdpa_as_on_accelerators_it_equals_torchs_tracker() -> None:
    """No scores are kept: memory grows linearly with the context."""
    config = small("mingpt", "context_length=256", "train.seq_len=256")
    ours, eager = step_memory(config, "bfloat16", device="cuda"), step_memory(config, "bfloat16")
    live, peak = tracked(config, "bfloat16", sdpa=True)
    assert ours.activations == pytest.approx(live["ACT"] + live["TEMP"], rel=0.02)
    assert ours.peak == pytest.approx(peak, rel=0.02)
    weights, log_sums = 2 * 4 * 2 * 256**2 * 2, 2 * 4 * 2 * 256 * 4  # of two layers, in bfloat16 and in float32
    assert eager.activations - ours.activations == weights - log_sums


def test_real_tensors_take_as_much() -> None:
    config = small("mingpt", "embed_dropout=0.1")
    forecast = step_memory(config, "float32")
    model = Transformer(config.model).train()
    model.reset_backends()
    optimizer = config.optimizer.build(model, 1e-3)
    for _ in range(2):
        gc.collect()
        with Allocations() as allocations:
            for tensor in (
                *model.parameters(),
                *model.buffers(),
                *(v for s in optimizer.state.values() for v in s.values()),
            ):
                allocations.count(tensor)
            before = allocations.live
            loss = compute_losses(model, config, "float32", 4)
            activations = allocations.live - before
            loss.backward()
            optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    assert activations == pytest.approx(forecast.activations, rel=0.02)
    assert allocations.peak == pytest.approx(forecast.peak, rel=0.02)


@pytest.mark.parametrize("n", [1, 2, 3, 64])
def test_parts_of_processes_are_those_of_fully_shard(n: int) -> None:
    """torch divides the first dimension into equal chunks; the last may be smaller or empty."""
    config = small("mingpt", "vocab_size=67")
    with torch.device("meta"):
        parameters = list(Transformer(config.model).parameters())
    first = sum(p.chunk(n)[0].numel() for p in parameters)
    memory = step_memory(config, "float32", 2, shards=n)
    assert memory.weights == memory.gradients == 4 * first
    assert memory.optimizer == 8 * first + 4 * len(parameters)  # two moments and a step counter
    assert gathered_bytes(config) < 4 * config.model.parameters()


def test_gpt2_at_its_size() -> None:
    memory = step_memory(run_config("gpt2", "train.batch_size=1", "context_length=64"), "float32", shards=8)
    assert memory.weights * 8 == pytest.approx(4 * run_config("gpt2", "context_length=64").model.parameters(), rel=1e-3)


LIMITED = """
import resource, sys
import torch
from partwise.cli import main
import partwise.cli.commands.train
size = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmSize")) * 1024
resource.setrlimit(resource.RLIMIT_AS, (size + (700 << 20), resource.RLIM_INFINITY))
main()
"""


def test_too_little_memory_is_one_line_and_the_checkpoint_stays(tmp_path: Path) -> None:
    words = [
        "train",
        "mingpt",
        *SIZES,
        "train.precision=float32",
        "train.steps=2",
        "data=arithmetic",
        "data.train=2000",
    ]
    few = ["data.validation=20", "data.test=5", "train.threads=1", "train.eval_every=1", "train.save_every=1"]
    large = ["train.batch_size=60000", "train.block_backend=eager", "train.attention_backend=eager", "--name", "large"]
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, *last_of_each([*words, *few, *large])],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 2 and done.stderr.count("\n") == 1, done.stderr
    assert done.stderr.startswith("error: out of memory: lower train.batch_size")


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (MemoryError(), True),
        (torch.OutOfMemoryError("CUDA out of memory"), True),
        (
            RuntimeError("[enforce fail at alloc_cpu.cpp:119] err == 0. DefaultCPUAllocator: can't allocate memory"),
            True,
        ),
        (RuntimeError("std::bad_alloc"), True),
        (RuntimeError("shapes differ"), False),
        (ValueError("can't allocate memory"), False),
    ],
)
def test_errors_of_allocators_are_known(error: Exception, expected: bool) -> None:
    assert is_out_of_memory(type(error).__name__, str(error)) == expected


def test_too_little_memory_is_foretold() -> None:
    config = small("mingpt", "data=arithmetic")
    peak = step_memory(config, "float32").peak
    assert memory_warning(config, "float32", None) is None
    assert memory_warning(config, "float32", peak) is None
    warning = memory_warning(config, "float32", peak - 1)
    assert warning is not None and "\n" not in warning and "lower train.batch_size" in warning
    # a model that is small beside the memory is not measured
    assert memory_warning(config, "float32", 2**50) is None
    shared = memory_warning(config, "float32", 2 * peak - 2, runs=2)
    assert shared and "for each of 2 runs" in shared and "--workers 1" in shared
    assert memory_warning(config, "float32", 2 * peak, runs=2) is None


def test_training_warns_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("partwise.cli.commands.train.available_memory", lambda: 1000)
    words = ["train", "mingpt", *SIZES, "data=arithmetic", "data.train=50", "train.steps=1"]
    monkeypatch.setattr(sys, "argv", ["partwise", *words])
    with pytest.raises(SystemExit) as end:
        main()
    assert not end.value.code
    assert "warning: a training step may need" in capsys.readouterr().out


def test_the_memory_that_is_available_is_at_most_the_containers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = available_memory()
    assert free is None or free > 2**20
    for limit, expected in (("max", free), ("5000", 3000), ("1000", 0)):
        (tmp_path / "limit").write_text(limit)
        (tmp_path / "used").write_text("2500")
        (tmp_path / "memory.stat").write_text("file 900\ncached 500\n")
        monkeypatch.setattr("partwise.machine.CONTAINER_MEMORY", ((tmp_path, "limit", "used", "cached"),))
        found = available_memory()
        assert found == expected if limit != "max" else (found is None) == (free is None)

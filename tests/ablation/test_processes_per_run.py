"""`compare --processes-per-run N`: the runs of a comparison, each trained by several processes, by the same executors."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from partwise.ablation.run_comparison import plan_comparison
from partwise.compute.runtime import Runtime
from partwise.config import ConfigError
from partwise.train.run_metadata import read_metadata
from processes import gone

SMALL = (
    "d_model=16 n_layers=1 attention.n_heads=2 context_length=16 train.batch_size=8 train.precision=float32 train.steps=4 "
    "train.eval_every=4 data.train=200 data.validation=20 data.test=20"
)
COMMON = [f"--common={word}" for word in SMALL.split()]
SETTINGS = ["mingpt", "ffn=swiglu", "--seeds=1", "--data=arithmetic", *COMMON]
COMMAND = [sys.executable, "-P", "-m", "partwise", "compare", *SETTINGS]


def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}


def run(folder: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [*COMMAND, *words], cwd=folder, env=environment(), capture_output=True, text=True, timeout=200
    )


def values(folder: Path, name: str) -> dict[str, float]:
    results = json.loads((folder / "runs" / name / "results.json").read_text())
    return {arm["name"]: arm["trials"][0]["value"] for arm in results["arms"]}


@pytest.mark.long
def test_runs_of_two_processes_have_the_values_of_one(tmp_path: Path) -> None:
    done = run(tmp_path, "--name", "two", "--processes-per-run", "2", "--common=train.parallel=fsdp", "--workers", "1")
    assert done.returncode == 0, done.stderr
    one = run(tmp_path, "--name", "one")
    assert one.returncode == 0, one.stderr
    assert values(tmp_path, "two") == pytest.approx(values(tmp_path, "one"), rel=1e-5)
    (trial,) = (tmp_path / "runs/two/runs").glob("*swiglu*/seed-0")
    assert read_metadata(trial)["processes"] == 2 and (trial / "ranks").exists() is False
    assert "accuracy" in json.loads((trial / "result.json").read_text())
    assert json.loads((tmp_path / "runs/two/certificate.json").read_text())["processes_per_run"] == 2
    assert "processes_per_run" not in json.loads((tmp_path / "runs/one/certificate.json").read_text())


@pytest.mark.long
def test_an_interrupt_saves_the_runs_and_ends_all_processes(tmp_path: Path) -> None:
    words = ["--name", "two", "--processes-per-run", "2", "--common=train.steps=3000", "--workers", "1"]
    process = subprocess.Popen(
        [*COMMAND, *words], cwd=tmp_path, env=environment(), stdout=-1, stderr=-1, text=True, process_group=0
    )
    found: list[Path] = []
    deadline = time.monotonic() + 120
    while not found:
        assert process.poll() is None and time.monotonic() < deadline, process.communicate()
        found = [path for path in tmp_path.glob("runs/two/runs/*/seed-0/metrics.jsonl") if path.stat().st_size > 500]
        time.sleep(0.05)
    metrics = found[0]
    pids = [int(path.name) for path in Path("/proc").glob("[0-9]*") if is_rank(path, tmp_path)]
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130 and len(pids) == 2 and all(map(gone, pids)), errors
    assert list(metrics.parent.glob("checkpoints/step-*/manifest.json"))


def is_rank(path: Path, folder: Path) -> bool:
    """Whether a process of this machine is one that trains a run below `folder`."""
    try:
        words = (path / "cmdline").read_bytes().split(b"\0")
        return b"partwise.ablation.rank" in words and (path / "cwd").readlink() == folder
    except OSError:
        return False


@pytest.mark.parametrize(
    ("settings", "words", "message"),
    [
        ({"seeds_per_process": 2}, [], "--processes-per-run 4 and --seeds-per-process 2 cannot be combined"),
        ({"horizons": [4, 8]}, [], "--horizons does not support --processes-per-run 4"),
        ({}, ["train.compile=true"], "train.compile=true does not support --processes-per-run 4"),
        ({}, ["train.batch_size=3"], "4 processes need at least 4 rows per micro-batch, but train.batch_size=3"),
    ],
)
def test_what_processes_cannot_share_is_refused_before_the_first_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], words: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    comparison = plan_comparison(
        "mingpt", "ffn=swiglu", data="arithmetic", common=["d_model=16", *words], processes_per_run=4, **settings
    )
    with pytest.raises(ConfigError, match=re.escape(message)):
        comparison.run()


def test_several_runs_share_an_accelerator_if_asked_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each with its share of the threads, under one key; by default one run has the device to itself."""
    monkeypatch.chdir(tmp_path)
    on_accelerator = Runtime("mps", "float32", threads=16, kernels=False)
    monkeypatch.setattr("partwise.ablation.setup.choose_runtime", lambda train: on_accelerator)
    found, keys = [], set[str]()
    for workers in (None, 5):
        comparison = plan_comparison("mingpt", "ffn=swiglu", data="arithmetic", common=["d_model=16"], workers=workers)
        setup = comparison.workload.choose_setup(comparison.plan, timed=False)
        found.append((setup["workers"], setup["runtime"]["threads"]))
        keys.add(comparison.workload.key(comparison.plan.arms[0]))
    assert found == [(1, 16), (5, 3)] and len(keys) == 1


def test_resources_are_those_of_all_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(12)), raising=False)
    comparison = plan_comparison(
        "mingpt", "ffn=swiglu", data="arithmetic", common=["d_model=16", "train.threads=2"], processes_per_run=4
    )
    setup = comparison.workload.choose_setup(comparison.plan, timed=False)
    assert (setup["workers"], setup["processes_per_run"]) == (3, 4)
    assert comparison.workload.resources().cpus == 8
    with pytest.raises(ConfigError, match="--match seconds times steps of one process"):
        comparison.workload.choose_setup(comparison.plan, timed=True)

"""Backends and precision follow the settings and the machine, and a run never changes them."""

import os
import re
from dataclasses import replace
from pathlib import Path

import pytest

import partwise
from kernel_inputs import require_kernels
from partwise.compute.backend_plan import plan_config
from partwise.compute.runtime import choose_runtime, has_fast_bfloat16, requested
from partwise.config import ConfigError
from partwise.train.config import TrainConfig, run_config
from partwise.train.loop import Run


@pytest.fixture(autouse=True)
def kernels(shared_cache: Path) -> None:
    require_kernels()


def test_the_settings_choose_the_backends() -> None:
    config = partwise.preset("mingpt", "d_model=32", "n_layers=2", "ffn.hidden=64")

    def backends(precision: str, **names: str) -> dict[str, dict[str, int]]:
        train = TrainConfig(device="cpu", precision=precision, **names)
        plan = plan_config(config, choose_runtime(train), requested(train))
        return {kind: dict(each) for kind, each in plan.counts().items()}

    for precision in ("float32", "bfloat16"):
        assert backends(precision) == {"block": {"cpp": 2}, "attention": {}, "ffn": {}}
        layers = {"block": {"eager": 2}, "attention": {"cpp": 2}, "ffn": {"cpp": 2}}
        assert backends(precision, block_backend="eager") == layers
    names = {"block_backend": "eager", "ffn_backend": "eager", "attention_backend": "sdpa"}
    assert backends("float32", **names) == {"block": {"eager": 2}, "attention": {"sdpa": 2}, "ffn": {"eager": 2}}


def test_without_a_compiler_cpp_is_refused_and_auto_is_eager(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("partwise.compute.runtime.kernels_available", lambda: False)
    with pytest.raises(partwise.ConfigError, match=r"train.block_backend=cpp requires a CPU and a C\+\+ compiler"):
        choose_runtime(TrainConfig(device="cpu", block_backend="cpp"))
    assert not choose_runtime(TrainConfig(device="cpu")).kernels


def test_a_run_started_with_kernels_does_not_resume_without(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = choose_runtime(TrainConfig(precision="float32", device="cpu", attention_backend="sdpa"))
    runtime.check()
    monkeypatch.setattr("partwise.compute.runtime.kernels_available", lambda: False)
    with pytest.raises(partwise.ConfigError, match=r"started with the C\+\+ kernels"):
        runtime.check()
    choose_runtime(TrainConfig(precision="float32", device="cpu")).check()


@pytest.mark.parametrize(
    ("backend", "word"),
    [
        ("block_backend", "attention.window=4"),
        ("block_backend", "attention.fused_qkv=false"),
        ("ffn_backend", "ffn=elu"),
        ("ffn_backend", "ffn.hidden_dropout=0.1"),
        ("attention_backend", "attention.softcap=20"),
    ],
)
def test_a_forced_backend_that_no_layer_supports_is_refused(backend: str, word: str) -> None:
    """It is accepted if one of two layers supports it."""
    words = ["d_model=32", "n_layers=2", "attention.n_heads=2", "train.device=cpu", f"train.{backend}=cpp"]
    data = ["data=arithmetic", "data.validation=10", "data.test=10"]
    with pytest.raises(partwise.ConfigError, match=rf"train.{backend}=cpp supports no layer of this model.*auto"):
        Run(run_config("mingpt", *words, *data, word))
    Run(run_config("mingpt", *words, *data, "ffn=[relu,elu]"))


def test_precision_is_bfloat16_on_hardware_that_supports_it() -> None:
    expected = "bfloat16" if has_fast_bfloat16("cpu") else "float32"
    assert choose_runtime(TrainConfig(device="cpu")).precision == expected


def test_threads_that_would_end_the_process_are_refused() -> None:
    cores = os.cpu_count() or 1
    with pytest.raises(ConfigError, match=f"train.threads=100000: this machine has {cores} cores; more threads"):
        choose_runtime(TrainConfig(threads=100_000))
    assert choose_runtime(TrainConfig(threads=4 * cores)).threads == 4 * cores


def test_a_run_keeps_the_build_of_its_kernels() -> None:
    """Another build rounds otherwise: a run that began with one is refused by another; older runs do not name theirs."""
    chosen = choose_runtime(TrainConfig(device="cpu"))
    assert re.fullmatch(r"[0-9a-f]{12}", chosen.kernel_build)
    chosen.check()
    replace(chosen, kernel_build="").check()
    with pytest.raises(
        ConfigError, match=rf"build other of the C\+\+ kernels, and here they are build {chosen.kernel_build}"
    ):
        replace(chosen, kernel_build="other").check()
    torch_alone = TrainConfig(device="cpu", attention_backend="eager", ffn_backend="eager", block_backend="eager")
    assert choose_runtime(torch_alone).kernel_build == ""

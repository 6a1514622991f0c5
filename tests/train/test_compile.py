"""Training with torch.compile: the same steps, one compilation, and refusals of one line."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from partwise.compute import compilation
from partwise.compute.compilation import REPLAYED, CompiledModel, cannot_compile, in_short, is_small
from partwise.compute.runtime import choose_runtime
from partwise.config import ConfigError
from partwise.model import Transformer
from partwise.presets import PRESETS
from partwise.train.config import RunConfig, TrainConfig, run_config
from partwise.train.loop import Run
from partwise.train.run_folder import RunFolder

SMALL = (
    "d_model=32 attention.n_heads=4 context_length=32 train.seq_len=32 train.batch_size=4 train.steps=100 "
    "train.device=cpu train.precision=float32 data.train=500 data.validation=20 data.test=5"
)
DEPTHS = {"deepseek": 4}  # the length of its list of parts
FAMILIES = sorted({name.partition("-")[0] for name in PRESETS} - {"pythia"})
"""Other sizes have the same parts."""
EAGER = [f"train.{kind}_backend=eager" for kind in ("block", "attention", "ffn")]
FAST = {"mingpt", "gpt2", "llama"}
GRAPHS = 3
"""The model; the loss, and its gradient."""


def config(preset: str, *more: str) -> RunConfig:
    depth = DEPTHS.get(preset, 2)
    words = [*SMALL.split(), f"n_layers={depth}"]
    pairs = bool(PRESETS[preset].settings.get("encoder_layers"))
    words += ["data=arithmetic_pairs", f"encoder_layers={depth}"] if pairs else ["data=arithmetic"]
    return run_config(preset, *words, *more)


def steps(config: RunConfig, n: int = 3) -> tuple[Run, list[float]]:
    run = Run(config)
    run.model.double()
    return run, [value for step in (run.update() for _ in range(n)) for value in (step.loss, step.grad_norm)]


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trace the model and its gradients as for inductor, without compiling them."""
    monkeypatch.setattr("partwise.compute.compilation.COMPILER", "aot_eager")
    torch._dynamo.reset()


def check_equal(preset: str, *words: str) -> None:
    _, expected = steps(config(preset, *words, "train.compile=false", *EAGER))
    before = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    run, found = steps(config(preset, *words, "train.compile=true", *EAGER))
    assert found == pytest.approx(expected, rel=1e-10)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] - before == GRAPHS
    assert run.runtime.compile and not run.runtime.kernels


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # in torch's own code
@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize(
    "preset", [pytest.param(name, marks=[] if name in FAST else [pytest.mark.long]) for name in FAMILIES]
)
def test_every_preset_is_one_graph(preset: str) -> None:
    check_equal(preset)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")
@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize(
    "words",
    [
        "residual.dropout=0.2 embed_dropout=0.1 train.grad_accumulation=2",
        pytest.param("ffn=moe ffn.n_experts=4 ffn.load_balancing=bias", marks=pytest.mark.long),
        pytest.param("mtp=heads", marks=pytest.mark.long),
    ],
)
def test_parts_with_state_of_their_own_are_compiled_once(words: str) -> None:
    check_equal("gpt2", *words.split())


@pytest.mark.usefixtures("traced")
@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")
def test_warming_up_changes_nothing() -> None:
    words = ("ffn=moe", "ffn.n_experts=4", "ffn.load_balancing=bias", "residual.dropout=0.2", "train.compile=true")
    _, expected = steps(config("gpt2", *words))
    run = Run(config("gpt2", *words))
    run.model.double()
    assert run.compile() > 0
    assert [value for step in (run.update() for _ in range(3)) for value in (step.loss, step.grad_norm)] == expected


def test_only_small_steps_of_accelerators_are_cuda_graphs() -> None:
    assert is_small(1e10, "cuda", 1)
    assert not is_small(1e12, "cuda", 1)  # launching is not what takes the time
    assert not is_small(1e10, "cuda", 2)  # micro-batches would overwrite each other's gradients
    assert not is_small(1e10, "cpu", 1)


@pytest.mark.parametrize(("loss", "norm"), [(1.0, 2.0), (1.1, 2.0), (1.0, 2.2)])
def test_a_replay_is_compared_with_the_first_step(loss: float, norm: float, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = iter([*[(1.0, 2.0)] * (REPLAYED - 1), (loss, norm)])
    monkeypatch.setattr(compilation, "warm_up", lambda *_: next(steps))
    unused: Any = None
    assert compilation.replays_equal_steps(unused, unused) == ((loss, norm) == (1.0, 2.0))


@pytest.mark.usefixtures("traced")
@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")
@pytest.mark.parametrize(
    "failure", ["another loss", *(pytest.param(each, marks=pytest.mark.long) for each in ("", "no recording"))]
)
def test_cuda_graphs_that_do_not_repeat_a_step_are_not_used(failure: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(config("gpt2", "train.compile=true", "residual.dropout=0.2", *EAGER))
    _, expected = steps(config("gpt2", "train.compile=true", "residual.dropout=0.2", *EAGER), 1)
    run.model.double()
    made: list[bool] = []

    class Model(CompiledModel):
        def __init__(self, model: Transformer, cuda_graphs: bool = False) -> None:
            super().__init__(model)
            made.append(cuda_graphs)
            self.calls = 0

        def __call__(self, *inputs: Any, **options: Any) -> torch.Tensor:
            self.calls += 1
            if made[-1] and failure == "no recording":
                raise RuntimeError("operation not permitted when stream is capturing")
            wrong = made[-1] and failure == "another loss" and self.calls == REPLAYED
            return super().__call__(*inputs, **options) * (1.1 if wrong else 1.0)

    monkeypatch.setattr("partwise.train.loop.is_small", lambda *_: True)
    monkeypatch.setattr("partwise.train.loop.CompiledModel", Model)
    assert run.compile() > 0
    assert made == ([True, False] if failure else [True])
    step = run.update()
    assert [step.loss, step.grad_norm] == pytest.approx(expected, rel=1e-10)


def test_settings_that_exclude_each_other_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"does not support train\.activation_checkpointing"):
        config("mingpt", "train.compile=true", "train.activation_checkpointing=true")
    with pytest.raises(ConfigError, match=r"train.ffn_backend=cpp: train.compile=true compiles"):
        Run(config("mingpt", "train.compile=true", "train.ffn_backend=cpp"))


def test_only_cuda_compiles_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not choose_runtime(TrainConfig(device="cpu")).compile
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for settings, expected in (
        ({}, True),
        ({"compile": False}, False),
        ({"activation_checkpointing": True}, False),
    ):
        assert choose_runtime(TrainConfig(device="cuda", precision="float32", **settings)).compile == expected


def test_spaces_in_the_environments_path_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    message = (
        "CppCompileError: C++ compile error Command: g++ ... cannot find clone/lib/python3.11/site-packages/torch/lib"
    )
    monkeypatch.setattr(torch, "__file__", "/home/Ada/models/torch/__init__.py")
    assert "torch cannot compile this model here (CppCompileError" in cannot_compile(message)
    monkeypatch.setattr(torch, "__file__", "/home/Ada/my models/torch/__init__.py")
    assert cannot_compile(message).startswith(
        "torch's compiler cannot read /home/Ada/my models/torch, which has spaces"
    )
    assert "torch cannot compile this model here (Unsupported" in cannot_compile("Unsupported: a graph break")


def test_a_model_that_cannot_be_compiled_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch._dynamo.reset()
    run = RunFolder(tmp_path / "run", config("mingpt", "train.compile=true"))
    block = run.run.model.blocks[0]
    original = block.eager
    monkeypatch.setattr(block, "eager", lambda x, ctx: original(x * float(x.sum().item() != 7), ctx))
    with (
        torch._dynamo.config.patch(capture_scalar_outputs=False),  # monkeypatch would hide it from other tests
        pytest.raises(ConfigError, match=r"torch cannot compile this model here \(.*use train.compile=false"),
    ):
        run.run.compile()
    run.close()


def test_a_long_reason_keeps_its_cause() -> None:
    """The cause is at the end of a traceback, before the hint about verbosity."""
    traceback = f"SubprocException: a kernel\n  File {'x' * 2000}\nValueError('Scalar 3449720151 is out of range')\n\n"
    reason = in_short(traceback + "Set TORCHDYNAMO_VERBOSE=1 for the internal stack trace")
    assert reason.startswith("SubprocException: a kernel File") and reason.endswith(
        "Scalar 3449720151 is out of range')"
    )
    assert len(reason) <= 250 and in_short("a  short\none") == "a short one"


def test_a_run_that_was_compiled_resumes_with_activation_checkpointing(tmp_path: Path) -> None:
    """As on CUDA, where models are compiled by default."""
    RunFolder(tmp_path / "run", config("mingpt", *EAGER)).close()
    metadata = json.loads((tmp_path / "run/run.json").read_text())
    metadata["runtime"] |= {"compile": True, "kernels": False}
    (tmp_path / "run/run.json").write_text(json.dumps(metadata))
    for settings, compiled in (((), True), (("train.activation_checkpointing=true",), False)):
        run = RunFolder(tmp_path / "run", config("mingpt", *EAGER, *settings))
        run.close()
        assert run.runtime.compile == run.run.runtime.compile == compiled

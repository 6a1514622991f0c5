"""`train.deterministic=true`: results that are bitwise equal for any number of threads."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import golden_hashes
from partwise.config import ConfigError
from partwise.kernels.library import kernels_available
from partwise.kernels.threads import gradient_parts, kernel_threads, set_threads
from partwise.train.config import RunConfig, run_config
from partwise.train.evaluation import evaluate
from partwise.train.loop import Run, Step
from partwise.train.result import verified_result
from partwise.train.run_folder import Interrupted, RunFolder, check_processes

# wide enough that torch divides the matmuls, the sums and the gradient norms of every family among threads
WIDE = [
    "d_model=96",
    "n_layers=1",
    "attention.n_heads=4",
    "context_length=64",
    "train.batch_size=9",
    "train.steps=2",
    "train.grad_clip=1.0",
    "train.device=cpu",
]
DROPOUT = ["embed_dropout=0.1", "attention.dropout=0.1", "residual.dropout=0.1"]
EAGER = ["train.block_backend=eager", "train.attention_backend=eager", "train.ffn_backend=eager"]
FLOAT32, BFLOAT16 = "train.precision=float32", "train.precision=bfloat16"
CASES = {
    "blocks": [FLOAT32, *DROPOUT],
    "blocks in bfloat16": [BFLOAT16, *DROPOUT],
    "layers": [FLOAT32, "train.block_backend=eager", "train.seq_len=32"],
    "layers in bfloat16": [BFLOAT16, "train.block_backend=eager"],
    "torch": [FLOAT32, *EAGER, *DROPOUT],
    "experts and muon": [FLOAT32, "ffn=moe", "optimizer=muon"],
}


@pytest.fixture
def wide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., RunConfig]:
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text("".join(chr(97 + i * i % 23) for i in range(4000)))
    return lambda *words: run_config("mingpt", *WIDE, *words, data="text.txt")


def state_of(run: Run) -> str:
    """A hash of every bit of the weights and of the optimizer's state."""
    tensors = {**run.model.state_dict(), **run.optimizer_tensors()}
    content = (tensors[name].contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() for name in sorted(tensors))
    return hashlib.sha256(b"".join(content)).hexdigest()


def ends(config: RunConfig) -> tuple[str, float, float]:
    """The state, the validation loss and the gradient norm that a run comes to."""
    run = Run(config)
    norm = [step.grad_norm for step in run.steps()][-1]
    return state_of(run), evaluate(run).validation, norm


@pytest.mark.parametrize("case", CASES)
def test_the_number_of_threads_changes_nothing(case: str, wide: Callable[..., RunConfig]) -> None:
    found = {ends(wide(*CASES[case], "train.deterministic=true", f"train.threads={n}")) for n in (1, 2, 7)}
    assert len(found) == 1


@pytest.mark.parametrize("case", ["blocks", "layers in bfloat16", "torch"])
def test_without_the_setting_it_changes_the_rounding(case: str, wide: Callable[..., RunConfig]) -> None:
    """Else the test above would prove nothing."""
    if case != "torch" and not kernels_available():
        pytest.skip("no C++ compiler")
    found = {ends(wide(*CASES[case], f"train.threads={n}")) for n in (1, 2, 7)}
    assert len(found) > 1


def test_threads_are_those_of_the_run_in_every_step(wide: Callable[..., RunConfig]) -> None:
    run = Run(wide(FLOAT32, "train.deterministic=true", "train.threads=2"))
    seen: list[tuple[int, int, int]] = []
    forward = run.training_losses
    run.training_losses = lambda batch: (  # type: ignore[method-assign]
        seen.append((torch.get_num_threads(), kernel_threads(), gradient_parts(100))),
        forward(batch),
    )[1]
    for threads in (3, 4):
        set_threads(threads)  # as another run of this process might
        run.update()
    assert seen == [(1, 2, 8)] * 2
    set_threads(3)
    assert (torch.get_num_threads(), kernel_threads(), gradient_parts(100)) == (3, 3, 3)


def test_a_deterministic_run_resumes_with_any_number_of_threads(wide: Callable[..., RunConfig], tmp_path: Path) -> None:
    def train(path: Path, threads: int, stop: int | None = None) -> list[str]:
        said: list[str] = []
        config = wide(FLOAT32, "train.deterministic=true", f"train.threads={threads}")
        folder = RunFolder(path, config, log=said.append)
        assert folder.run.runtime.threads == threads
        try:
            for event in folder.events():
                folder.stop_requested = isinstance(event, Step) and event.step == stop
        except Interrupted:
            pass
        return said

    train(tmp_path / "whole", 1)
    assert train(tmp_path / "stopped", 1, stop=1) == []
    assert train(tmp_path / "stopped", 2) == []
    tensors = [
        (tmp_path / name / "checkpoints/step-00000002/model.safetensors").read_bytes() for name in ("whole", "stopped")
    ]
    assert tensors[0] == tensors[1]
    for threads in (1, 5):  # the result belongs to the run, whatever its threads are
        config = wide(FLOAT32, "train.deterministic=true", f"train.threads={threads}")
        assert verified_result(tmp_path / "stopped", config.to_stored()) is not None
    with pytest.raises(ConfigError, match=r"train\.threads was 1, now 2"):
        RunFolder(tmp_path / "other", wide(FLOAT32, "train.threads=1")).close()
        RunFolder(tmp_path / "other", wide(FLOAT32, "train.threads=2"))


def test_what_it_does_not_cover_is_refused(wide: Callable[..., RunConfig], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(ConfigError, match=r"supported on CPU only, not with train\.device=cuda"):
        Run(wide(FLOAT32, "train.deterministic=true", "train.device=cuda"))
    for setting in (
        "train.deterministic=true",
        "train.compile=true",
    ):  # the number of processes changes the rounding of sums
        check_processes(wide(FLOAT32, setting), 1)
        with pytest.raises(ConfigError, match="does not support 2 processes"):
            check_processes(wide(FLOAT32, setting), 2)


def test_runs_come_to_the_hashes_that_are_kept_for_this_machine() -> None:
    """A difference is a change of the code that changed what is computed: if it was meant, python tests/golden_hashes.py."""
    kept = json.loads(golden_hashes.FILE.read_text())
    kind = golden_hashes.machine_kind()
    if kind not in kept:
        pytest.skip(f"no hashes are kept for {kind}: python tests/golden_hashes.py adds them")
    assert golden_hashes.found() == kept[kind]

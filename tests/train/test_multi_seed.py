"""Multi-seed training equals separate runs up to rounding, also when a run diverges or all are stopped and resumed."""

import itertools
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, reject, settings

import partwise
from partwise.ablation.run_comparison import plan_comparison
from partwise.config import ConfigError
from partwise.data import Corpus
from partwise.kernels.library import kernels_available
from partwise.parts.feed_forward.router import Router
from partwise.tokenizers import TokenizerRecipe
from partwise.train.config import RunConfig, TrainConfig
from partwise.train.loop import Diverged, Run, Step
from partwise.train.metrics import read_metrics
from partwise.train.multi_seed import train_seeds
from partwise.train.multi_seed_trainer import CannotVectorize, MultiSeedTrainer
from partwise.train.optimizers import AdamW, Optimizer
from partwise.train.run_folder import RunFolder
from partwise.train.schedules import Schedule
from partwise.train.seed_stack import SeedStack
from recipes import LENGTH, configs

Tiny = Callable[..., RunConfig]
PLAIN = ["train.attention_backend=eager", "train.ffn_backend=eager", "train.block_backend=eager", "train.threads=1"]
TEXT = "abcadbeacbdaecbadbcaedabcbdaeabcdeabdceabdacbdebacda" * 6


@pytest.fixture
def float64() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def runs(config: Callable[[int], RunConfig], seeds: int = 3) -> list[Run]:
    return [Run(config(seed)) for seed in range(seeds)]


def relative_error(step: Step, expected: Step) -> float:
    return max(
        abs(step.loss - expected.loss) / abs(expected.loss),
        abs(step.grad_norm - expected.grad_norm) / (1e-9 + expected.grad_norm),
    )


SETTINGS = {
    "plain": [],
    "dropout": ["embed_dropout=0.1", "attention.dropout=0.1", "ffn.hidden_dropout=0.2", "residual.dropout=0.3"],
    "gradient clipping and accumulation": ["train.grad_clip=0.3", "train.grad_accumulation=2", "residual.dropout=0.3"],
    "muon": ["optimizer=muon", "attention.n_kv_heads=1", "ffn=swiglu"],
    "lion": ["optimizer=lion", "tie_embeddings=true"],
    "sgd": ["optimizer=sgd", "optimizer.momentum=0.9", "train.lr=0.1"],
    "frozen": ["train.freeze=embed,blocks.0,attention", "train.grad_clip=0.3", "optimizer=muon"],
    "averaged weights": ["averaging=ema", "averaging.decay=0.6", "optimizer=muon"],
    "label smoothing": ["train.label_smoothing=0.1", "schedule=cosine", "head_bias=true"],
    "padded problems": [
        "data.aligned=true",
        "data.answer_only_loss=true",
        "data.padding=0",
        "context_length=40",
    ],
    "multi-token prediction, from the third step on": [
        "mtp=heads",
        "mtp.n_tokens=3",
        "mtp.start_fraction=0.3",
        "train.grad_accumulation=2",
    ],
    "grouped-query attention with sdpa": [
        "attention.n_heads=4",
        "attention.n_kv_heads=2",
        "train.attention_backend=sdpa",
    ],
    "sliding windows with sdpa": ["attention.window=5", "positions=rope", "train.attention_backend=sdpa"],
}


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("words", SETTINGS.values(), ids=SETTINGS)
def test_each_seed_equals_a_separate_run(words: list[str], tiny: Tiny) -> None:
    def config(seed: int) -> RunConfig:
        return tiny(*PLAIN, *words, f"train.seed={seed}")

    vectorized, separate = runs(config), runs(config)
    MultiSeedTrainer(vectorized)
    for _ in range(4):
        for one, other in zip(vectorized, separate, strict=True):
            assert relative_error(one.update(), other.update()) < 1e-11
    tokens = torch.arange(8)[None]
    for one, other in zip(vectorized, separate, strict=True):
        logits, expected = (run.model.eval()(tokens) for run in (one, other))
        torch.testing.assert_close(logits, expected, rtol=1e-9, atol=1e-9)
        state, expected_state = one.optimizer_tensors(), other.optimizer_tensors()
        assert state.keys() == expected_state.keys()
        assert {name: value.shape for name, value in state.items()} == {
            name: value.shape for name, value in expected_state.items()
        }


@pytest.mark.usefixtures("float64")
@settings(max_examples=20)
@given(model=configs())
def test_random_models_equal_separate_runs_or_cannot_be_vectorized(
    model: partwise.ModelConfig, tmp_path_factory: pytest.TempPathFactory
) -> None:
    if model.encoder_layers:  # trained on pairs; see below
        reject()
    text = tmp_path_factory.getbasetemp() / "letters.txt"
    text.write_text(TEXT)

    def config(seed: int) -> RunConfig:
        train = TrainConfig(
            seed=seed, lr=0.05, batch_size=2, seq_len=LENGTH, precision="float32", device="cpu",
            attention_backend="eager", ffn_backend="eager", block_backend="eager", threads=1,
        )  # fmt: skip
        parts = {"optimizer": Optimizer.resolve("sgd"), "schedule": Schedule.resolve("constant")}
        corpus, recipe = Corpus.resolve({"part": "text", "path": str(text)}), TokenizerRecipe.resolve("characters")
        return RunConfig(model=model, train=train, data=corpus, tokenizer=recipe, **parts)  # type: ignore[arg-type]

    vectorized, separate = runs(config, 2), runs(config, 2)
    try:
        MultiSeedTrainer(vectorized)
    except CannotVectorize:
        assert any(isinstance(module, Router) for module in vectorized[0].model.modules())
    for _ in range(3):
        for one, other in zip(vectorized, separate, strict=True):
            assert relative_error(one.update(), other.update()) < 1e-8


@pytest.mark.usefixtures("float64")
@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")  # in torch's own code
@pytest.mark.long
@pytest.mark.parametrize(
    "words",
    [
        "residual.dropout=0.2 embed_dropout=0.1 attention.dropout=0.1 train.grad_accumulation=2",
        "mtp=heads ffn=swiglu positions=rope optimizer=muon train.label_smoothing=0.1",
    ],
)
def test_compiled_seeds_equal_separate_runs(words: str, tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("partwise.compute.compilation.COMPILER", "aot_eager")
    torch._dynamo.reset()

    def config(seed: int) -> RunConfig:
        return tiny(*PLAIN, *words.split(), f"train.seed={seed}", "train.compile=true")

    vectorized, separate = runs(config), runs(lambda seed: config(seed).with_override("train.compile=false"))
    trainer = MultiSeedTrainer(vectorized)
    graphs = []
    for _ in range(3):
        for one, other in zip(vectorized, separate, strict=True):
            assert relative_error(one.update(), other.update()) < 1e-10
        graphs.append(torch._dynamo.utils.counters["stats"]["unique_graphs"])
    assert trainer.stack is not None and trainer.stack.forward.compiled
    assert graphs[1] == graphs[2]


@pytest.mark.usefixtures("float64")
def test_a_diverging_run_does_not_affect_the_others(tiny: Tiny) -> None:
    def config(seed: int) -> RunConfig:
        return tiny(*PLAIN, "optimizer=muon", f"train.seed={seed}")

    vectorized, separate = runs(config), runs(config)
    trainer = MultiSeedTrainer(vectorized)
    for run in (*vectorized, *separate):
        run.update()
    with torch.no_grad():
        vectorized[1].model.head.weight[0, 0] = float("inf")
    before = vectorized[1].model.embed.weight.clone()
    assert vectorized[0].update().loss == pytest.approx(separate[0].update().loss, rel=1e-12)
    with pytest.raises(Diverged, match="step 2: loss"):
        vectorized[1].update()
    assert vectorized[2].update().loss == pytest.approx(separate[2].update().loss, rel=1e-12)
    assert torch.equal(vectorized[1].model.embed.weight, before) and vectorized[1].step == 1
    assert trainer.runs == [vectorized[0], vectorized[2]]
    for index in (0, 2):
        assert relative_error(vectorized[index].update(), separate[index].update()) < 1e-11


def folders(path: Path, tiny: Tiny, *words: str, seeds: int = 3) -> list[RunFolder]:
    messages: list[str] = []
    return [
        RunFolder(path / str(seed), tiny(*PLAIN, *words, f"train.seed={seed}"), log=messages.append)
        for seed in range(seeds)
    ]


def losses(path: Path) -> list[float]:
    return [line["loss"] for line in read_metrics(path) if line["kind"] == "step"]


def test_stopped_and_resumed_seeds_equal_separate_runs(tmp_path: Path, tiny: Tiny) -> None:
    """One of the runs stops at another step than the others, so it must train separately."""
    stops = iter([False] * 4 + [True] * 20)
    assert train_seeds(folders(tmp_path / "cut", tiny), lambda: next(stops)) == ["interrupted"] * 3
    stopped = folders(tmp_path / "cut", tiny)
    assert {folder.run.step for folder in stopped} == {folder.run.step for folder in stopped[:1]} != {6}
    stops = iter([False, True, True, True])
    for folder in stopped[1:]:
        folder.close()
    assert train_seeds(stopped[:1], lambda: next(stops)) == ["interrupted"]
    assert train_seeds(folders(tmp_path / "cut", tiny), lambda: False) == ["done"] * 3
    for folder in folders(tmp_path / "uninterrupted", tiny):
        assert train_seeds([folder], lambda: False) == ["done"]
    for seed in range(3):
        cut, uninterrupted = losses(tmp_path / "cut" / str(seed)), losses(tmp_path / "uninterrupted" / str(seed))
        assert len(cut) == len(uninterrupted) == 6
        assert cut == pytest.approx(uninterrupted, rel=1e-5)


def test_runs_save_after_the_same_step_at_any_time(tmp_path: Path, tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint that is due between the turns of two runs waits for the next round: the first has moved on."""
    clock, advance = itertools.count(), MultiSeedTrainer._advance

    def slow(trainer: MultiSeedTrainer, stack: SeedStack) -> None:
        advance(trainer, stack)
        for _ in range(20):
            next(clock)

    monkeypatch.setattr(MultiSeedTrainer, "_advance", slow)
    monkeypatch.setattr("partwise.train.run_folder.SAVE_SECONDS", 45)
    monkeypatch.setattr(
        "partwise.train.run_folder.time", SimpleNamespace(**{**vars(time), "monotonic": lambda: next(clock)})
    )
    run_folders = folders(tmp_path, tiny, "train.eval_every=6")
    saved: list[list[int]] = [[] for _ in run_folders]
    for folder, steps in zip(run_folders, saved, strict=True):
        monkeypatch.setattr(folder.checkpoints, "save", lambda run=folder.run, steps=steps: steps.append(run.step))
    assert train_seeds(run_folders, lambda: False) == ["done"] * 3
    assert saved[0] == saved[1] == saved[2] and len(saved[0]) > 1


def test_weights_of_a_later_step_are_not_saved(tmp_path: Path, tiny: Tiny) -> None:
    run_folders = folders(tmp_path, tiny, seeds=2)
    MultiSeedTrainer([folder.run for folder in run_folders])
    run_folders[0].run.update()
    with pytest.raises(RuntimeError, match="the weights are not those of step 0"):
        run_folders[1].checkpoints.save()
    run_folders[1].run.update()
    run_folders[1].checkpoints.save()
    for folder in run_folders:
        folder.close()


ALIGNED = ["data.aligned=true", "data.padding=0", "context_length=40"]
PAIRS = ["encoder_layers=1", "n_layers=1", "data=arithmetic_pairs", "context_length=32"]


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["ffn=moe", "ffn.n_experts=3", "ffn.top_k=2"], "mixtures of experts support one seed"),
        (["train.ffn_backend=cpp"], "the kernels of MLPs and blocks support one seed"),
        (["padding_idx=3"], "the embedding at padding_idx would stay zero for the first seed only"),
        (PAIRS, "encoders support one seed"),
    ],
)
def test_unsupported_models_train_one_seed_at_a_time_and_report_why(
    words: list[str], reason: str, tmp_path: Path, tiny: Tiny
) -> None:
    if "train.ffn_backend=cpp" in words and not kernels_available():
        pytest.skip("no C++ compiler here")
    run_folders = folders(tmp_path, tiny, *words, seeds=2)
    messages: list[str] = []
    run_folders[0].log = messages.append
    assert train_seeds(run_folders, lambda: False) == ["done", "done"]
    assert messages == [f"training one seed at a time: {reason}"]


def test_an_optimizer_must_declare_support_for_several_seeds(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that scales by the norm of a tensor, for example, would mix the seeds of a stack."""
    seeds = runs(lambda seed: tiny(*PLAIN, f"train.seed={seed}"))
    monkeypatch.setattr(AdamW, "supports_multi_seed", False)
    with pytest.raises(CannotVectorize, match="optimizer=adamw does not support several seeds"):
        MultiSeedTrainer(seeds)


def test_different_gradients_are_detected_before_the_first_step(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    seeds = runs(lambda seed: tiny(*PLAIN, f"train.seed={seed}"))
    before = [parameter.clone() for run in seeds for parameter in run.model.parameters()]
    monkeypatch.setattr(SeedStack, "grad_norms", lambda stack: torch.ones(3))
    with pytest.raises(CannotVectorize, match=r"the vectorized gradient norm is 1\.0, but"):
        MultiSeedTrainer(seeds)
    after = [parameter for run in seeds for parameter in run.model.parameters()]
    assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))
    assert all(run.updater is None and not run.optimizer.state for run in seeds)


def test_if_a_run_fails_the_others_are_saved(tmp_path: Path, tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    run_folders = folders(tmp_path, tiny, "train.save_every=2")

    def fail() -> None:
        raise ConfigError("no space left")

    monkeypatch.setattr(run_folders[1].checkpoints, "save", fail)
    assert train_seeds(run_folders, lambda: False) == ["interrupted", "failed no space left", "interrupted"]
    again = folders(tmp_path, tiny, "train.save_every=2")
    assert [folder.run.step for folder in again] == [2, 0, 2]
    for folder in again:
        folder.close()


def test_a_comparison_with_multi_seed_training_equals_one_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    common = [
        "d_model=16", "n_layers=1", "attention.n_heads=2", "context_length=16", "train.batch_size=4", "train.steps=8",
        "train.eval_every=4", "train.precision=float32", "data.train=300", "data.validation=20", "data.test=20",
        "train.device=cpu", "train.attention_backend=eager", "train.ffn_backend=eager", "train.block_backend=eager",
    ]  # fmt: skip
    options: dict[str, Any] = {"data": "arithmetic", "common": common, "seeds": 3}
    vectorized = partwise.compare("mingpt", "ffn=swiglu", name="multi_seed", seeds_per_process=2, **options)
    separate = partwise.compare("mingpt", "ffn=swiglu", name="separate", **options)
    for arm, expected in zip(vectorized.results.arms, separate.results.arms, strict=True):
        assert arm.values == pytest.approx(expected.values, rel=1e-5)
    assert json.loads(Path("runs/multi_seed/compare.json").read_text())["seeds_per_process"] == 2
    status_files = sorted(Path("runs/multi_seed").rglob("status.json"))
    assert [len(json.loads(path.read_text())) for path in status_files] == [2, 1, 2, 1]  # per arm: two seeds, then one
    assert all(
        "seeds_per_process" in json.loads(path.with_name("result.json").read_text()) for path in status_files[::2]
    )
    assert [arm.peak_memory is None for arm in vectorized.results.arms] == [
        False,
        False,
    ]  # of the third seeds, trained separately
    again = plan_comparison("mingpt", "ffn=swiglu", name="multi_seed", seeds_per_process=1, **{**options, "seeds": 4})
    assert [len(arm.values) for arm in again.run().arms] == [4, 4]
    forced = {**options, "common": [*common, "train.ffn_backend=cpp"]}
    with pytest.raises(ConfigError, match="ffn_backend=cpp does not support multi-seed training"):
        plan_comparison("mingpt", "ffn=swiglu", name="forced", seeds_per_process=2, **forced).run()

"""Several seeds as one program: each is to rounding what it is alone, also when another diverges or all are stopped."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, reject, settings

import partwise
from partwise.comparison.experiment import plan_comparison
from partwise.config import ConfigError
from partwise.data import Corpus
from partwise.kernels.library import ready
from partwise.parts.routing import Router
from partwise.tokenizers import TokenizerRecipe
from partwise.train.ensemble import Apart, Ensemble, train_together
from partwise.train.folder import RunFolder
from partwise.train.loop import Diverged, Run, Step
from partwise.train.metrics import read_metrics
from partwise.train.optimizers import AdamW, Optimizer
from partwise.train.schedules import Schedule
from partwise.train.settings import RunConfig, TrainConfig
from recipes import LENGTH, configs

Tiny = Callable[..., RunConfig]
PLAIN = ["train.attention_path=products", "train.ffn_path=torch", "train.block_path=layers", "train.threads=1"]
TEXT = "abcadbeacbdaecbadbcaedabcbdaeabcdeabdceabdacbdebacda" * 6


@pytest.fixture
def float64() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def runs(config: Callable[[int], RunConfig], seeds: int = 3) -> list[Run]:
    return [Run(config(seed)) for seed in range(seeds)]


def gap(one: Step, other: Step) -> float:
    return max(
        abs(one.loss - other.loss) / abs(other.loss), abs(one.grad_norm - other.grad_norm) / (1e-9 + other.grad_norm)
    )


SETTINGS = {
    "plain": [],
    "dropout": ["embed_dropout=0.1", "attention.dropout=0.1", "ffn.hidden_dropout=0.2", "residual.dropout=0.3"],
    "clipped, in micro-batches": ["train.clip=0.3", "train.accumulate=2", "residual.dropout=0.3"],
    "muon": ["optimizer=muon", "attention.n_kv_heads=1", "ffn=swiglu"],
    "lion": ["optimizer=lion", "tied=true"],
    "momentum": ["optimizer=sgd", "optimizer.momentum=0.9", "train.lr=0.1"],
    "smoothed": ["train.label_smoothing=0.1", "schedule=cosine", "head_bias=true"],
    "problems of several lengths": ["data.aligned=true", "data.loss_on=answer", "data.padding=0", "max_len=40"],
    "later tokens, from the third update on": [
        "ahead=heads",
        "ahead.tokens=3",
        "ahead.start=0.3",
        "train.accumulate=2",
    ],
    "grouped heads by torch's kernel": ["attention.n_heads=4", "attention.n_kv_heads=2", "train.attention_path=fused"],
    "windows by torch's kernel": ["attention.window=5", "positions=rope", "train.attention_path=fused"],
}


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("words", SETTINGS.values(), ids=SETTINGS)
def test_each_seed_is_what_it_is_alone(words: list[str], tiny: Tiny) -> None:
    def config(seed: int) -> RunConfig:
        return tiny(*PLAIN, *words, f"train.seed={seed}")

    together, alone = runs(config), runs(config)
    Ensemble(together)
    for _ in range(4):
        for one, other in zip(together, alone, strict=True):
            assert gap(one.update(), other.update()) < 1e-11
    rows = torch.arange(8)[None]
    for one, other in zip(together, alone, strict=True):
        logits, expected = (run.model.eval()(rows) for run in (one, other))
        torch.testing.assert_close(logits, expected, rtol=1e-9, atol=1e-9)
        remembered, expected_state = one.optimizer_tensors(), other.optimizer_tensors()
        assert remembered.keys() == expected_state.keys()
        assert {name: value.shape for name, value in remembered.items()} == {
            name: value.shape for name, value in expected_state.items()
        }


@pytest.mark.usefixtures("float64")
@settings(max_examples=40)
@given(model=configs())
def test_random_models_are_what_they_are_alone_or_are_told_apart(
    model: partwise.ModelConfig, tmp_path_factory: pytest.TempPathFactory
) -> None:
    if model.encoder_layers:  # which learns from pairs: below
        reject()
    text = tmp_path_factory.getbasetemp() / "letters.txt"
    text.write_text(TEXT)

    def config(seed: int) -> RunConfig:
        train = TrainConfig(
            seed=seed, lr=0.05, batch_size=2, context=LENGTH, precision="float32", device="cpu",
            attention_path="products", ffn_path="torch", block_path="layers", threads=1,
        )  # fmt: skip
        parts = {"optimizer": Optimizer.resolve("sgd"), "schedule": Schedule.resolve("constant")}
        corpus, recipe = Corpus.resolve({"part": "text", "path": str(text)}), TokenizerRecipe.resolve("characters")
        return RunConfig(model=model, train=train, data=corpus, tokenizer=recipe, **parts)  # type: ignore[arg-type]

    together, alone = runs(config, 2), runs(config, 2)
    try:
        Ensemble(together)
    except Apart:
        assert any(isinstance(module, Router) for module in together[0].model.modules())
    for _ in range(3):
        for one, other in zip(together, alone, strict=True):
            assert gap(one.update(), other.update()) < 1e-8


@pytest.mark.usefixtures("float64")
def test_a_run_that_diverges_leaves_the_others_as_they_were(tiny: Tiny) -> None:
    def config(seed: int) -> RunConfig:
        return tiny(*PLAIN, "optimizer=muon", f"train.seed={seed}")

    together, alone = runs(config), runs(config)
    ensemble = Ensemble(together)
    for run in (*together, *alone):
        run.update()
    with torch.no_grad():
        together[1].model.head.weight[0, 0] = float("inf")
    before = together[1].model.embed.weight.clone()
    assert together[0].update().loss == pytest.approx(alone[0].update().loss, rel=1e-12)
    with pytest.raises(Diverged, match="step 2: loss"):
        together[1].update()
    assert together[2].update().loss == pytest.approx(alone[2].update().loss, rel=1e-12)
    assert torch.equal(together[1].model.embed.weight, before) and together[1].step == 1
    assert ensemble.runs == [together[0], together[2]]
    for place in (0, 2):
        assert gap(together[place].update(), alone[place].update()) < 1e-11


def folders(path: Path, tiny: Tiny, *words: str, seeds: int = 3) -> list[RunFolder]:
    said: list[str] = []
    return [
        RunFolder(path / str(seed), tiny(*PLAIN, *words, f"train.seed={seed}"), say=said.append)
        for seed in range(seeds)
    ]


def losses(path: Path) -> list[float]:
    return [line["loss"] for line in read_metrics(path) if line["kind"] == "step"]


def test_stopped_and_continued_each_is_what_it_is_alone(tmp_path: Path, tiny: Tiny) -> None:
    """Also where one of them was stopped earlier than the others, and so must be trained alone."""
    asked = iter([False] * 4 + [True] * 20)
    assert train_together(folders(tmp_path / "cut", tiny), lambda: next(asked)) == ["interrupted"] * 3
    late = folders(tmp_path / "cut", tiny)
    assert {folder.run.step for folder in late} == {folder.run.step for folder in late[:1]} != {6}
    asked = iter([False, True, True, True])
    for folder in late[1:]:
        folder.close()
    assert train_together(late[:1], lambda: next(asked)) == ["interrupted"]
    assert train_together(folders(tmp_path / "cut", tiny), lambda: False) == ["done"] * 3
    for folder in folders(tmp_path / "whole", tiny):
        assert train_together([folder], lambda: False) == ["done"]
    for seed in range(3):
        cut, whole = losses(tmp_path / "cut" / str(seed)), losses(tmp_path / "whole" / str(seed))
        assert len(cut) == len(whole) == 6
        assert cut == pytest.approx(whole, rel=1e-5)


ALIGNED = ["data.aligned=true", "data.padding=0", "max_len=40"]
PAIRS = ["encoder_layers=1", "n_layers=1", "data=arithmetic_pairs", "max_len=32"]


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["ffn=moe", "ffn.n_experts=3", "ffn.k=2"], "experts are computed for one seed at a time"),
        (["train.ffn_path=kernel"], "the kernels of perceptrons and blocks know one seed at a time"),
        (["padding_idx=3"], "the table's row at padding_idx would stay zero in the first seed alone"),
        (PAIRS, "sources are read for one seed at a time"),
        (
            [*ALIGNED, "embed_dropout=0.1"],
            "rows of several lengths would not draw the dropout noise that they draw alone",
        ),
    ],
)
def test_what_would_differ_is_trained_alone_and_that_is_said(
    words: list[str], reason: str, tmp_path: Path, tiny: Tiny
) -> None:
    if "train.ffn_path=kernel" in words and not ready():
        pytest.skip("no C++ compiler here")
    several = folders(tmp_path, tiny, *words, seeds=2)
    said: list[str] = []
    several[0].say = said.append
    assert train_together(several, lambda: False) == ["done", "done"]
    assert said == [f"these seeds are trained one after the other: {reason}"]


def test_an_optimizer_that_says_nothing_of_stacks_is_not_given_any(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as one that scales by the norm of a whole tensor: of a stack that would mix the seeds."""
    some = runs(lambda seed: tiny(*PLAIN, f"train.seed={seed}"))
    monkeypatch.setattr(AdamW, "stacks", False)
    with pytest.raises(Apart, match="optimizer=adamw does not say"):
        Ensemble(some)


def test_gradients_that_differ_are_noticed_before_the_first_update(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    some = runs(lambda seed: tiny(*PLAIN, f"train.seed={seed}"))
    before = [parameter.clone() for run in some for parameter in run.model.parameters()]
    monkeypatch.setattr(Ensemble, "_norms", lambda ensemble: torch.ones(3))
    with pytest.raises(Apart, match=r"together a gradient is 1\.0, alone"):
        Ensemble(some)
    after = [parameter for run in some for parameter in run.model.parameters()]
    assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))
    assert all(run.updater is None and not run.optimizer.state for run in some)


def test_one_that_fails_is_named_and_the_others_are_saved(
    tmp_path: Path, tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    several = folders(tmp_path, tiny, "train.save_every=2")

    def full() -> None:
        raise ConfigError("no space left")

    monkeypatch.setattr(several[1], "save", full)
    assert train_together(several, lambda: False) == ["interrupted", "failed no space left", "interrupted"]
    again = folders(tmp_path, tiny, "train.save_every=2")
    assert [folder.run.step for folder in again] == [2, 0, 2]
    for folder in again:
        folder.close()


def test_a_comparison_of_seeds_together_is_the_one_of_seeds_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    common = [
        "d_model=16", "n_layers=1", "attention.n_heads=2", "max_len=16", "train.batch_size=4", "train.steps=8",
        "train.eval_every=4", "train.precision=float32", "data.train=300", "data.validation=20", "data.test=20",
        "train.device=cpu", "train.attention_path=products", "train.ffn_path=torch", "train.block_path=layers",
    ]  # fmt: skip
    asked: dict[str, Any] = {"data": "arithmetic", "common": common, "seeds": 3}
    one = partwise.compare("mingpt", "ffn=swiglu", name="together", together=2, **asked)
    other = partwise.compare("mingpt", "ffn=swiglu", name="alone", **asked)
    for arm, expected in zip(one.results["arms"], other.results["arms"], strict=True):
        assert arm["values"] == pytest.approx(expected["values"], rel=1e-5)
    assert json.loads(Path("runs/together/compare.json").read_text())["together"] == 2
    answers = sorted(Path("runs/together").rglob("status.json"))
    assert [len(json.loads(path.read_text())) for path in answers] == [2, 1, 2, 1]  # of each arm two seeds, and one
    assert all("together" in json.loads(path.with_name("result.json").read_text()) for path in answers[::2])
    assert [arm["peak_memory"] is None for arm in one.results["arms"]] == [False, False]  # of the third seeds, alone
    again = plan_comparison("mingpt", "ffn=swiglu", name="together", together=1, **{**asked, "seeds": 4})
    assert [len(arm["values"]) for arm in again.run()["arms"]] == [4, 4]
    with pytest.raises(ConfigError, match="ffn_path=kernel knows one seed at a time"):
        forced = {**asked, "common": [*common, "train.ffn_path=kernel"]}
        plan_comparison("mingpt", "ffn=swiglu", name="forced", together=2, **forced).run()

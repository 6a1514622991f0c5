"""Parts of a user's own are checked before the first step of a run and on its trained weights, without changing it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import partwise
from own_parts import write_parts
from partwise.checks import model_checks
from partwise.cli import main
from partwise.compute.backends import BACKENDS, Backend
from partwise.compute.runtime import Runtime
from partwise.config import REGISTRY, import_parts, part
from partwise.parts.contracts import FeedForward, LayerContext
from partwise.parts.operations import OperationSpec
from partwise.train.config import RunConfig, run_config
from partwise.train.loop import Run
from partwise.train.run_folder import RunFolder
from partwise.train.run_page import write_run_page

Tiny = Callable[..., RunConfig]
SIZES = ["d_model=8", "n_layers=1", "attention.n_heads=2", "context_length=8", "train.batch_size=4", "train.steps=4"]
WORDS = [*SIZES, "train.precision=float32", "train.save_every=2"]


@pytest.fixture(autouse=True)
def own(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(REGISTRY, "ffn", dict(REGISTRY["ffn"]))
    import_parts(write_parts(here, "train"))


def config(*words: str) -> RunConfig:
    return run_config("mingpt", *WORDS, *words, data="text.txt")


def command(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(
        "sys.argv", ["partwise", "train", "mingpt", "--data", "text.txt", "--name", "own", *WORDS, *words]
    )
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


def test_a_part_that_looks_ahead_is_refused_before_the_first_step(here: Path) -> None:
    for start in (
        lambda: RunFolder(here / "runs/a", config("ffn=ahead_train")),
        lambda: next(Run(config("ffn=ahead_train")).steps()),
    ):
        with pytest.raises(
            partwise.ConfigError, match=r"ffn=ahead_train \(.*parts_train.py\) sees the tokens .* --allow-leak"
        ):
            start()
    assert not (here / "runs/a/run.json").exists()
    RunFolder(here / "runs/a", config("ffn=plain_train")).close()  # the name is free


def test_a_checked_run_equals_one_that_was_not(here: Path) -> None:
    weights = []
    for name, check in (("checked", True), ("unchecked", False)):
        torch.manual_seed(5)
        folder = RunFolder(here / "runs" / name, config("ffn=plain_train"), check_parts=check)
        for _ in folder.events():
            pass
        weights.append(folder.run.model.state_dict())
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    findings = json.loads((here / "runs/checked/run.json").read_text())["findings"]
    assert len(findings) == 5 and {each["outcome"] for each in findings} == {"passed"}
    assert "findings" not in json.loads((here / "runs/unchecked/run.json").read_text())


def test_a_leak_that_is_allowed_is_the_first_line_of_the_page(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(monkeypatch, "ffn=ahead_train") == 2
    assert command(monkeypatch, "ffn=ahead_train", "--allow-leak") == 0
    assert "sees the tokens that it predicts, so its loss means nothing" in capsys.readouterr().out
    page = write_run_page("own").read_text()
    assert page.index("its loss means nothing") < page.index("<h1>")


def test_a_leak_that_training_opens_is_told_at_its_end(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(monkeypatch, "ffn=ahead_train", "ffn.opens=4.0") == 1
    shown = capsys.readouterr().out
    assert "with the trained weights" in shown.splitlines()[-1] and "step 4: validation loss" in shown
    assert "its loss means nothing" in write_run_page("own").read_text()
    assert command(monkeypatch, "ffn=ahead_train", "ffn.opens=4.0", "--allow-leak") == 0  # shows the run again


def test_parts_of_the_package_are_not_checked(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise AssertionError

    monkeypatch.setattr(model_checks, "check_dependence", fail)
    run = Run(config("ffn=swiglu"))
    next(run.steps())
    assert run.findings == []


class Bare(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.up(x)


class WithoutContext(FeedForward):
    def build(self, layer_ctx: LayerContext) -> nn.Module:
        return Bare(layer_ctx.d_model)


class WithoutBuild(FeedForward):
    def build(self, d_model: int, hidden: int) -> nn.Module:  # type: ignore[override]
        return Bare(d_model)


@pytest.mark.parametrize("recipe", [WithoutContext, WithoutBuild])
def test_methods_with_other_arguments_are_told_with_those_that_are_expected(recipe: Any) -> None:
    part("wrong")(recipe)
    expected = r"ffn=wrong .*TypeError: .*argument.*; expected of ffn: build\(layer_ctx\), .* forward\(x, ctx\)"
    with pytest.raises(partwise.ConfigError, match=expected):
        next(Run(config("ffn=wrong")).steps())


class Everywhere(Backend):
    """Attention to every position."""

    kind, name = "attention", "everywhere"

    def rank(self, runtime: Runtime) -> int:
        return -1

    def unsupported(self, spec: OperationSpec, runtime: Runtime) -> str | None:
        return None

    def bind(self, module: nn.Module, spec: OperationSpec) -> "Everywhere":
        return self

    def takes(self, *_: Any) -> bool:
        return True

    def __call__(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: Any) -> torch.Tensor:
        return nn.functional.scaled_dot_product_attention(q, k, v)


def test_a_backend_that_ignores_the_mask_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(BACKENDS, "attention", {**BACKENDS["attention"], "everywhere": Everywhere()})
    with pytest.raises(partwise.ConfigError, match=r"train\.attention_backend=everywhere sees the tokens"):
        next(Run(config("train.attention_backend=everywhere")).steps())


def test_check_prints_what_it_measured(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def check(*words: str) -> int:
        monkeypatch.setattr("sys.argv", ["partwise", "check", *words, *WORDS, "--data", "text.txt"])
        with pytest.raises(SystemExit) as ended:
            main()
        return int(ended.value.code or 0)

    assert check("ffn=plain_train") == 0
    shown = capsys.readouterr().out
    assert shown.startswith("checks of ffn=plain_train (") and " in mingpt ffn=plain_train" in shown
    assert shown.count(" passed ") == 5
    assert check("fast", "ffn=ahead_train") == 1
    shown = capsys.readouterr().out
    assert " leak " in shown and " in fast ffn=ahead_train" in shown and "--allow-leak" in shown
    assert check("ffn=swiglu") == 0  # one of ours
    assert check("ffn=plain_trian") == 2

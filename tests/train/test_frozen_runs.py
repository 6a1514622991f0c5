"""`train.freeze`: frozen tensors end as they began, are in no optimizer, and are not counted as trainable."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import partwise
from partwise import cli
from partwise.checkpoint import latest_checkpoint, load
from partwise.config import ConfigError
from partwise.formats.huggingface.writing import write_hf_folder
from partwise.inspection.gradients import record_norms
from partwise.model import Transformer
from partwise.tensor_files import TensorFiles
from partwise.train.config import RunConfig, run_config
from partwise.train.loop import Run
from partwise.train.run_folder import RunFolder

Tiny = Callable[..., RunConfig]
FREEZE = "train.freeze=embed,blocks.0,blocks.1.attention"


def is_frozen(name: str) -> bool:
    """Written apart from the rule of the product: of two layers, what FREEZE names."""
    return name.startswith(("embed.", "blocks.0.", "blocks.1.attention."))  # and blocks.1.residual.norms.attention


@pytest.mark.parametrize("optimizer", ["adamw", "muon", "lion", "sgd"])
def test_frozen_tensors_do_not_move(optimizer: str, tiny: Tiny) -> None:
    config = tiny(FREEZE, f"optimizer={optimizer}", "optimizer.weight_decay=0.5", "train.lr=0.01")
    run = Run(config)
    before = {name: tensor.clone() for name, tensor in run.model.state_dict().items()}
    for _ in run.steps():
        pass
    moved = {name for name, tensor in run.model.state_dict().items() if not torch.equal(tensor, before[name])}
    assert moved == {name for name in before if not is_frozen(name)}
    grouped = {id(parameter) for group in run.optimizer.param_groups for parameter in group["params"]}
    assert grouped == {id(p) for name, p in run.model.named_parameters() if not is_frozen(name)}
    assert not [name for name in run.optimizer_tensors() if is_frozen(name)]


def test_the_gradient_norm_is_that_of_the_other_tensors(tiny: Tiny) -> None:
    whole, frozen = (
        Run(tiny(*words, "train.block_backend=eager", "train.ffn_backend=eager")) for words in ([], [FREEZE])
    )
    norms, _ = record_norms(whole, 1)
    expected = sum(values[0] ** 2 for name, values in norms.items() if not is_frozen(name)) ** 0.5
    found, (total,) = record_norms(frozen, 1)
    assert total == pytest.approx(expected, rel=1e-5)
    assert {name for name, values in found.items() if values == [0.0]} >= {name for name in found if is_frozen(name)}


def test_trainable_parameters_are_counted(tiny: Tiny) -> None:
    config = tiny(FREEZE)
    tensors = Transformer(config.model).state_dict()
    assert config.trainable_parameters() == sum(t.numel() for name, t in tensors.items() if not is_frozen(name))
    assert config.model.parameters() == tiny().trainable_parameters() == sum(t.numel() for t in tensors.values())
    assert f"({config.trainable_parameters():,} trainable)" in config.count_parameters()
    assert tiny().count_parameters() == f"{config.model.parameters():,} parameters"
    assert FREEZE.removeprefix("train.freeze=") in str(config)


@pytest.mark.parametrize(
    ("value", "said"),
    [("blocks.2", "no tensor has that name"), ("[embed]", "input should be a valid string"), ("3", "valid string")],
)
def test_bad_patterns_are_refused_with_the_configuration(value: str, said: str, tiny: Tiny) -> None:
    with pytest.raises(ConfigError, match=r"^[^\n]*train\.freeze[^\n]*$") as raised:
        tiny(f"train.freeze={value}")
    assert said in str(raised.value)


def test_a_checkpoint_has_every_weight_and_no_state_of_frozen_ones(tiny: Tiny, here: Path) -> None:
    folder = RunFolder(here / "runs" / "a", tiny(FREEZE))
    for _ in folder.events():
        pass
    checkpoint, _ = latest_checkpoint(here / "runs" / "a" / "checkpoints")
    assert checkpoint is not None
    assert TensorFiles([checkpoint / "model.safetensors"]).keys() == folder.run.model.state_dict().keys()
    assert not [name for name in TensorFiles([checkpoint / "optimizer.safetensors"]) if is_frozen(name)]
    with pytest.raises(ConfigError, match=r"contains a different run \(train.freeze was embed"):
        RunFolder(here / "runs" / "a", tiny())


def run_command(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["partwise", *words])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert not ended.value.code


def test_commands_and_pages_count_trainable_parameters(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["d_model=16", "n_layers=2", "attention.n_heads=2", "context_length=16", "train.batch_size=2"]
    words += ["train.steps=2", "train.device=cpu", FREEZE, "--name", "frozen", "--data", "text.txt"]
    run_command(["train", "mingpt", *words], monkeypatch)
    counted = run_config("mingpt", *words[:8], data="text.txt").count_parameters()
    assert " trainable)" in counted and f"frozen: {counted} on cpu" in capsys.readouterr().out
    run_command(["report", "frozen"], monkeypatch)
    assert counted in (here / "runs" / "frozen" / "report.html").read_text()


def test_freezing_gets_a_verdict_in_fine_tuning_a_folder_of_transformers(here: Path) -> None:
    words = ["d_model=16", "n_layers=2", "attention.n_heads=2", "context_length=16", "train.batch_size=4"]
    words += ["train.device=cpu", "train.precision=float32", "train.steps=3"]
    for _ in RunFolder(here / "runs" / "a", run_config("mingpt", *words, "head_bias=false", data="text.txt")).events():
        pass
    model, tokenizer = load(here / "runs" / "a")
    write_hf_folder(model, tokenizer, here / "hf")
    results = partwise.compare(
        "from=hf", arms=[FREEZE], seeds=2, data="text.txt", common=words[4:], name="tuning", progress=False
    ).results
    whole, frozen = results.arms
    assert (results.claims[0].effect.arm, results.claims[0].effect.n) == (FREEZE, 2)
    assert results.claims[0].effect.verdict is not None
    assert whole.parameters == whole.trainable_parameters == frozen.parameters
    tensors = Transformer(run_config("from=hf", *words[4:], data="text.txt").model).state_dict()
    assert frozen.trainable_parameters == sum(t.numel() for name, t in tensors.items() if not is_frozen(name))
    for file in ("report.html", "report.md"):
        report = (here / "runs" / "tuning" / file).read_text()
        assert "trainable" in report and f"{frozen.trainable_parameters:,}" in report
    weights = dict(load(next((here / "runs" / "tuning").rglob("seed-1*/checkpoints")).parent)[0].state_dict())
    assert weights.keys() == tensors.keys()

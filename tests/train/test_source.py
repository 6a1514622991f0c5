"""`from=`: a run starts from the weights of another run or of a folder of `transformers`, and takes over its settings."""

import json
import sys
from pathlib import Path

import pytest
import torch

import partwise
from partwise import cli
from partwise.checkpoint import latest_checkpoint, load
from partwise.config import ConfigError
from partwise.formats.huggingface.function import describe, differences
from partwise.formats.huggingface.writing import write_hf_folder
from partwise.train.config import RunConfig, run_config
from partwise.train.loop import Run
from partwise.train.run_folder import RunFolder

WORDS = ["d_model=16", "n_layers=2", "attention.n_heads=2", "attention.n_kv_heads=1", "ffn.hidden=24"]
WORDS += [
    "context_length=32",
    "train.device=cpu",
    "train.precision=float32",
    "train.steps=3",
    "train.batch_size=4",
    "train.seq_len=32",
]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a trained run, and its model as a folder of `transformers`."""
    folder = tmp_path_factory.mktemp("project")
    for _ in RunFolder(folder / "runs" / "a", run_config("llama3", *WORDS)).events():
        pass
    model, tokenizer = load(folder / "runs" / "a")
    write_hf_folder(model, tokenizer, folder / "hf")
    return folder


@pytest.fixture(autouse=True)
def in_project(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project)


def weights(path: Path) -> dict[str, torch.Tensor]:
    return dict(load(path)[0].state_dict())


@pytest.mark.parametrize("source", ["a", "runs/a", "hf"])
def test_a_run_starts_from_the_weights_of_its_source(source: str, project: Path) -> None:
    config = run_config(f"from={source}", "train.device=cpu", "train.seed=5")
    run = Run(config)
    expected = weights(project / "runs" / "a")
    found = run.model.state_dict()
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())
    assert run.new_tensors == []
    assert run.dataset.tokenizer.vocab_size == 65
    assert not list(differences(describe(config.model), describe(run_config("llama3", *WORDS).model)))


def test_settings_are_taken_over_and_overridden(project: Path) -> None:
    config = run_config("from=a", "train.lr=3e-3", "optimizer=lion", "residual.dropout=0.1")
    assert (config.train.batch_size, config.train.lr, config.optimizer.name) == (4, 3e-3, "lion")
    assert config.model.residual.dropout == 0.1  # type: ignore[attr-defined]
    checkpoint, _ = latest_checkpoint(project / "runs" / "a" / "checkpoints")
    assert config.initial_weights is not None and Path(config.initial_weights.path) == checkpoint


def test_other_data_get_the_ids_of_the_source(project: Path) -> None:
    Path("notes.txt").write_text("to be, or not to be: that is the question.\n" * 200)
    for source in ("a", "hf"):
        run = Run(run_config(f"from={source}", "train.device=cpu", "train.seq_len=16", data="notes.txt"))
        tokenizer = load(project / "runs" / "a")[1]
        assert tokenizer.decode(run.dataset.split("train")[:40]) == Path("notes.txt").read_text()[:40]


def test_the_configuration_is_stored_only_if_there_is_a_source() -> None:
    plain, other = run_config("llama3", *WORDS), run_config("from=hf")
    assert "from" not in plain.to_dict() and RunConfig.from_dict(plain.to_dict()) == plain
    assert other.to_dict()["from"]["reinitialize"] is False and RunConfig.from_dict(other.to_dict()) == other


def test_as_an_override_only_the_weights_are_taken() -> None:
    config = run_config("llama3", *WORDS, "train.lr=0.5", "from=hf")
    assert config.train.lr == 0.5 and config.train.batch_size == 4
    assert Run(config).new_tensors == []


@pytest.mark.parametrize("override", ["attention.n_kv_heads=2", "ffn=geglu ffn.hidden=20", "norm=layernorm"])
def test_tensors_of_another_shape_are_refused_or_random(override: str, project: Path) -> None:
    words = override.split()
    with pytest.raises(ConfigError, match=r"set from\.reinitialize=true") as raised:
        Run(run_config("from=a", "train.device=cpu", *words))
    assert "\n" not in str(raised.value)
    run = Run(run_config("from=a", "train.device=cpu", *words, "from.reinitialize=true"))
    fresh, trained = Run(run_config("llama3", *WORDS, *words)).model.state_dict(), weights(project / "runs" / "a")
    assert run.new_tensors
    for name, tensor in run.model.state_dict().items():
        assert torch.equal(tensor, fresh[name] if name in run.new_tensors else trained[name])


def test_left_over_tensors_are_refused_or_dropped(project: Path) -> None:
    words = ["residual.final_norm=false"]
    with pytest.raises(
        ConfigError,
        match=r"residual.norm.weight is not a tensor of this model \(0 missing or of another shape, 1 unexpected\)",
    ):
        Run(run_config("from=a", "train.device=cpu", *words))
    assert Run(run_config("from=a", "train.device=cpu", *words, "from.reinitialize=true")).new_tensors == []


def test_changed_weights_are_refused(tmp_path: Path) -> None:
    model, tokenizer = load("runs/a")
    write_hf_folder(model, tokenizer, tmp_path / "hf")
    config = run_config(f"from={tmp_path / 'hf'}", "train.device=cpu")
    with torch.no_grad():
        model.embed.weight[0, 0] += 1
    for path in (tmp_path / "hf").iterdir():
        path.unlink()
    write_hf_folder(model, tokenizer, tmp_path / "hf")
    with pytest.raises(ConfigError, match="have changed since the run was planned"):
        Run(config)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["from=nothing"], "there is no run 'nothing'"),
        (["llama3", "from.reinitialize=true"], "'from.path' is missing"),
        (["llama3", "from=nothing"], "there is no run 'nothing'"),
        (["from=a", "from.reinit=true"], "unknown option 'from.reinit'"),
    ],
)
def test_bad_sources_are_one_line(words: list[str], said: str) -> None:
    with pytest.raises(ConfigError) as raised:
        run_config(*words)
    assert said in str(raised.value) and "\n" not in str(raised.value)


def test_a_comparison_judges_choices_of_fine_tuning(project: Path) -> None:
    results = partwise.compare(
        "from=hf", arms=["train.lr=3e-2"], seeds=3, common=["train.steps=4", "train.device=cpu"], name="tuning"
    ).results
    assert "starting from the weights with SHA-256" in results.scope
    assert results.config["from"]["path"] == str(project / "hf")  # type: ignore[index,call-overload]
    assert len(results.claims) == 1 and results.claims[0].effect.n == 3
    with pytest.raises(ConfigError, match="negative_control re-initializes weights"):
        partwise.compare("from=hf", arms=["train.lr=3e-2"], seeds=3, negative_control="ffn", name="control")


def test_the_tensors_that_were_initialized_at_random_are_named(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    change = ["attention.n_kv_heads=2", "from.reinitialize=true"]
    monkeypatch.setattr(sys, "argv", ["partwise", "train", "from=a", *change, "train.device=cpu", "--name", "new"])
    with pytest.raises(SystemExit):
        cli.main()
    names = [f"blocks.{layer}.attention.{name}.weight" for layer in range(2) for name in "kv"]
    first, second = capsys.readouterr().out.splitlines()[:2]
    assert first.startswith("new: ") and second.endswith(f": {', '.join(names)}")
    assert json.loads((project / "runs" / "new" / "run.json").read_text())["new_tensors"] == names
    common = ["train.steps=2", "train.device=cpu", "from.reinitialize=true"]
    comparison = partwise.compare("from=a", arms=[change[0]], seeds=2, common=common, name="widths", progress=False)
    assert [arm.new_tensors for arm in comparison.results.arms] == [(), tuple(names)]
    report = (project / "runs" / "widths" / "report.md").read_text()
    assert "attention.n_kv_heads=2: 4 tensors are absent from the starting weights" in report
    assert all(name in report for name in names)

"""Logs of experiment trackers: what arrives there, and that a log which fails changes nothing but one line."""

import builtins
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from partwise.checkpoint import list_checkpoints
from partwise.config import ConfigError
from partwise.train import experiment_log
from partwise.train.config import RunConfig
from partwise.train.metrics import read_metrics
from partwise.train.multi_seed import train_seeds
from partwise.train.run_folder import RunFolder

Tiny = Callable[..., RunConfig]
TAGS = {"loss/validation", "loss/training", "lr", "grad_norm", "tokens_per_second"}


def train(path: Path, config: RunConfig, **options: Any) -> tuple[dict[str, bytes], list[dict[str, Any]], list[str]]:
    """The tensors of the last checkpoint, the metrics without times, and the lines said."""
    said: list[str] = []
    for _ in RunFolder(path, config, log=said.append, **options).events():
        pass
    last = list_checkpoints(path / "checkpoints")[-1]
    tensors = {name: (last / name).read_bytes() for name in ("model.safetensors", "optimizer.safetensors")}
    return tensors, [{k: v for k, v in line.items() if k != "seconds"} for line in read_metrics(path)], said


class Failing:
    """Fails at the calls that `at` names."""

    at: tuple[str, ...] = ()
    calls: list[str]

    def __init__(self, folder: Path, metadata: Mapping[str, Any]) -> None:
        type(self).calls = []
        self.do("open")

    def do(self, call: str) -> None:
        self.calls.append(call)
        if call in self.at:
            raise OSError(28, "No space\nleft on device")

    def write(self, step: int, values: Mapping[str, float]) -> None:
        self.do(f"write {step}")
        assert values.keys() == TAGS and all(type(value) is float for value in values.values())

    def close(self) -> None:
        self.do("close")


@pytest.mark.parametrize(
    ("at", "calls"),
    [
        ((), ["open", "write 3", "write 6", "close"]),
        (("open",), ["open"]),
        (("write 3",), ["open", "write 3"]),
        (("write 6",), ["open", "write 3", "write 6"]),
        (("close",), ["open", "write 3", "write 6", "close"]),
        (("open", "write 3", "write 6", "close"), ["open"]),
    ],
)
def test_a_log_that_fails_says_so_once_and_changes_nothing(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: tuple[str, ...], calls: list[str]
) -> None:
    kind = type("Kind", (Failing,), {"at": at})
    monkeypatch.setitem(experiment_log.WRITERS, "wandb", kind)
    tensors, metrics, said = train(tmp_path / "logged", tiny("train.log=wandb", "embed_dropout=0.1"))
    assert (tensors, metrics) == train(tmp_path / "plain", tiny("embed_dropout=0.1"))[:2]
    assert kind.calls == calls
    line = "train.log=wandb failed ([Errno 28] No space left on device): the run continues without it"
    assert said == ([line] if at else [])


@pytest.mark.parametrize("name", ["tensorboard", "wandb"])
def test_a_missing_package_is_said_with_its_remedy(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    original = builtins.__import__

    def without(module: str, *rest: Any) -> Any:
        if module.split(".")[0] == name or module == "torch.utils.tensorboard":
            raise ModuleNotFoundError(f"No module named '{name}'")
        return original(module, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    (line,) = train(tmp_path, tiny(f"train.log={name}", "train.steps=1"))[2]
    assert line == (
        f"train.log={name} failed (No module named '{name}'); `pip install 'partwise[{name}]'`: the run continues without it"
    )


def test_nothing_is_imported_or_written_unless_asked(tiny: Tiny, tmp_path: Path) -> None:
    before = set(sys.modules)
    train(tmp_path, tiny("train.steps=1"))
    assert not {name for name in set(sys.modules) - before if name.startswith(("tensorboard", "wandb"))}
    assert not (tmp_path / "tensorboard").exists()
    with pytest.raises(ConfigError, match=r"train\.log"):
        tiny("train.log=mlflow")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_event_files_have_what_the_metrics_have(tiny: Tiny, tmp_path: Path) -> None:
    """Also of a run that resumed with another log, and of several seeds in one process."""
    pytest.importorskip("tensorboard")
    from partwise.comparison.stats.event_files import read_event_folders

    config = tiny("train.log=tensorboard")
    said = train(tmp_path / "one", config)[2]
    found = read_event_folders(tmp_path / "one")["tensorboard"]
    evaluations = [line for line in read_metrics(tmp_path / "one") if line["kind"] == "evaluation"]
    assert not said and found.keys() == TAGS and len(evaluations) == 2
    for tag, key in (("loss/validation", "validation"), ("loss/training", "training")):
        assert found[tag] == {line["step"]: pytest.approx(line[key], rel=1e-6) for line in evaluations}
    folder = RunFolder(tmp_path / "resumed", tiny())
    for event in folder.events():
        if getattr(event, "step", 0) == 4:
            break
    folder.close()
    train(tmp_path / "resumed", config)
    assert list(read_event_folders(tmp_path / "resumed")["tensorboard"]["lr"])[-1] == 6
    train(tmp_path / "resumed", tiny(), fresh=True)
    assert not (tmp_path / "resumed" / "tensorboard").exists()
    folders = [RunFolder(tmp_path / f"seed-{seed}", config.with_seed(seed)) for seed in (0, 1)]
    assert train_seeds(folders, lambda: False) == ["done", "done"]
    for seed in (0, 1):
        assert list(read_event_folders(tmp_path / f"seed-{seed}")["tensorboard"]["loss/validation"]) == [3, 6]


def test_names_of_runs_have_arm_and_seed(tmp_path: Path) -> None:
    assert experiment_log.run_name(tmp_path / "runs" / "mine") == "mine"
    assert (
        experiment_log.run_name(tmp_path / "runs" / "c" / "runs" / "1-ffn=swiglu" / "seed-3") == "1-ffn=swiglu/seed-3"
    )
    assert experiment_log.run_name(tmp_path / "alone") == "alone"


def test_weights_and_biases_offline(tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.chdir(tmp_path)
    tensors, metrics, said = train(tmp_path / "logged", tiny("train.log=wandb"))
    assert not said and list((tmp_path / "logged" / "wandb").glob("offline-run-*/*.wandb"))
    assert (tensors, metrics) == train(tmp_path / "plain", tiny())[:2]
    assert {path.name for path in tmp_path.iterdir()} == {"logged", "plain"}

"""Averages of the weights equal the mean or the recursion over the weights of every step; they are evaluated and saved."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor

from partwise.checkpoint import list_checkpoints
from partwise.config import ConfigError
from partwise.formats.loading import load
from partwise.inspection.memory import step_memory
from partwise.records import DamagedFileError
from partwise.train.averaging import Averaging, ExponentialMovingAverage, StochasticWeightAveraging, WeightAverage
from partwise.train.config import RunConfig
from partwise.train.evaluation import evaluate
from partwise.train.loop import Run
from partwise.train.multi_seed_trainer import MultiSeedTrainer
from partwise.train.run_folder import RunFolder

Tiny = Callable[..., RunConfig]
EMA = ["averaging=ema", "averaging.decay=0.6"]


def weights_of(run: Run) -> dict[str, Tensor]:
    return {name: parameter.detach().clone() for name, parameter in run.model.named_parameters()}


def averaged(recipe: Averaging, weights: list[Tensor]) -> Tensor:
    """What `WeightAverage` keeps after steps with these weights."""
    parameter = torch.zeros_like(weights[0], requires_grad=True)
    average = WeightAverage(recipe)
    for step, each in enumerate(weights):
        parameter.data.copy_(each)
        average.update([parameter], step, len(weights))
    with average.swapped():
        result = parameter.detach().clone()
    assert torch.equal(parameter, weights[-1])
    return result


@given(decay=st.floats(0, 0.999), steps=st.integers(1, 40))
def test_ema_is_the_recursion_after_the_mean_of_its_first_steps(decay: float, steps: int) -> None:
    weights = list(torch.randn(steps, 3, dtype=torch.float64))
    expected = weights[0]
    for n, each in enumerate(weights[1:], start=2):
        mean = torch.stack(weights[:n]).mean(0)
        expected = mean if 1 / n > 1 - decay else decay * expected + (1 - decay) * each
    torch.testing.assert_close(
        averaged(ExponentialMovingAverage(decay=decay), weights), expected, rtol=1e-12, atol=1e-12
    )


@given(fraction=st.floats(0.01, 1), steps=st.integers(1, 40))
def test_swa_is_the_mean_of_the_last_steps(fraction: float, steps: int) -> None:
    weights = list(torch.randn(steps, 3, dtype=torch.float64))
    expected = torch.stack(weights[-max(1, round(fraction * steps)) :]).mean(0)
    recipe = StochasticWeightAveraging(fraction=fraction)
    torch.testing.assert_close(averaged(recipe, weights), expected, rtol=1e-12, atol=1e-12)


def test_training_is_that_without_and_evaluation_that_of_the_average(tiny: Tiny) -> None:
    plain, run = Run(tiny()), Run(tiny(*EMA))
    expected = dict[str, Tensor]()
    for step, rate in enumerate([1, 1 / 2, 0.4, 0.4]):
        assert plain.update().loss == run.update().loss
        last = weights_of(run)
        assert all(torch.equal(last[name], each) for name, each in weights_of(plain).items())
        expected = last if not step else {k: v + rate * (last[k] - v) for k, v in expected.items()}
    plain.model.load_state_dict(plain.model.state_dict() | expected, strict=False)
    for name, parameter in plain.model.named_parameters():
        parameter.data.copy_(expected[name])
    assert evaluate(run).validation == pytest.approx(evaluate(plain).validation, rel=1e-5)
    assert all(torch.equal(last[name], each) for name, each in weights_of(run).items())
    assert run.average.kept == "weight_average"


def test_the_model_of_a_run_is_its_average(tiny: Tiny, tmp_path: Path) -> None:
    folder, snapshots = RunFolder(tmp_path / "run", tiny("averaging=swa", "averaging.fraction=0.5")), []
    for event in folder.events():
        if type(event).__name__ == "Step":
            snapshots.append(weights_of(folder.run))
    mean = {name: torch.stack([each[name] for each in snapshots[3:]]).mean(0) for name in snapshots[0]}
    loaded, _ = load(tmp_path / "run")
    for name, parameter in loaded.named_parameters():
        torch.testing.assert_close(parameter, mean[name])
        assert torch.equal(parameter, dict(folder.run.model.named_parameters())[name])  # which samples are drawn from
    saved = load_file(list_checkpoints(tmp_path / "run" / "checkpoints")[-1] / "optimizer.safetensors")
    assert torch.equal(saved["head.weight.last_weights"], snapshots[-1]["head.weight"])
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["evaluations"][-1]["validation"] == evaluate(folder.run).validation
    again = RunFolder(tmp_path / "run", folder.config)  # has nothing left to train
    assert not list(again.events())
    assert torch.equal(again.run.model.head.weight, loaded.head.weight)


def test_each_seed_has_the_average_of_a_separate_run(tiny: Tiny) -> None:
    def runs() -> list[Run]:
        eager = [f"train.{kind}_backend=eager" for kind in ("attention", "ffn", "block")]
        return [Run(tiny(*EMA, *eager, f"train.seed={seed}")) for seed in range(3)]

    vectorized, separate = runs(), runs()
    trainer = MultiSeedTrainer(vectorized)
    for step in range(5):
        for one, other in zip(vectorized, separate, strict=True):
            one.update(), other.update()
        if step == 2:
            trainer.remove(vectorized.pop(0))  # the others get a new stack
            separate.pop(0)
        for one, other in zip(vectorized, separate, strict=True):
            for name, each in one.optimizer_tensors().items():
                if name.endswith(".weight_average"):
                    torch.testing.assert_close(each, other.optimizer_tensors()[name], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("fault", ["absent", "partly absent", "another shape", "unexpected"])
def test_averages_that_do_not_match_are_refused(tiny: Tiny, tmp_path: Path, fault: str) -> None:
    run, other = Run(tiny(*EMA)), Run(tiny(*([] if fault == "unexpected" else EMA)))
    run.update()
    states = run.optimizer_tensors()
    if fault == "absent":
        states = {name: each for name, each in states.items() if not name.endswith(".weight_average")}
    elif fault == "partly absent":
        del states["head.weight.weight_average"]
    elif fault == "another shape":
        states["head.weight.weight_average"] = torch.zeros(2)
    save_file(states, tmp_path / "states")
    with pytest.raises(DamagedFileError, match=r"averaging=|head\.weight\.weight_average"):
        other.restore(1, run.model.state_dict(), load_file(tmp_path / "states"))


def test_a_configuration_without_has_the_hash_it_always_had(tiny: Tiny) -> None:
    assert "averaging" not in tiny().to_stored()
    config = tiny().with_override("averaging=ema")
    assert config.to_dict()["averaging"] == {"part": "ema", "decay": 0.99}
    assert RunConfig.from_dict(config.to_dict()) == config
    assert config.with_override("averaging=none").to_dict() == tiny().to_dict()


@pytest.mark.parametrize("word", ["averaging=mean", "averaging.decay=1", "averaging.fraction=0", "averaging.decay=nan"])
def test_bad_settings_are_refused(tiny: Tiny, word: str) -> None:
    part = [] if "averaging=" in word else ["averaging=swa" if "fraction" in word else "averaging=ema"]
    with pytest.raises(ConfigError, match="averaging"):
        tiny(*part, word)


def test_the_forecast_of_memory_counts_the_averages(tiny: Tiny) -> None:
    without, with_average = (step_memory(tiny(*words), "float32") for words in ([], EMA))
    added = 4 * tiny().model.parameters()
    assert with_average.optimizer - without.optimizer == added
    assert with_average.peak >= without.peak + added

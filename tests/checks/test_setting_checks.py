"""What schedules, optimizers and data of the user's own must satisfy."""

import itertools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import partwise
from partwise.checks.setting_checks import (
    DATA_REPEATS,
    HELD_OUT,
    IDS_IN_VOCABULARY,
    OPTIMIZER,
    OPTIMIZER_STATE,
    check_data,
    check_optimizer,
    check_schedule,
)
from partwise.config import REGISTRY
from partwise.data import TextFile, prepare
from partwise.tokenizers import TokenizerRecipe
from partwise.train.optimizers import Optimizer
from partwise.train.schedules import Schedule

calls = itertools.count()


@pytest.mark.parametrize(
    ("factor", "fault"),
    [
        (lambda step, steps: 1 / (1 + next(calls)), "differs when it is asked again"),
        (lambda step, steps: math.cos(math.pi * step / steps), "at step"),
        (lambda step, steps: math.inf if step == 0 else 1.0, "inf at step 0"),
    ],
)
def test_a_schedule_that_is_no_function_of_the_step_is_told(factor: Callable[[int, int], float], fault: str) -> None:
    found = check_schedule(factor, 50)
    assert found.outcome == "warning" and fault in found.measured


@pytest.mark.parametrize("name", sorted(REGISTRY["schedule"]))
def test_our_schedules_pass(name: str) -> None:
    schedule: Any = Schedule.resolve(name)
    assert check_schedule(schedule.factor, 2000).outcome == "passed"


def model() -> partwise.Transformer:
    return partwise.Transformer(partwise.ModelConfig(vocab_size=7, d_model=8, n_layers=1, context_length=8))


class Counting(torch.optim.SGD):
    """Keeps the number of its steps beside its state, where no checkpoint has it."""

    taken = 0

    def step(self, *arguments: Any) -> Any:
        self.taken += 1
        for group in self.param_groups:
            group["lr"] /= self.taken
        return super().step(*arguments)


class WithNumbers(torch.optim.SGD):
    def step(self, *arguments: Any) -> Any:
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter]["steps"] = self.state[parameter].get("steps", 0) + 1
        return super().step(*arguments)


class Decaying(torch.optim.SGD):
    def step(self, *arguments: Any) -> Any:
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.data.mul_(0.9)
        return super().step(*arguments)


class Exploding(torch.optim.SGD):
    def step(self, *arguments: Any) -> Any:
        for group in self.param_groups:
            group["lr"] = math.inf
        return super().step(*arguments)


def some(each: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(list(each.parameters())[1:], lr=0.1)


@pytest.mark.parametrize(
    ("build", "check", "fault"),
    [
        (lambda each: Counting(each.parameters(), 0.1), OPTIMIZER_STATE, "a step from the saved state differs"),
        (lambda each: WithNumbers(each.parameters(), 0.1), OPTIMIZER_STATE, "'steps' is not a tensor"),
        (lambda each: Decaying(each.parameters(), 0.1), OPTIMIZER, "changes without a gradient"),
        (lambda each: Exploding(each.parameters(), 0.1), OPTIMIZER, "is not finite"),
        (some, OPTIMIZER, "has a gradient and does not change"),
    ],
    ids=["count", "number", "decay", "infinite", "some"],
)
def test_what_an_optimizer_does_wrong_is_told(build: Any, check: str, fault: str) -> None:
    found = {each.check: each for each in check_optimizer(model(), build, 0.1)}
    assert found[check].outcome == "warning" and fault in found[check].measured


@pytest.mark.parametrize("name", sorted(REGISTRY["optimizer"]))
def test_our_optimizers_pass_and_leave_the_model_as_it_is(name: str) -> None:
    recipe: Any = Optimizer.resolve(name)
    own = model()
    before = {name: tensor.clone() for name, tensor in own.state_dict().items()}
    found = check_optimizer(own, lambda each: recipe.build(each, 1e-2), 1e-2)
    assert {each.outcome for each in found} == {"passed"}
    assert all(torch.equal(tensor, before[name]) for name, tensor in own.state_dict().items())


def test_data_that_changes_or_repeats_the_training_text_is_told(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_text("".join(f"{number * number:>9} squares\n" for number in range(400)) * 2, encoding="utf-8")
    recipe: Any = TokenizerRecipe.resolve("characters")

    class Mine(TextFile):
        def splits(self) -> dict[str, Any]:
            return {name: f"{text[:]}{next(calls)}" for name, text in super().splits().items()}

    corpus = TextFile(path=str(path))
    dataset = prepare(corpus, recipe, tmp_path / "cache")
    size = dataset.vocab_size
    same = {each.check: each.outcome for each in check_data(dataset, corpus, size)}
    assert same == {IDS_IN_VOCABULARY: "passed", DATA_REPEATS: "passed", HELD_OUT: "warning"}
    other = {each.check: each.outcome for each in check_data(dataset, Mine(path=str(path)), size - 1)}
    assert other == {IDS_IN_VOCABULARY: "warning", DATA_REPEATS: "warning", HELD_OUT: "warning"}

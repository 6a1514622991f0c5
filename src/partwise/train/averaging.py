"""Averages of the weights over training, `averaging=`: evaluated and saved in place of the weights of the last step."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from partwise.config import Part, part
from partwise.records import DamagedFileError


class Averaging(Part):
    """An average of the weights, `averaging=`. Evaluation, checkpoints and what reads them use it; training does not."""

    family: ClassVar[str] = "averaging"

    def rate(self, step: int, steps: int) -> float:
        """How much the weights after step 0 .. steps - 1 count: average += rate (weights - average). 1: the weights alone."""
        raise NotImplementedError


@part("none")
class NoAveraging(Averaging):
    """The weights after the last step."""

    def rate(self, step: int, steps: int) -> float:
        return 1.0


@part("ema")
class ExponentialMovingAverage(Averaging):
    """average = decay average + (1 - decay) weights after each step; over the first 1 / (1 - decay) steps the plain mean.

    Polyak & Juditsky 1992; Tarvainen & Valpola 2017, arXiv:1703.01780.
    """

    decay: float = Field(0.99, ge=0, lt=1)
    """The weight of the average at each step; it remembers about 1 / (1 - decay) steps."""

    def rate(self, step: int, steps: int) -> float:
        return max(1 - self.decay, 1 / (step + 1))


@part("swa")
class StochasticWeightAveraging(Averaging):
    """The mean of the weights after each of the last `fraction` of the steps. Izmailov et al. 2018, arXiv:1803.05407.

    It replaces the decay of the learning rate: use a constant one (`schedule=constant`), or one that does not end at zero.
    """

    fraction: float = Field(0.25, gt=0, le=1)
    """The fraction of the steps, at the end, whose weights are averaged."""

    def rate(self, step: int, steps: int) -> float:
        averaged = max(1, round(self.fraction * steps))
        return 1 / max(1, step + 1 - (steps - averaged))


KEPT = AVERAGE, WEIGHTS = "weight_average", "last_weights"
"""The tensor kept beside a parameter: its average, or its weights after the last step while it holds its average.

They are keys beside those of the optimizer's state, which are of its own choice.
"""


class WeightAverage:
    """The average of the parameters of a run, or of the stacked ones of several. Buffers are not averaged."""

    def __init__(self, recipe: Averaging) -> None:
        self.recipe = recipe
        self.tensors: dict[Tensor, Tensor] = {}  # parameter -> what is kept; empty before the first step, and for none
        self.kept = AVERAGE

    @torch.no_grad()
    def update(self, parameters: Iterable[Tensor], step: int, steps: int) -> bool:
        """Count the weights after a step, from 0; True if the averages are new tensors."""
        if isinstance(self.recipe, NoAveraging):
            return False
        new = not self.tensors
        if new:
            self.tensors = {each: each.detach().clone() for each in parameters if each.requires_grad}
        torch._foreach_lerp_(list(self.tensors.values()), list(self.tensors), self.recipe.rate(step, steps))
        return new

    @contextmanager
    def swapped(self) -> Iterator[None]:
        """Within it the parameters hold their averages."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    def load(
        self,
        step: int,
        parameters: Mapping[str, Tensor],
        states: Mapping[str, Tensor],
        load_state: Callable[[str, str, Mapping[str, Tensor]], Tensor],
    ) -> None:
        """Continue after a step from the averages in the optimizer's state; the parameters hold what was saved for them.

        `load_state` takes a parameter's name, a key and `states`. Raises DamagedFileError if a tensor does not match.
        """
        saved = {name.rpartition(".")[2] for name in states} & set(KEPT)
        if len(saved) != (step > 0 and not isinstance(self.recipe, NoAveraging)):
            raise DamagedFileError(f"the optimizer's state does not match averaging={self.recipe.name}")
        for kept in saved:
            self.tensors, self.kept = {}, kept
            for name, parameter in parameters.items():
                if parameter.requires_grad:
                    if f"{name}.{kept}" not in states:
                        raise DamagedFileError(f"the optimizer's state lacks {name}.{kept}")
                    tensor = load_state(name, kept, states)
                    if tensor.shape != parameter.shape:
                        raise DamagedFileError(
                            f"{name}.{kept} in the optimizer's state does not match the configuration"
                        )
                    self.tensors[parameter] = tensor.to(parameter).clone()
            if kept == WEIGHTS:
                self._swap()

    def end(self) -> None:
        """Replace the parameters by their averages, at the end of training."""
        self._swap()
        self.tensors, self.kept = {}, AVERAGE

    @torch.no_grad()
    def _swap(self) -> None:
        for parameter, kept in self.tensors.items():
            held = parameter.clone()
            parameter.copy_(kept)
            kept.copy_(held)
        self.kept = WEIGHTS if self.kept == AVERAGE else AVERAGE

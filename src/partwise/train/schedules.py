"""Learning-rate schedules, `schedule=`. Each is a pure function of the step."""

import math
from typing import ClassVar

from pydantic import Field

from partwise.config import Part, part


class Schedule(Part):
    """A learning-rate schedule, `schedule=`: the factor of `train.lr` at each step."""

    family: ClassVar[str] = "schedule"

    def factor(self, step: int, steps: int) -> float:
        """The factor of the learning rate at step 0 .. steps - 1, in [0, 1]."""
        raise NotImplementedError


def warmup_factor(step: int, warmup: int) -> float:
    return min(1.0, (step + 1) / warmup) if warmup else 1.0


@part("constant")
class Constant(Schedule):
    """Linear warm-up over `warmup` steps, then lr."""

    warmup: int = Field(0, ge=0)
    """Steps over which the rate rises from 0."""

    def factor(self, step: int, steps: int) -> float:
        return warmup_factor(step, self.warmup)


@part("cosine")
class Cosine(Schedule):
    """Linear warm-up, then half a cosine down to `min_lr_ratio` of lr at the last step.

    Loshchilov & Hutter 2016, arXiv:1608.03983.
    """

    warmup: int = Field(100, ge=0)
    """Steps over which the rate rises from 0."""
    min_lr_ratio: float = Field(0.1, ge=0, le=1)
    """The rate at the last step, as a fraction of `train.lr`."""

    def factor(self, step: int, steps: int) -> float:
        if step < self.warmup:
            return warmup_factor(step, self.warmup)
        progress = (step - self.warmup) / max(1, steps - 1 - self.warmup)
        return self.min_lr_ratio + (1 - self.min_lr_ratio) * 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))


@part("wsd")
class WarmupStableDecay(Schedule):
    """Linear warm-up, constant lr, and linear decay to `min_lr_ratio` over the last `decay_fraction` of the steps.

    Hu et al. 2024, arXiv:2404.06395.
    """

    warmup: int = Field(100, ge=0)
    """Steps over which the rate rises from 0."""
    decay_fraction: float = Field(0.2, ge=0, le=1)
    """The fraction of the steps over which the rate falls at the end."""
    min_lr_ratio: float = Field(0.0, ge=0, le=1)
    """The rate at the last step, as a fraction of `train.lr`."""

    def factor(self, step: int, steps: int) -> float:
        decay_steps = max(1, round(self.decay_fraction * steps))
        remaining = (steps - step) / decay_steps  # 1 at the start of the decay, 1 / decay_steps at the last step
        return warmup_factor(step, self.warmup) * (self.min_lr_ratio + (1 - self.min_lr_ratio) * min(1.0, remaining))


@part("linear")
class Linear(Schedule):
    """Linear warm-up, then linear decay to `min_lr_ratio` of lr at the last step. Devlin et al. 2018, arXiv:1810.04805."""

    warmup: int = Field(100, ge=0)
    """Steps over which the rate rises from 0."""
    min_lr_ratio: float = Field(0.0, ge=0, le=1)
    """The rate at the last step, as a fraction of `train.lr`."""

    def factor(self, step: int, steps: int) -> float:
        if step < self.warmup:
            return warmup_factor(step, self.warmup)
        progress = (step - self.warmup) / max(1, steps - 1 - self.warmup)
        return 1 - (1 - self.min_lr_ratio) * min(1.0, progress)


@part("inverse_sqrt")
class InverseSqrt(Schedule):
    """Linear warm-up, then sqrt(warmup / n) at the n-th step. Vaswani et al. 2017, arXiv:1706.03762.

    With lr = (d_model warmup)^-0.5 this is the paper's d_model^-0.5 min(n^-0.5, n warmup^-1.5).
    """

    warmup: int = Field(100, ge=0)
    """Steps over which the rate rises from 0. At 0 it falls from the first step on, as 1 / sqrt(n)."""

    def factor(self, step: int, steps: int) -> float:
        return min(warmup_factor(step, self.warmup), math.sqrt(max(1, self.warmup) / (step + 1)))

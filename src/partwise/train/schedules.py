"""Learning-rate schedules: what stands at `schedule=`. Each is a pure function of the step."""

import math
from typing import ClassVar

from pydantic import Field

from partwise.config import Part, part


class Schedule(Part):
    """What may stand at `schedule=`: the share of `train.lr` that each step uses."""

    family: ClassVar[str] = "schedule"

    def factor(self, step: int, steps: int) -> float:
        """For step 0 .. steps - 1, a number in [0, 1]."""
        raise NotImplementedError


def warm(step: int, warmup: int) -> float:
    return min(1.0, (step + 1) / warmup) if warmup else 1.0


@part("constant")
class Constant(Schedule):
    """lr, after `warmup` steps of linear rise."""

    warmup: int = Field(0, ge=0)

    def factor(self, step: int, steps: int) -> float:
        return warm(step, self.warmup)


@part("cosine")
class Cosine(Schedule):
    """Linear rise, then half a cosine down to `final` of lr at the last step. Loshchilov & Hutter 2016, arXiv:1608.03983."""

    warmup: int = Field(100, ge=0)
    final: float = Field(0.1, ge=0, le=1)

    def factor(self, step: int, steps: int) -> float:
        if step < self.warmup:
            return warm(step, self.warmup)
        progress = (step - self.warmup) / max(1, steps - 1 - self.warmup)
        return self.final + (1 - self.final) * 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))


@part("wsd")
class WarmupStableDecay(Schedule):
    """Linear rise, a plateau, and a linear fall to `final` over the last `decay` steps. Hu et al. 2024, arXiv:2404.06395."""

    warmup: int = Field(100, ge=0)
    decay: float = Field(0.2, ge=0, le=1)
    final: float = Field(0.0, ge=0, le=1)

    def factor(self, step: int, steps: int) -> float:
        falling = max(1, round(self.decay * steps))
        left = (steps - step) / falling  # 1 where the fall begins, 1 / falling at the last step
        return warm(step, self.warmup) * (self.final + (1 - self.final) * min(1.0, left))


@part("linear")
class Linear(Schedule):
    """Linear rise, then a linear fall to `final` of lr at the last step. Devlin et al. 2018, arXiv:1810.04805."""

    warmup: int = Field(100, ge=0)
    final: float = Field(0.0, ge=0, le=1)

    def factor(self, step: int, steps: int) -> float:
        if step < self.warmup:
            return warm(step, self.warmup)
        progress = (step - self.warmup) / max(1, steps - 1 - self.warmup)
        return 1 - (1 - self.final) * min(1.0, progress)


@part("inverse_sqrt")
class InverseSqrt(Schedule):
    """Linear rise, then sqrt(warmup / n) at the n-th step. Vaswani et al. 2017, arXiv:1706.03762.

    The paper's rate d_model^-0.5 min(n^-0.5, n warmup^-1.5) is this times lr = (d_model warmup)^-0.5.
    """

    warmup: int = Field(100, ge=0)  # the fall begins at once where it is 0

    def factor(self, step: int, steps: int) -> float:
        return min(warm(step, self.warmup), math.sqrt(max(1, self.warmup) / (step + 1)))

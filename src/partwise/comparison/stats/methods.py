"""The methods of judging, by number: how effects are measured, and how verdicts follow from them.

What was judged by a method stays judged by it. So a change of a rule that can change a verdict is a new method: METHODS gets
another number, and the functions that the change replaces stay under theirs.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from partwise.comparison.stats.effect import Effect
from partwise.comparison.stats.families import decide
from partwise.comparison.stats.intervals import measure, measure_rounded
from partwise.comparison.stats.tuning_noise import TuningNoise, exact_tuning_noise, tuning_noise
from partwise.comparison.stats.warnings import Check, outlier, skewed, unequal_spreads
from partwise.config import ConfigError


@dataclass(frozen=True)
class Method:
    """The rules of one method."""

    measure: Callable[..., Effect]
    """The effect of one claim at one look, from the values of both arms."""
    tuning_noise: Callable[..., TuningNoise]
    """The noise of the choice of both arms' values."""
    checks: tuple[Check, ...]
    """What its effects are warned of."""
    sd_known: bool = False
    """Whether the seeds that would decide are computed as if the SD were known."""
    single_at_alpha: bool = True
    """Whether the equivalence of a single claim is two one-sided tests at alpha each, not at alpha / 2."""

    def decide(self, effects: Sequence[Effect], alpha: float, untested: int = 0) -> list[Effect]:
        """The effects of a family of claims with their verdicts, beside a number of claims that are not yet tested."""
        return decide(effects, alpha, untested, self.sd_known, self.single_at_alpha)

    def warnings(self, effects: Sequence[Effect]) -> tuple[str, ...]:
        """One sentence per problem of each effect."""
        return tuple(message for effect in effects for check in self.checks if (message := check(effect)))


FIRST = 1
"""The method of records that state none."""

METHODS = {
    FIRST: Method(measure, tuning_noise, (outlier, skewed), sd_known=True, single_at_alpha=False),
    2: Method(measure_rounded, exact_tuning_noise, (outlier, skewed, unequal_spreads), single_at_alpha=False),
    3: Method(measure_rounded, exact_tuning_noise, (outlier, skewed, unequal_spreads)),
}


def newest_method() -> int:
    return max(METHODS)


def find_method(number: int) -> Method:
    """Raises ConfigError for a method of a newer version."""
    if number not in METHODS:
        raise ConfigError(
            f"the verdict follows from method {number} of judging, and this version of partwise knows methods up to "
            f"{newest_method()}: install a newer version"
        )
    return METHODS[number]

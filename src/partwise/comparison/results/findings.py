"""What a comparison found: claims and controls, and what was done to the arms or with the winner."""

from typing import Annotated, Any

from pydantic import AfterValidator, Field, JsonValue, SerializerFunctionWrapHandler, WrapSerializer

from partwise.comparison.measures import Measure
from partwise.comparison.results.value import Value
from partwise.comparison.stats.effect import Effect, Role
from partwise.config import without_neutral


def _check_differences(effect: Effect) -> Effect:
    if len(effect.differences) != len(effect.seeds):
        raise ValueError(f"{len(effect.differences)} differences of {len(effect.seeds)} seeds")
    return effect


def _without_neutral(effect: Effect, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
    return without_neutral(serialize(effect), Effect)


StoredEffect = Annotated[Effect, AfterValidator(_check_differences), WrapSerializer(_without_neutral)]
"""An effect whose differences are one per seed."""


class StepEffect(Value):
    """The mean difference at one evaluation, with its interval."""

    step: int
    mean: float | None
    low: float | None
    high: float | None


class Ratio(Value):
    """The baseline's use of a measure over the arm's; above 1 if the arm uses less. `low` alone: at least that."""

    ratio: float | None
    low: float | None
    high: float | None


class ComputeSaved(Value):
    """How much less training the arm needs for the same loss, from runs that end at several numbers of steps."""

    ratios: dict[str, Ratio] = Field(default_factory=dict)
    """The known ratios of steps, tokens, FLOPs and seconds; empty if not computed."""
    pairs: int = 0
    censored_pairs: int = 0
    """Pairs in which one arm had the other's final loss before its shortest run ended."""
    reason: str = ""
    """Why it was not computed."""


class ClaimResult(Value):
    """A claim or a control: its effect with the verdict, and the differences over training."""

    role: Role = "claim"
    effect: StoredEffect
    exploratory: StoredEffect | None = None
    """The estimate from all seeds, without a verdict; None unless seeds were added after the verdict."""
    minimum_detectable_effect: float | None = None
    """The true difference that these seeds detect with 80% power, given the observed SD of the pairs."""
    effect_over_training: tuple[StepEffect, ...] = ()
    differences_over_training: tuple[tuple[tuple[int, float], ...], ...] = ()
    """[step, difference] for each seed; empty if not stored."""
    effect_over_horizons: tuple[StepEffect, ...] = ()
    """The mean difference of runs that end at each number of steps; empty if all have one length.

    Here and over training, the last interval has the level of the effect's; the others, that of the change and those of the
    compute saved are adjusted for all claims by Bonferroni's method.
    """
    change_over_horizons: StepEffect | None = None
    """The change of the difference from the shortest runs to the longest, of length `step`.

    None if all runs have one length, or one failed.
    """
    compute_saved: ComputeSaved | None = None
    """None if all runs have one length."""


class ControlResult(Value):
    arm: str
    role: Role
    passed: bool | None
    """None without a verdict, because a trial failed."""
    power: float | None = None
    """The power of a positive control, if its effect was calibrated."""


class SiteStatistic(Value):
    """A statistic of activations or gradients at one site; None for an arm without the site."""

    site: str
    quantity: str
    values: tuple[float | None, ...]


class TunedArm(Value):
    """The mean loss of an arm at each value on the tuning split; of trials without one, the mean of the metric."""

    arm: str
    default: JsonValue
    means: tuple[float | None, ...]
    """None if a trial diverged."""
    best: str
    interior: bool
    """Whether the best value is bracketed: inside the range, without an order, or at a limit of valid values."""
    losses: tuple[tuple[float | None, ...], ...] = ()
    """For each value, the loss of every seed; None if a trial failed."""


class Tuning(Value):
    key: str
    values: tuple[str, ...]
    seeds: tuple[int, ...]
    runs: int
    seconds: float
    arms: tuple[TunedArm, ...]
    held_out: bool = True
    """Whether the values are losses on data that the verdict does not use; if not, they are values of its metric."""


def tuned_name(arm: str, key: str, value: str) -> str:
    """The name of an arm at a value that tuning tries."""
    return f"{arm} {key}={value}"


class Match(Value):
    """The setting of an arm that was changed to match the baseline, and the relative difference that remains."""

    arm: str
    key: str
    old: int
    new: int
    residual: float


class Matching(Value):
    measure: Measure
    arms: tuple[Match, ...]


class Replication(Value):
    """The winner on fresh seeds."""

    effect: StoredEffect
    seeds: tuple[int, ...]


class Answer(Value):
    """What a published claim predicts for one difference, and the outcome."""

    difference: str
    prediction: str
    outcome: str


class StudyFacts(Value):
    """The published claim that the comparison tests, its predictions by arm, and the answers."""

    claim: str
    source: str
    published: str
    changed: str
    expect: dict[str, str]
    answers: tuple[Answer, ...]

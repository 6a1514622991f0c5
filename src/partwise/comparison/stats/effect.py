"""The result of comparing two arms in one metric: effect size, confidence interval and verdict."""

import dataclasses
import math
from typing import Annotated, Any, ClassVar, Literal, Self

from partwise.config import Neutral

Verdict = Literal["better", "worse", "equivalent", "undecided"]

Role = Literal["claim", "negative", "positive"]
"""A claim to be tested, or a control: negative (an A/A pair, no effect) or positive (a known large effect)."""

BaselineDesign = Literal["paired", "unpaired", "covariate"]
"""How the runs of the baseline are used; `stats/designs.py` has the estimates."""

DEFAULT_MARGIN = 0.005
"""Equivalence margin in nats per character: about one seed SD of a small character model."""

MAX_SEEDS_TO_DECIDE = 1000
"""Upper limit of `Effect.seeds_to_decide`; `MAX_SEEDS_TO_DECIDE + 1` means "more than 1000"."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Effect:
    """The difference `arm - against` in one metric, its confidence interval and verdict.

    Differences, interval and SDs are in `unit`. If a run failed, there is no mean, and `verdict` compares the failure rates:
    'better', 'worse' or None. `low` and `high` are None if there is no interval. `n` is the number of pairs, or the number of
    runs of the smaller arm if `paired` is False.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid"}
    """For `comparison.results`, which stores effects: a file with unknown keys is of another version."""

    arm: str
    against: str
    metric: str
    unit: str
    lower_is_better: bool
    n: int
    n_arm: int
    n_against: int
    paired: bool
    left_out: int
    """Runs excluded because the other arm lacks their seed; 0 if no runs are paired."""
    seeds: tuple[int, ...]
    differences: tuple[float | None, ...]
    """One per entry of `seeds`, None if a run of the pair failed; both are empty if the runs are not paired."""
    failure: float | None = None
    """A run with a value worse than this failed; None if only runs with values that are not finite did."""
    failed_arm: int
    failed_against: int
    p_failures: float | None = None
    """The p-value of Fisher's exact test of equal failure rates, two-sided; None if no run failed."""
    mean: float | None = None
    standard_error: float | None = None
    adjusted_mean: float | None = None
    """The mean adjusted for stopping at a planned look, median-unbiased (`adjusted_mean`); None if there is one look."""
    tuning_error: float | None = None
    """The part of the standard error that is the noise of tuning; None if the arms are not at values that tuning chose."""
    not_bracketed: str = ""
    """Why there is no verdict, if tuning did not bracket the best value of an arm."""
    rounding_unit: Annotated[float | None, Neutral(None)] = None
    """The unit that the values are rounded to, if it exceeds the margin and all pairs agree: then there is no test."""
    low: float | None = None
    high: float | None = None
    equivalence_low: Annotated[float | None, Neutral(None)] = None
    equivalence_high: Annotated[float | None, Neutral(None)] = None
    """The interval at a confidence of 1 - 2 `alpha`, if it is why the verdict is 'equivalent' (see `decide`)."""
    p: float | None = None
    """The p-value of the t test of no difference: two-sided, not adjusted for looks or multiple comparisons."""
    p_sign_flip: float | None = None
    """The p-value of the sign-flip test: the fraction of sign changes of the differences with a mean at least as large (exact
    for up to 16 pairs). None for unpaired runs and for more than 100 pairs."""
    sd_difference: float | None = None
    """The SD of the paired differences; None if the runs are not paired."""
    correlation: float | None = None
    """Pearson's r of the paired values; None for fewer than 3 pairs (2 always correlate perfectly) or a constant arm."""
    baseline_runs: Annotated[int, Neutral(1)] = 1
    """The planned runs of the baseline per run of an arm."""
    slope: Annotated[float | None, Neutral(None)] = None
    """The slope of the arm's values on the baseline's at equal seeds, if that is a covariate (`measure_covariate`)."""
    skewness: float | None = None
    """The skewness of the differences, adjusted for the sample size (G1); None for fewer than 3 pairs."""
    sd_arm: float | None = None
    sd_against: float | None = None
    sd_pooled: float | None = None
    df: float | None = None
    """Degrees of freedom of the interval."""
    margin: float
    look: int
    looks: tuple[int, ...] = ()
    """Numbers of pairs at the planned looks; empty if none are planned."""
    alpha: float
    """The level of the interval, over all looks: that of the test which the verdict follows from (see `decide`)."""
    confidence: float
    """1 - alpha."""
    nominal_alpha: float
    """The level of the t interval at this look; `alpha` if there is one look."""
    total_alpha: float
    """The error rate of each family of hypotheses (see `decide`), of all claims and looks together."""
    n_comparisons: int = 1
    """Number of claims that were judged together."""
    p_looks: float | None = None
    """p of no difference, valid at any planned look (`repeated_p`); of the failure rates if a run failed."""
    p_adjusted: float | None = None
    """`p_looks` adjusted for the number of comparisons by Holm's method; the arms differ if it is at most `total_alpha`."""
    p_equivalence: float | None = None
    """p of a difference of at least the margin, valid at any planned look: the smallest alpha whose interval is within it."""
    p_equivalence_adjusted: float | None = None
    """`p_equivalence` adjusted by Holm's method, or halved (see `decide`); the arms are equivalent if it is at most
    `total_alpha`."""
    seeds_to_decide: int | None = None
    """If undecided at the last look: seeds per arm that would likely decide in a new comparison; at most
    `MAX_SEEDS_TO_DECIDE` + 1."""
    verdict: Verdict | None = None
    sentence: str = ""

    @property
    def failed(self) -> bool:
        """Whether a run of either arm failed."""
        return bool(self.failed_arm or self.failed_against)

    def replace(self, **changes: Any) -> Self:
        """The effect with `changes`; `dataclasses.replace` would copy 50 fields one by one."""
        if unknown := changes.keys() - self.__dict__.keys():
            raise TypeError(f"an effect has no {sorted(unknown)[0]}")
        changed = object.__new__(type(self))
        changed.__dict__.update(self.__dict__ | changes)
        return changed

    def to_dict(self) -> dict[str, Any]:
        """JSON values; numbers that are not finite become None."""
        return {field.name: _to_json(getattr(self, field.name)) for field in dataclasses.fields(self)}


def _to_json(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_to_json(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value

"""The result of comparing two arms in one metric: effect size, confidence interval and verdict."""

import dataclasses
import math
from typing import Any, ClassVar, Literal

Verdict = Literal["better", "worse", "equivalent", "undecided"]

Role = Literal["claim", "negative", "positive"]
"""A claim to be tested, or a control: negative (an A/A pair, no effect) or positive (a known large effect)."""

Variance = Literal["pair", "residual"]
"""The variance an interval uses: of the differences of its own pair of arms, or the residual of an arm + seed model over
all arms."""

DEFAULT_MARGIN = 0.005
"""Equivalence margin in nats per character: about one seed SD of a small character model."""

MAX_SEEDS_TO_DECIDE = 1000
"""Upper limit of `Effect.seeds_to_decide`; `MAX_SEEDS_TO_DECIDE + 1` means "more than 1000"."""

DIVERGENCE_LIMIT = 1e100
"""A run whose result exceeds this in magnitude counts as diverged, which keeps sums finite."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Effect:
    """The difference `arm - against` in one metric, its confidence interval and verdict.

    Differences, interval and SDs are in `unit`. `verdict` is None if a run diverged; `low` and `high` are None if there
    is no interval. `n` is the number of pairs, or the number of runs of the smaller arm if `paired` is False.
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
    """One per entry of `seeds`, None if a run of the pair diverged; both are empty if the runs are not paired."""
    diverged_arm: int
    diverged_against: int
    mean: float | None = None
    low: float | None = None
    high: float | None = None
    p: float | None = None
    """Two-sided, not adjusted for multiple comparisons or looks."""
    sd_difference: float | None = None
    interval_sd: float | None = None
    """The SD of one difference that the interval uses: that of these pairs, or the residual over all arms; None if the
    runs are not paired."""
    correlation: float | None = None
    """Pearson's r of the paired values; None for fewer than 3 pairs (2 always correlate perfectly) or a constant arm."""
    sd_arm: float | None = None
    sd_against: float | None = None
    sd_pooled: float | None = None
    df: float | None = None
    """Degrees of freedom of the interval."""
    margin: float
    look: int
    looks: tuple[int, ...] = ()
    """Numbers of pairs at the planned looks; empty if none are planned, in which case each further look spends more alpha."""
    alpha: float
    """Nominal significance level of this look's interval: `confidence` is 1 - alpha."""
    confidence: float
    alpha_spent: float
    """Alpha spent by this look and all earlier ones."""
    total_alpha: float = 0.05
    """The alpha of all looks together."""
    n_comparisons: int = 1
    """Number of claims that were judged together."""
    p_looks: float | None = None
    """p adjusted for the planned looks; see `sequential_p`."""
    p_adjusted: float | None = None
    """`p_looks` adjusted for the number of comparisons as well, by Holm's method."""
    seeds_to_decide: int | None = None
    """If undecided: total seeds per arm that would likely decide at the next look; at most `MAX_SEEDS_TO_DECIDE` + 1."""
    verdict: Verdict | None = None
    sentence: str = ""

    def to_dict(self) -> dict[str, Any]:
        """JSON values; numbers that are not finite become None."""
        return {field.name: _to_json(getattr(self, field.name)) for field in dataclasses.fields(self)}


def _to_json(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_to_json(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value

"""A comparison of two arms in one metric: what was found, and what may be said about it."""

import dataclasses
import math
from typing import Any, Literal

Verdict = Literal["better", "worse", "equivalent", "undecided"]

MARGIN = 0.005
"""Nats per character: about one seed SD of a small character model. An effect below it is called none."""

MANY_SEEDS = 1000
"""The estimate of the seeds to decide stops here; `MANY_SEEDS + 1` stands for 'more than 1000'."""

LARGEST = 1e100
"""A value beyond this is no measurement: its run counts as diverged, and sums stay finite."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Effect:
    """The difference `arm - against` in one metric, and what may be said about it.

    Differences, interval and SDs are in `unit`. `verdict` is None where a run diverged, and `low` and `high` where no
    interval exists. `n` counts pairs, or the runs of the smaller arm where `paired` is False.
    """

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
    """Runs whose seed the other arm lacks, where other seeds could be paired."""
    seeds: tuple[int, ...]
    differences: tuple[float, ...]
    """One for each of `seeds`; both are empty where the runs are not paired."""
    diverged_arm: int
    diverged_against: int
    mean: float | None = None
    low: float | None = None
    high: float | None = None
    p: float | None = None
    """Two-sided, not adjusted for other comparisons or looks."""
    sd_difference: float | None = None
    sd_interval: float | None = None
    """Of one difference, as the interval takes it: the pairs' own, or over all arms; None where runs are not paired."""
    correlation: float | None = None
    """Of the paired values; None for fewer than 3 pairs (2 always correlate perfectly) or an arm that never varies."""
    sd_arm: float | None = None
    sd_against: float | None = None
    sd_pooled: float | None = None
    df: float | None = None
    """Degrees of freedom of the interval."""
    margin: float
    look: int
    looks: tuple[int, ...] = ()
    """The numbers of pairs at which looks were planned; empty where none were, and each further look pays anew."""
    alpha: float
    """The error probability of this look's interval: `confidence` is 1 - alpha."""
    confidence: float
    alpha_spent: float
    """By this look and all before it."""
    total_alpha: float = 0.05
    """What every look together may spend."""
    comparisons: int = 1
    """How many claims were judged together."""
    p_looks: float | None = None
    """p adjusted for the planned looks: see `sequential_p`."""
    p_adjusted: float | None = None
    """The same, adjusted for the number of comparisons too, by Holm's method."""
    seeds_to_decide: int | None = None
    """For 'undecided': how many seeds per arm, in all, would likely decide at the next look; see `MANY_SEEDS`."""
    verdict: Verdict | None = None
    sentence: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; a number that is not finite becomes None."""
        return {field.name: _plain(getattr(self, field.name)) for field in dataclasses.fields(self)}


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value

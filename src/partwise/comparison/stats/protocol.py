"""The decision rules of a comparison, fixed before its first run: margin, alpha, looks and what counts as a failed run.

A look is an interim analysis: every open claim is judged on the seeds that are finished so far. Looks are planned, with the
error rate of all looks together fixed in advance. Nothing here trains: the same rules judge real and simulated results.
"""

import dataclasses
import functools
import math
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from partwise.comparison.stats.designs import check_design, measure_covariate
from partwise.comparison.stats.effect import DEFAULT_MARGIN, BaselineDesign, Effect, Role
from partwise.comparison.stats.failure import has_failed
from partwise.comparison.stats.group_sequential import DEFAULT_LOOKS, check_looks
from partwise.comparison.stats.methods import find_method, newest_method
from partwise.comparison.stats.tuning_noise import TuningNoise
from partwise.comparison.stats.verdict_text import SEEDS_ADDED, exploratory_sentence

Values = Mapping[str, Mapping[int, float]]
"""arm -> seed -> result; nan or inf if the run diverged."""


class Claim(NamedTuple):
    """A comparison of two arms. A control is a family of its own, not counted in the adjustment of the claims."""

    arm: str
    against: str
    role: Role = "claim"
    tuning: TuningNoise | None = None
    """The noise of the choice of both arms' values, if tuning chose them."""


@dataclasses.dataclass(frozen=True)
class Rules:
    """Margin, alpha, looks, design and failure of a comparison. If `looks` is empty, all values are judged at once.

    `failure` is the value beyond which a run failed; without it, only runs whose values are not finite did. With
    the `known_sd` of one run, runs are not paired by their seed. Raises ConfigError for invalid values.
    """

    margin: float = DEFAULT_MARGIN
    alpha: float = 0.05
    looks: tuple[int, ...] = DEFAULT_LOOKS
    failure: float | None = None
    lower_is_better: bool = True
    metric: str = "validation loss"
    unit: str = "nats per character"
    design: BaselineDesign = "paired"
    baseline_runs: int = 1
    """Runs of the baseline per run of an arm. Arms have the first seeds of the baseline."""
    known_sd: float | None = None
    method: int = dataclasses.field(default_factory=newest_method)
    """The number of the method of judging."""

    def __post_init__(self) -> None:
        find_method(self.method)
        check_design(self.design, self.baseline_runs)
        if self.looks:
            check_looks(self.looks)

    def judge(self, values: Values, claims: Sequence[Claim], sums: Collection[str] = ()) -> list[Effect]:
        """The effect of every claim at the latest look that `values` has enough seeds for; [] before the first look.

        `sums` are the names in `values` that `add_predictions` added.

        Seeds are used in ascending order. At each look, Holm's method judges all claims together (see `decide`), given the
        p-values of open claims at this look and of closed claims at the look that closed them. A claim closes with a verdict
        other than 'undecided' or None, or at the last look. Arms of closed claims need no further runs, and values after a
        claim closed are not read. Without planned looks, all values are judged at once.
        """
        if not self.looks:
            return self._decide({claim: self._measure(claim, values, 1, sums) for claim in claims})
        seeds = sorted(set().union(*(runs.keys() for runs in values.values())))
        measured, effects = dict[Claim, Effect](), list[Effect]()
        for look, n in enumerate(self.looks, start=1):
            open_claims = (
                [claim for claim, effect in zip(claims, effects, strict=True) if is_open(effect)] if effects else claims
            )
            most = self.baseline_runs * n
            used = dict.fromkeys((claim.arm for claim in open_claims), n)
            used |= dict.fromkeys((claim.against for claim in open_claims), most)
            if not open_claims or len(seeds) < most:
                break
            if any(seed not in values[arm] for arm, count in used.items() for seed in seeds[:count]):
                break
            interim = {arm: {seed: values[arm][seed] for seed in seeds[:count]} for arm, count in used.items()}
            measured |= {claim: self._measure(claim, interim, look, sums) for claim in open_claims}
            effects = self._decide({claim: measured[claim] for claim in claims})
        return effects

    def explore(
        self, values: Values, claims: Sequence[Claim], sums: Collection[str] = (), reason: str = SEEDS_ADDED
    ) -> list[Effect]:
        """Exploratory estimates from all of `values`, each with an interval at a confidence of 1 - alpha and no verdict.

        `reason` ends their sentences: why there is none.
        """
        rules, decide = dataclasses.replace(self, looks=()), find_method(self.method).decide
        estimates = [decide([rules._measure(claim, values, 1, sums)], self.alpha)[0] for claim in claims]
        return [
            estimate.replace(verdict=None, seeds_to_decide=None, sentence=exploratory_sentence(estimate, reason))
            for estimate in estimates
        ]

    def _measure(self, claim: Claim, values: Values, look: int, sums: Collection[str]) -> Effect:
        measure = find_method(self.method).measure
        if self.design == "covariate":
            measure = functools.partial(measure_covariate, measure)
        effect = measure(
            claim.arm,
            claim.against,
            values[claim.arm],
            values[claim.against],
            margin=self.margin,
            look=look,
            looks=self.looks,
            failure=self.failure,
            lower_is_better=self.lower_is_better,
            metric=self.metric,
            unit=self.unit,
            paired=self.design == "paired",
            known_sd=self.known_sd,
            tuning=claim.tuning,
            summed=claim.against in sums,
        )
        return effect.replace(baseline_runs=self.baseline_runs) if self.baseline_runs > 1 else effect

    def _decide(self, measured: Mapping[Claim, Effect]) -> list[Effect]:
        """The effects with their verdicts, in order: the claims are one family, and each control is a family of its own."""
        counted = [claim for claim in measured if claim.role == "claim"]
        families = [counted, *([claim] for claim in measured if claim.role != "claim")]
        decided: dict[Claim, Effect] = {}
        for family in families:
            effects = find_method(self.method).decide([measured[claim] for claim in family], self.alpha)
            decided |= dict(zip(family, effects, strict=True))
        return [decided[claim] for claim in measured]


def first_seeds(values: Values, n: int, baseline: str = "", baseline_runs: int = 1) -> Values:
    """The values of the first `n` seeds, in ascending order, of all seeds of all arms; of the baseline, of more seeds."""
    seeds = sorted(set().union(*values.values()))
    counts = {arm: n * (baseline_runs if arm == baseline else 1) for arm in values}
    kept = {arm: set(seeds[:count]) for arm, count in counts.items()}
    return {arm: {seed: value for seed, value in runs.items() if seed in kept[arm]} for arm, runs in values.items()}


def add_predictions(values: Values, baseline: str, predictions: Mapping[str, tuple[str, str]], rules: Rules) -> Values:
    """The values, plus first + second - baseline per seed for each of `predictions`: what two effects add up to.

    It is nan at a seed where one of the three failed.
    """
    predicted: dict[str, dict[int, float]] = {}
    for name, (first, second) in predictions.items():
        predicted[name] = {}
        for seed in sorted(values[first].keys() & values[second].keys() & values[baseline].keys()):
            a, b, base = (values[arm][seed] for arm in (first, second, baseline))
            failed = any(has_failed(value, rules.failure, rules.lower_is_better) for value in (a, b, base))
            predicted[name][seed] = math.nan if failed else a + b - base
    return {**values, **predicted}


def is_open(effect: Effect) -> bool:
    """Whether a further look could still change the verdict."""
    return effect.verdict in ("undecided", None) and not effect.not_bracketed and effect.look < len(effect.looks)

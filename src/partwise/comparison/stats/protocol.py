"""The decision rules of a comparison, fixed before its first run: margin, alpha, looks and variance.

A look is an interim analysis: every open claim is judged on the seeds that are finished so far. Looks are either planned
(a protocol, with the alpha of all looks fixed in advance) or unplanned (each look after the first spends additional
alpha). Nothing here trains: the same rules judge real and simulated results.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple, get_args

from partwise.comparison.stats.effect import DEFAULT_MARGIN, DIVERGENCE_LIMIT, Effect, Role, Variance, Verdict
from partwise.comparison.stats.group_sequential import DEFAULT_LOOKS, check_looks, sequential_p
from partwise.comparison.stats.intervals import SDEstimate, holm, judge, look_alpha
from partwise.comparison.stats.verdict_text import with_sentence
from partwise.config import ConfigError, did_you_mean

Values = Mapping[str, Mapping[int, float]]
"""arm -> seed -> result; nan or inf if the run diverged."""


class Claim(NamedTuple):
    """A comparison of two arms. Controls are not counted in Holm's adjustment."""

    arm: str
    against: str
    role: Role = "claim"


@dataclasses.dataclass(frozen=True)
class Rules:
    """Margin, alpha, looks and variance of a comparison. If `looks` is empty, each further look spends additional alpha.

    Raises ConfigError for invalid values.
    """

    margin: float = DEFAULT_MARGIN
    alpha: float = 0.05
    looks: tuple[int, ...] = DEFAULT_LOOKS
    variance: Variance = "pair"
    lower_is_better: bool = True
    metric: str = "validation loss"
    unit: str = "nats per character"

    def __post_init__(self) -> None:
        if self.looks:
            check_looks(self.looks)
        if self.variance not in get_args(Variance):
            near = did_you_mean(self.variance, get_args(Variance))
            raise ConfigError(f"variance={self.variance}: expected pair or residual{near}")

    def judge(self, values: Values, claims: Sequence[Claim], look: int = 1) -> list[Effect]:
        """The effect of every claim at the latest look that `values` has enough seeds for; [] before the first look.

        Seeds are used in ascending order. A claim closes when it is 'equivalent'; when it is 'better' or 'worse' and
        Holm's method over all counted claims agrees, given each claim's p-value over the looks so far; when a run
        diverges; or at the last look. Arms of closed claims need no further runs, and values after a claim closed are
        not read. Without planned looks, all values are judged at once, as look number `look`.
        """
        if not self.looks:
            return self._judge_unplanned(values, claims, look)
        seeds = sorted(set().union(*(runs.keys() for runs in values.values())))
        effects: dict[Claim, Effect] = {}
        p: dict[Claim, list[float]] = {claim: [] for claim in claims}
        for number, n in enumerate(self.looks, start=1):
            open_claims = [claim for claim in claims if is_open(effects.get(claim))]
            arms = dict.fromkeys(name for claim in open_claims for name in (claim.against, claim.arm))
            if not open_claims or len(seeds) < n or any(seed not in values[arm] for arm in arms for seed in seeds[:n]):
                break
            interim = {arm: {seed: values[arm][seed] for seed in seeds[:n]} for arm in arms}
            residual = self._residual(interim, open_claims)
            for claim in open_claims:
                effects[claim] = effect = self._judge_claim(claim, interim, number, residual)
                p[claim].append(1.0 if effect.p is None else effect.p)
            p_looks = {claim: sequential_p(p[claim], self.looks) for claim in effects}
            effects = apply_holm(effects, p_looks, self.alpha)
        return [effects[claim] for claim in claims if claim in effects]

    def _judge_unplanned(self, values: Values, claims: Sequence[Claim], look: int) -> list[Effect]:
        residual = self._residual(values, claims)
        effects = {claim: self._judge_claim(claim, values, look, residual) for claim in claims}
        p = {claim: 1.0 if effect.p is None else effect.p for claim, effect in effects.items()}
        return list(apply_holm(effects, p, look_alpha(look, self.alpha)).values())

    def _residual(self, values: Values, claims: Sequence[Claim]) -> SDEstimate | None:
        """The residual SD over the claims' arms, without controls: a negative control shares most of the baseline's noise."""
        if self.variance == "pair":
            return None
        names = {name for claim in claims if claim.role == "claim" for name in claim[:2]}
        return residual_sd({name: runs for name, runs in values.items() if name in names})

    def _judge_claim(self, claim: Claim, values: Values, look: int, residual: SDEstimate | None) -> Effect:
        sd_estimate = residual if claim.role == "claim" else None
        return judge(
            claim.arm,
            claim.against,
            values[claim.arm],
            values[claim.against],
            margin=self.margin,
            alpha=self.alpha,
            look=look,
            looks=self.looks,
            lower_is_better=self.lower_is_better,
            metric=self.metric,
            unit=self.unit,
            sd_estimate=sd_estimate,
        )


def add_predictions(values: Values, baseline: str, predictions: Mapping[str, tuple[str, str]]) -> Values:
    """The values, plus first + second - baseline per seed for each of `predictions`: what two effects add up to."""
    predicted = {}
    for name, (first, second) in predictions.items():
        shared = values[first].keys() & values[second].keys() & values[baseline].keys()
        predicted[name] = {
            seed: values[first][seed] + values[second][seed] - values[baseline][seed] for seed in sorted(shared)
        }
    return {**values, **predicted}


def apply_holm(effects: Mapping[Claim, Effect], p: Mapping[Claim, float], alpha: float) -> dict[Claim, Effect]:
    """The effects with p adjusted by Holm's method over all counted claims; a difference it does not support is undecided."""
    counted = [claim for claim in effects if claim.role == "claim"]
    adjusted = dict(zip(counted, holm([p[claim] for claim in counted]), strict=True))
    result = {}
    for claim, effect in effects.items():
        if effect.p is None or effect.low is None or effect.high is None:
            result[claim] = effect
            continue
        n_comparisons = len(counted) if claim.role == "claim" else 1
        p_adjusted, verdict = adjusted.get(claim, p[claim]), effect.verdict
        if verdict != "equivalent" and (effect.low > 0 or effect.high < 0):
            direction: Verdict = "better" if (effect.high < 0) == effect.lower_is_better else "worse"
            verdict = direction if n_comparisons == 1 or p_adjusted <= alpha else "undecided"
        changes = {"verdict": verdict, "p_looks": p[claim], "p_adjusted": p_adjusted, "n_comparisons": n_comparisons}
        result[claim] = with_sentence(effect, **changes)
    return result


def is_open(effect: Effect | None) -> bool:
    """Whether a further look could still change the verdict."""
    return effect is None or (effect.verdict == "undecided" and effect.look < max(1, len(effect.looks)))


def residual_sd(values: Values) -> SDEstimate | None:
    """The SD of the difference of two arms at one seed, sqrt(2 MS), with (k - 1)(n - 1) degrees of freedom, where MS is the
    residual mean square of an arm + seed model over the arms that never diverged; None for fewer than 2 of them or 2 seeds.
    """
    rows = [list(runs.values()) for runs in values.values() if all(abs(x) <= DIVERGENCE_LIMIT for x in runs.values())]
    k, n = len(rows), len(rows[0]) if rows else 0
    if k < 2 or n < 2:
        return None
    arms = [math.fsum(row) / n for row in rows]
    seeds = [math.fsum(column) / k for column in zip(*rows, strict=True)]
    grand_mean = math.fsum(arms) / k
    residuals = (rows[i][j] - arms[i] - seeds[j] + grand_mean for i in range(k) for j in range(n))
    df = (k - 1) * (n - 1)
    return SDEstimate(math.hypot(*residuals) * math.sqrt(2 / df), df)

"""The rules of a comparison, fixed before its first run, and what they say of any table of results.

Nothing here trains: the same rules judge real runs and simulated ones.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple, get_args

from partwise.comparison.effect import LARGEST, MARGIN, Effect, Verdict
from partwise.comparison.sentences import told
from partwise.comparison.sequential import LOOKS, check_looks, sequential_p
from partwise.comparison.statistics import Spread, holm, judge, look_alpha
from partwise.config import ConfigError, did_you_mean

Variance = Literal["pair", "residual"]
"""What an interval rests on: each pair of arms' own differences, or what an arm + seed model leaves of all arms."""

Values = Mapping[str, Mapping[int, float]]
"""arm -> seed -> result; nan or inf where the run diverged."""


Role = Literal["claim", "null", "planted"]
"""A claim proper, or a control that checks the instrument: without any effect, or with a large one."""


class Claim(NamedTuple):
    """A comparison of two arms. Controls do not count among the claims."""

    arm: str
    against: str
    role: Role = "claim"


@dataclasses.dataclass(frozen=True)
class Rules:
    """Margin, error probability, looks and variance of a comparison; without planned `looks`, each further one pays anew.

    Raises ConfigError for impossible ones.
    """

    margin: float = MARGIN
    alpha: float = 0.05
    looks: tuple[int, ...] = LOOKS
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
        """What every claim came to by the newest look that the values reach; [] before the first.

        The seeds count in ascending order. A claim is closed by its verdict: 'equivalent', or 'better' or 'worse' where
        Holm's method over all counted claims agrees, each with its p-value over all looks so far; by a run that diverged;
        and by the last look. Arms of closed claims need no further runs. Values beyond a claim's end are not read.
        Without planned looks all values are judged at once, as the given `look` at them.
        """
        if not self.looks:
            return self._unplanned(values, claims, look)
        seeds = sorted(set().union(*(runs.keys() for runs in values.values())))
        effects: dict[Claim, Effect] = {}
        p: dict[Claim, list[float]] = {claim: [] for claim in claims}
        for number, n in enumerate(self.looks, start=1):
            still = [claim for claim in claims if is_open(effects.get(claim))]
            arms = dict.fromkeys(name for claim in still for name in (claim.against, claim.arm))
            if not still or len(seeds) < n or any(seed not in values[arm] for arm in arms for seed in seeds[:n]):
                break
            here = {arm: {seed: values[arm][seed] for seed in seeds[:n]} for arm in arms}
            residual = self._spread(here, still)
            for claim in still:
                effects[claim] = effect = self._one(claim, here, number, residual)
                p[claim].append(1.0 if effect.p is None else effect.p)
            over_looks = {claim: sequential_p(p[claim], self.looks) for claim in effects}
            effects = confirmed(effects, over_looks, self.alpha)
        return [effects[claim] for claim in claims if claim in effects]

    def _unplanned(self, values: Values, claims: Sequence[Claim], look: int) -> list[Effect]:
        residual = self._spread(values, claims)
        effects = {claim: self._one(claim, values, look, residual) for claim in claims}
        p = {claim: 1.0 if effect.p is None else effect.p for claim, effect in effects.items()}
        return list(confirmed(effects, p, look_alpha(look, self.alpha)).values())

    def _spread(self, values: Values, claims: Sequence[Claim]) -> Spread | None:
        """The residual of the claims' arms. Controls are left out: a null one shares most of the baseline's noise."""
        if self.variance == "pair":
            return None
        names = {name for claim in claims if claim.role == "claim" for name in claim[:2]}
        return residual_spread({name: runs for name, runs in values.items() if name in names})

    def _one(self, claim: Claim, values: Values, look: int, residual: Spread | None) -> Effect:
        spread = residual if claim.role == "claim" else None
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
            spread=spread,
        )


def confirmed(effects: Mapping[Claim, Effect], p: Mapping[Claim, float], alpha: float) -> dict[Claim, Effect]:
    """The effects with p adjusted by Holm's method over all counted claims; a difference without it is undecided."""
    counted = [claim for claim in effects if claim.role == "claim"]
    adjusted = dict(zip(counted, holm([p[claim] for claim in counted]), strict=True))
    result = {}
    for claim, effect in effects.items():
        if effect.p is None or effect.low is None or effect.high is None:
            result[claim] = effect
            continue
        number = len(counted) if claim.role == "claim" else 1
        each, verdict = adjusted.get(claim, p[claim]), effect.verdict
        if verdict != "equivalent" and (effect.low > 0 or effect.high < 0):
            shown: Verdict = "better" if (effect.high < 0) == effect.lower_is_better else "worse"
            verdict = shown if number == 1 or each <= alpha else "undecided"
        changes = {"verdict": verdict, "p_looks": p[claim], "p_adjusted": each, "comparisons": number}
        result[claim] = told(effect, **changes)
    return result


def is_open(effect: Effect | None) -> bool:
    """Whether more seeds could still change what is said."""
    return effect is None or (effect.verdict == "undecided" and effect.look < max(1, len(effect.looks)))


def residual_spread(values: Values) -> Spread | None:
    """The SD of a difference of two arms at one seed, sqrt(2 MS), and (k - 1)(n - 1) degrees of freedom, where MS is what an
    arm + seed model leaves. Over the arms that never diverged; None for fewer than 2 of these, or 2 seeds."""
    rows = [list(runs.values()) for runs in values.values() if all(abs(x) <= LARGEST for x in runs.values())]
    k, n = len(rows), len(rows[0]) if rows else 0
    if k < 2 or n < 2:
        return None
    arms = [math.fsum(row) / n for row in rows]
    seeds = [math.fsum(column) / k for column in zip(*rows, strict=True)]
    middle = math.fsum(arms) / k
    left = (rows[i][j] - arms[i] - seeds[j] + middle for i in range(k) for j in range(n))
    df = (k - 1) * (n - 1)
    return Spread(math.hypot(*left) * math.sqrt(2 / df), df)

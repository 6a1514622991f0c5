"""What seeds show: the difference between two arms, its interval, and a verdict in one exact sentence.

Student's t throughout: a percentile bootstrap covers far less than it claims at the 3 to 10 seeds people can afford.
Nothing here reads files or trains; a run that diverged is given as nan or inf.
"""

import bisect
import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from scipy import special

from partwise.comparison.digits import decimals, percent, show
from partwise.comparison.power import seeds_for_margin as seeds_for_margin
from partwise.comparison.power import seeds_needed as seeds_needed
from partwise.comparison.power import smallest_detectable as smallest_detectable
from partwise.config import ConfigError

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
    correlation: float | None = None
    """Of the paired values; None for fewer than 3 pairs (2 always correlate perfectly) or an arm that never varies."""
    sd_arm: float | None = None
    sd_against: float | None = None
    sd_pooled: float | None = None
    margin: float
    look: int
    alpha: float
    """The error probability that this look spends: `confidence` is 1 - alpha."""
    confidence: float
    alpha_spent: float
    """By this look and all before it."""
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


def look_alpha(look: int, alpha: float = 0.05) -> float:
    """The error probability that one look at growing data spends: alpha at the first, alpha / 2^k at look k >= 2.

    The intervals of all looks hold together with probability 1 - 3/2 alpha or more, however many looks there are.
    Raises ConfigError for a look outside 1..100 or alpha outside 1e-9..0.5.
    """
    if not 1 <= look <= 100:
        raise ConfigError(f"look={look}: expected 1 for the first time these seeds are compared, then 2, ... up to 100")
    if not 1e-9 <= alpha <= 0.5:
        raise ConfigError(f"alpha={alpha:g}: expected an error probability from 1e-9 to 0.5, such as 0.05")
    return alpha if look == 1 else math.ldexp(alpha, -look)


def alpha_spent(looks: int, alpha: float = 0.05) -> float:
    """What the first `looks` looks spend together: alpha (1 + 1/4 + 1/8 + ...) = alpha (3/2 - 1/2^looks)."""
    return look_alpha(1, alpha) if looks == 1 else alpha / 2 + alpha - look_alpha(looks, alpha)


def judge(
    arm: str,
    against: str,
    values: Mapping[int, float],
    baseline: Mapping[int, float],
    *,
    margin: float = MARGIN,
    alpha: float = 0.05,
    look: int = 1,
    lower_is_better: bool = True,
    metric: str = "validation loss",
    unit: str = "nats per character",
    paired: bool = True,
) -> Effect:
    """Compare an arm with its baseline; `values` and `baseline` map each seed to its run's result, in `unit`.

    The interval is mean +- t(df) SE at confidence 1 - look_alpha(look, alpha). Seeds that both arms have are paired,
    with df = n - 1; where none is shared, or for `paired=False`, the interval is Welch's. The verdict, in this order:
    'equivalent' if the interval lies in [-margin, margin], ends included, even where it excludes 0; 'better' or 'worse'
    if it excludes 0 (one that ends at 0 does not); else 'undecided', also where a single run gives no interval. Arms
    whose true difference is the margin itself are called equivalent with probability alpha / 2 at most.
    Raises ConfigError for an arm without runs, a margin that is negative or not finite, or an impossible look or alpha.
    """
    if not (math.isfinite(margin) and margin >= 0):
        raise ConfigError(f"margin={margin:g}: expected a difference too small to matter, such as {MARGIN}")
    for name, runs in ((arm, values), (against, baseline)):
        if not runs:
            raise ConfigError(f"arm {name!r} has no runs: train it on at least two seeds")
    shared = tuple(sorted(values.keys() & baseline.keys())) if paired else ()
    a = [values[seed] for seed in shared or sorted(values)]
    b = [baseline[seed] for seed in shared or sorted(baseline)]
    diverged_arm, diverged_against = (
        sum(not abs(value) <= LARGEST for value in runs.values()) for runs in (values, baseline)
    )
    effect = Effect(
        arm=arm,
        against=against,
        metric=metric,
        unit=unit,
        lower_is_better=lower_is_better,
        n=min(len(a), len(b)),
        n_arm=len(values),
        n_against=len(baseline),
        paired=bool(shared),
        left_out=len(values) + len(baseline) - 2 * len(shared) if shared else 0,
        seeds=shared,
        differences=tuple(x - y for x, y in zip(a, b, strict=True)) if shared else (),
        diverged_arm=diverged_arm,
        diverged_against=diverged_against,
        margin=margin,
        look=look,
        alpha=look_alpha(look, alpha),
        confidence=1 - look_alpha(look, alpha),
        alpha_spent=alpha_spent(look, alpha),
    )
    if not diverged_arm and not diverged_against:
        effect = _estimate(effect, a, b, math.ldexp(alpha, -look - 1))
    return dataclasses.replace(effect, sentence=_sentence(effect))


def _estimate(effect: Effect, a: Sequence[float], b: Sequence[float], next_alpha: float) -> Effect:
    """The effect with its mean, interval and verdict, from the runs `a` of the arm and `b` of its baseline."""
    mean = _mean(effect.differences) if effect.paired else _mean(a) - _mean(b)
    if effect.n < 2:
        return dataclasses.replace(effect, mean=mean, verdict="undecided")
    sd_a, sd_b = _sd(a), _sd(b)
    if effect.paired:
        sd = _sd(effect.differences)
        error, df = sd / math.sqrt(effect.n), effect.n - 1.0
    else:
        error, df = _welch(sd_a, len(a), sd_b, len(b))
    half = _t(df, effect.alpha) * error if error else 0.0
    low, high = mean - half, mean + half
    verdict: Verdict = "undecided"
    if -effect.margin <= low and high <= effect.margin:
        verdict = "equivalent"
    elif low > 0 or high < 0:
        verdict = "better" if (high < 0) == effect.lower_is_better else "worse"

    def decides(n: int) -> bool:
        error, df = (sd / math.sqrt(n), n - 1) if effect.paired else _welch(sd_a, n, sd_b, n)
        half = _t(df, next_alpha) * error
        return half < abs(mean) or abs(mean) + half <= effect.margin

    more = range(effect.n + 1, max(effect.n, MANY_SEEDS) + 1)
    return dataclasses.replace(
        effect,
        mean=mean,
        low=low,
        high=high,
        p=2 * float(special.stdtr(df, -abs(mean) / error)) if error else float(mean == 0),
        sd_difference=sd if effect.paired else None,
        correlation=_correlation(a, b) if effect.paired else None,
        sd_arm=sd_a,
        sd_against=sd_b,
        sd_pooled=pooled_sd([a, b]),
        seeds_to_decide=effect.n + 1 + bisect.bisect_left(more, True, key=decides) if verdict == "undecided" else None,
        verdict=verdict,
    )


def _welch(sd_a: float, n_a: int, sd_b: float, n_b: int) -> tuple[float, float]:
    """The standard error of a difference of means, and Satterthwaite's degrees of freedom. Welch 1947."""
    a, b = sd_a / math.sqrt(n_a), sd_b / math.sqrt(n_b)
    error = math.hypot(a, b)
    if not error:
        return 0.0, 1.0
    return error, 1 / ((a / error) ** 4 / (n_a - 1) + (b / error) ** 4 / (n_b - 1))  # in ratios: no overflow


def _t(df: float, alpha: float) -> float:
    """The two-sided critical value of Student's t."""
    return -float(special.stdtrit(df, alpha / 2))


def _mean(x: Sequence[float]) -> float:
    return math.fsum(x) / len(x) if min(x) < max(x) else x[0]  # equal values shall have no spread, not even rounding


def _sd(x: Sequence[float]) -> float:
    mean = _mean(x)
    return math.hypot(*(value - mean for value in x)) / math.sqrt(len(x) - 1)


def _correlation(a: Sequence[float], b: Sequence[float]) -> float | None:
    """Pearson's r; None where it says nothing."""
    mean_a, mean_b = _mean(a), _mean(b)
    length_a, length_b = (math.hypot(*(value - mean for value in x)) for x, mean in ((a, mean_a), (b, mean_b)))
    if len(a) < 3 or not length_a or not length_b:
        return None
    r = math.fsum((x - mean_a) / length_a * ((y - mean_b) / length_b) for x, y in zip(a, b, strict=True))
    return max(-1.0, min(1.0, r))


def pooled_sd(arms: Sequence[Sequence[float]]) -> float | None:
    """The SD over seeds shared by all arms: sqrt(sum (n - 1) sd^2 / sum (n - 1)); None without an arm of 2 runs."""
    arms = [arm for arm in arms if len(arm) > 1]
    df = sum(len(arm) - 1 for arm in arms)
    return math.hypot(*(_sd(arm) * math.sqrt((len(arm) - 1) / df) for arm in arms)) if arms else None


def holm(p: Sequence[float]) -> list[float]:
    """P values adjusted for their number, so that the chance of any false claim stays below alpha. Holm 1979."""
    adjusted, floor = [0.0] * len(p), 0.0
    for rank, index in enumerate(sorted(range(len(p)), key=lambda index: p[index])):
        floor = adjusted[index] = max(floor, min(1.0, (len(p) - rank) * p[index]))
    return adjusted


def _sentence(effect: Effect) -> str:
    """The verdict in words."""
    e, unit = effect, f" {effect.unit}" if effect.unit else ""
    if e.diverged_arm or e.diverged_against:
        return (
            f"no verdict: {_runs(e.diverged_arm, e.n_arm)} of {e.arm} and {_runs(e.diverged_against, e.n_against)} of "
            f"{e.against} diverged, and a mean over the others would hide it."
        )
    if e.mean is None or e.low is None or e.high is None:
        few = "one pair of runs has" if e.paired else "a single run of an arm has"
        return (
            f"undecided: {few} no interval ({e.arm} minus {e.against} is {show(e.mean or 0.0, 4)}{unit}"
            f"{_left_out(e)}); run at least 2 seeds of each arm, better 5."
        )
    places = decimals((e.high - e.low) / 2, (e.low, e.high), e.margin)
    mean, low, high = (show(value, places) for value in (e.mean, e.low, e.high))
    sample = f"{e.n} paired seeds" if e.paired else f"{e.n_arm} and {e.n_against} unpaired runs"
    sample += (f", look {e.look}" if e.look > 1 else "") + _left_out(e)
    interval = f"{percent(e.alpha, complement=True)} interval"
    flat = "; the differences do not vary at all, so the interval has no width" if e.low == e.high else ""
    if e.verdict in ("better", "worse"):
        by, *ends = (text.removeprefix("-") for text in ((mean, low, high) if e.mean > 0 else (mean, high, low)))
        return (
            f"{e.arm} is {e.verdict} than {e.against}: its {e.metric} is {'higher' if e.mean > 0 else 'lower'} by {by}"
            f"{unit} ({interval} {ends[0]} to {ends[1]}, {sample}){flat}."
        )
    if e.verdict == "equivalent":
        excludes = ", although the interval excludes 0" if e.low > 0 or e.high < 0 else ""
        return (
            f"equivalent: the {e.metric} of {e.arm} and {e.against} differs by no more than the margin of {e.margin:g}"
            f"{unit} ({e.arm} minus {e.against}: {mean}, {interval} {low} to {high}, {sample}){excludes}{flat}."
        )
    seeds = f"about {e.seeds_to_decide}"
    if e.seeds_to_decide is None or e.seeds_to_decide > MANY_SEEDS:
        seeds = f"more than {max(MANY_SEEDS, e.n)}"
    return (
        f"undecided: the {interval} of {e.arm} minus {e.against}, from {low} to {high}{unit} ({sample}), holds both "
        f"zero and more than the margin of {e.margin:g}; {seeds} {'seeds' if e.paired else 'seeds per arm'} in all "
        f"would likely decide."
    )


def _runs(diverged: int, n: int) -> str:
    return f"{diverged} of {n} run{'s' if n > 1 else ''}"


def _left_out(effect: Effect) -> str:
    k = effect.left_out
    return f", {k} run{'s' if k > 1 else ''} left out for want of a partner with the same seed" if k else ""

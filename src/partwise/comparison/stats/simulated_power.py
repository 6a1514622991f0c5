"""Power by simulation: the probability of each verdict of a planned comparison, under given true effects.

The decisions are those of `Rules.judge`, vectorized over simulated comparisons: two families of hypotheses, Holm's method at
every look over all claims, and claims that close. All results are seeded.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np
from scipy import special

from partwise.comparison.stats.group_sequential import check_looks, nominal_levels
from partwise.comparison.stats.methods import find_method, newest_method
from partwise.comparison.stats.noise import check_sd
from partwise.config import ConfigError

POWER = 0.8
"""The power of a minimum detectable effect and of the number of seeds that an effect needs."""

MAX_PAIRS = 100_000
"""A design that needs more seeds than this raises ConfigError."""

UNDECIDED, LOWER, HIGHER, EQUIVALENT = range(4)

Samples = Sequence[tuple[np.ndarray, np.ndarray]]
"""For each look, the mean difference of every claim and its standard error, (comparisons, claims) each."""


@dataclass(frozen=True)
class Design:
    """The design, which fixes the error rates: looks, number of claims, margin, alpha and method of judging.

    Without planned looks, `looks` has one entry, the number of seeds. The differences of two claims are correlated, by 1/2 if
    their arms share the baseline and are equally noisy. Raises ConfigError for invalid values.
    """

    looks: tuple[int, ...]
    claims: int = 1
    margin: float = 0.0
    alpha: float = 0.05
    correlation: float = 0.5
    method: int = field(default_factory=newest_method)
    family: int | None = None
    """The number of claims that `alpha` is already adjusted for, if this is one of several; `claims` if None."""

    def __post_init__(self) -> None:
        check_looks(self.looks)
        find_method(self.method)
        if not 1 <= self.claims <= 1000:
            raise ConfigError(f"claims={self.claims}: expected a number of claims from 1 to 1000")
        if not (math.isfinite(self.margin) and self.margin >= 0):
            raise ConfigError(f"margin={self.margin:g}: expected a difference too small to matter, such as 0.005")
        if not 1e-9 <= self.alpha <= 0.5:
            raise ConfigError(f"alpha={self.alpha:g}: expected an error probability from 1e-9 to 0.5, such as 0.05")
        if not 0 <= self.correlation < 1:
            raise ConfigError(f"correlation={self.correlation:g}: expected a number from 0 up to 1")

    @property
    def equivalence_sides(self) -> int:
        """2 if both one-sided tests of equivalence are at the level of a test of no difference, 1 if they share it."""
        return 2 if (self.family or self.claims) == 1 and find_method(self.method).single_at_alpha else 1


@dataclass(frozen=True)
class VerdictRates:
    """The probabilities of a claim's verdicts, which add up to 1, and its expected number of pairs."""

    better: float
    worse: float
    equivalent: float
    undecided: float
    pairs: float


def verdict_rates(
    design: Design, effects: Sequence[float], sd: float, lower_is_better: bool = True
) -> list[VerdictRates]:
    """The verdict rates of every claim, given the true difference of each and the SD of one paired difference, in one unit.

    Raises ConfigError unless there is one finite effect per claim and `sd` is positive.
    """
    if len(effects) != design.claims or not all(map(math.isfinite, effects)):
        raise ConfigError(f"effects={list(effects)}: expected {design.claims} finite differences, one for each claim")
    check_sd(sd)
    shift = np.array(effects) / sd
    samples = [(mean + shift, error) for mean, error in _samples(design.looks, design.claims, design.correlation)]
    verdicts, pairs = decide_all(samples, design, design.margin / sd)
    rates = []
    for claim in range(design.claims):
        lower, higher, equivalent, undecided = (
            float(np.mean(verdicts[:, claim] == verdict)) for verdict in (LOWER, HIGHER, EQUIVALENT, UNDECIDED)
        )
        better, worse = (lower, higher) if lower_is_better else (higher, lower)
        rates.append(VerdictRates(better, worse, equivalent, undecided, float(pairs[:, claim].mean())))
    return rates


def one_real_claim(design: Design, effect: float, sd: float) -> VerdictRates:
    """The rates of one claim whose arm is better by `effect` while all other arms equal the baseline."""
    return verdict_rates(design, (-abs(effect), *[0.0] * (design.claims - 1)), sd)[0]


def detectable_effect(design: Design, sd: float, power: float = POWER) -> float:
    """The smallest true difference of one claim, with all other arms equal, that is detected with probability `power`."""
    check_sd(sd)
    high = 1.0
    while one_real_claim(design, high * sd, sd).better < power:
        high *= 2
        if high > 1e12:
            raise ConfigError("no effect of any size would be detected with that power: raise alpha or the seeds")
    low = 0.0
    while high - low > 1e-4 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if one_real_claim(design, middle * sd, sd).better >= power else (middle, high)
    return high * sd


def seeds_for_effect(effect: float, sd: float, design: Design, power: float = POWER) -> int:
    """The fewest seeds, judged once, with which one real claim of `effect` gets its verdict with probability `power`.

    The looks of `design` are ignored. Raises ConfigError if that takes over 100,000 seeds, or
    if no number is enough: with many seeds, an effect below the margin is called equivalent.
    """
    if not math.isfinite(effect) or effect == 0:
        raise ConfigError(f"effect={effect:g}: no number of seeds is enough; give a finite difference other than 0")
    goal = f"an effect of {effect:g} at an SD of {sd:g}"
    try:
        return fewest_seeds(lambda n: one_real_claim(_at(design, n), effect, sd).better >= power, goal)
    except ConfigError:
        if abs(effect) >= design.margin:
            raise
        raise ConfigError(
            f"effect={effect:g}: is below the margin of {design.margin:g}, so with many seeds it is called equivalent, not "
            "better: choose a smaller margin or a larger effect"
        ) from None


def seeds_for_equivalence(sd: float, design: Design, power: float = POWER) -> int:
    """The fewest seeds, judged once, with which equal arms are each called equivalent with probability `power`."""
    if design.margin == 0:
        raise ConfigError("margin=0: no number of seeds makes arms equivalent; give a positive margin")
    goal = f"a margin of {design.margin:g} at an SD of {sd:g}"
    return fewest_seeds(lambda n: one_real_claim(_at(design, n), 0.0, sd).equivalent >= power, goal)


def stopped_means(design: Design, effect: float, margin: float) -> np.ndarray:
    """The mean difference of a single claim when it stops, (comparisons,); all in SDs of a difference."""
    samples = []
    for mean, error in _samples(design.looks, 1, 0.0):
        noise = mean[:5000]  # and its mirror image: without stopping, the median is the effect exactly
        samples.append((np.concatenate([noise, -noise]) + effect, np.concatenate([error[:5000], error[:5000]])))
    pairs = decide_all(samples, design, margin)[1]
    return np.asarray(np.select([pairs == n for n in design.looks], [mean for mean, _ in samples])[:, 0])


def decide_all(samples: Samples, design: Design, margin: float) -> tuple[np.ndarray, np.ndarray]:
    """The final verdict of every claim and its number of pairs, (comparisons, claims) each, with `margin` in units of the
    samples.

    A p-value enters Holm's method only through the number of the levels alpha, alpha / 2, ..., alpha / k that it is below.
    """
    shape, k = samples[0][0].shape, design.claims
    alphas = [design.alpha / share for share in range(1, k + 1)]
    levels = [nominal_levels(design.looks, alpha) for alpha in alphas]
    levels_equivalent = [nominal_levels(design.looks, min(design.equivalence_sides * alpha, 0.999)) for alpha in alphas]
    differs, agrees = np.zeros(shape, int), np.zeros(shape, int)
    sign, pairs, verdicts = np.zeros(shape), np.zeros(shape, int), np.full(shape, UNDECIDED)
    for look, (n, (mean, error)) in enumerate(zip(design.looks, samples, strict=True)):
        critical, of_margin = (
            -special.stdtrit(n - 1, np.array([level[look] for level in each]) / 2)
            for each in (levels, levels_equivalent)
        )
        is_open = verdicts == UNDECIDED
        differs = np.where(is_open, np.searchsorted(critical, np.abs(mean) / error, side="right"), differs)
        room = (margin - np.abs(mean)) / error
        agrees = np.where(is_open, np.searchsorted(of_margin, room, side="right"), agrees)
        sign, pairs = np.where(is_open, np.sign(mean), sign), np.where(is_open, n, pairs)
        directions = np.where(_holm(differs), np.where(sign < 0, LOWER, HIGHER), UNDECIDED)
        verdicts = np.where(_holm(agrees), EQUIVALENT, directions)
    return verdicts, pairs


def _holm(below: np.ndarray) -> np.ndarray:
    """Whether Holm's method rejects each of k hypotheses; `below[i]` counts the levels alpha / j, j = 1..k, above its p."""
    k = below.shape[1]
    rejected = below >= k
    while True:
        more = below >= k - rejected.sum(axis=1, keepdims=True)
        if (more == rejected).all():
            return rejected
        rejected = more


@lru_cache(maxsize=8)
def _samples(looks: tuple[int, ...], claims: int, correlation: float) -> Samples:
    """Normal differences of SD 1 without effects: those of claim i are sqrt(1 - r) a_i + sqrt(r) b, b common to all claims.

    Only sums and sums of squares are drawn. For m further pairs, about their mean: the squares of b are chi2(m - 1), the
    products of a_i and b are sqrt(squares of b) z with a normal z, and the squares of a_i are z^2 + chi2(m - 2).
    """
    draws = max(20_000, 60_000 // claims)
    rng = np.random.default_rng(0)
    own, common = math.sqrt(1 - correlation), math.sqrt(correlation)
    total, squares, n = np.zeros((draws, claims)), np.zeros((draws, claims)), 0
    samples = []
    for look in looks:
        m, n = look - n, look
        added = own * rng.normal(0, math.sqrt(m), (draws, claims)) + common * rng.normal(0, math.sqrt(m), (draws, 1))
        about_mean: np.ndarray | float = 0.0
        if m > 1:
            of_b, z = rng.chisquare(m - 1, (draws, 1)), rng.standard_normal((draws, claims))
            of_a = z**2 + (rng.chisquare(m - 2, (draws, claims)) if m > 2 else 0.0)
            about_mean = own**2 * of_a + 2 * own * common * z * np.sqrt(of_b) + common**2 * of_b
        total, squares = total + added, squares + added**2 / m + about_mean
        samples.append((total / n, np.sqrt((squares - total**2 / n) / (n - 1) / n)))
    return samples


def _at(design: Design, seeds: int) -> Design:
    return replace(design, looks=(seeds,))


def fewest_seeds(enough: Callable[[int], bool], goal: str) -> int:
    """The fewest seeds that are `enough`, by bisection."""
    high = 2
    while not enough(high):
        if high == MAX_PAIRS:
            raise ConfigError(f"{goal} needs more than {MAX_PAIRS:,} seeds: choose a larger difference")
        high = min(2 * high, MAX_PAIRS)
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high

"""The promises of docs/statistics.md, each measured by simulation apart from the functions that make them."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy import stats

from partwise.comparison.stats.intervals import judge
from partwise.comparison.stats.noise import pooled_noise
from partwise.comparison.stats.protocol import Claim, Rules
from partwise.comparison.stats.simulated_power import Design, detectable_effect, one_real_claim, seeds_for_effect
from simulations import FAILED, SD, START, simulate

LOOKS = (4, 8, 16)
SD_DIFFERENCE = SD * math.sqrt(2)


@dataclass(frozen=True)
class Promise:
    """What is promised, its figure before, the wanted figure, and how today's is measured over so many simulations."""

    text: str
    before: str
    wanted: str
    measure: Callable[[int], float]

    def line(self, draws: int) -> str:
        return f"| {self.text} | {self.before} | {100 * self.measure(draws):.1f}% | {self.wanted} |"


def power_of_a_plan(arms: int) -> Callable[[int], float]:
    def measure(draws: int) -> float:
        effect = detectable_effect(Design(LOOKS, arms, margin=SD), SD_DIFFERENCE)
        return simulate(Rules(margin=SD, looks=LOOKS), arms, [-effect] + [0.0] * (arms - 1), draws=draws).shown

    return measure


def largest_error_of_a_plan(draws: int) -> float:
    """Over effects around the default margin at 16 seeds, the largest error of any promised verdict's probability."""
    errors = []
    for effect in (0.001, 0.003, 0.005, 0.007):
        promised = one_real_claim(Design((16,), margin=SD), effect, SD_DIFFERENCE)
        rates = simulate(Rules(margin=SD, looks=(16,)), truth=-effect, draws=draws)
        errors += [abs(promised.better - rates.shown), abs(promised.equivalent - rates.equivalent)]
    return max(errors)


def power_after_pilots(pairs: int) -> Callable[[int], float]:
    """The mean true power of plans for 80%, each from its own pilot of so many pairs."""

    def measure(draws: int) -> float:
        rng = np.random.default_rng(pairs)
        powers = []
        for _ in range(min(draws, 200)):
            noise = pooled_noise([rng.standard_normal(pairs).tolist()], "a pilot")
            assert noise is not None
            n = seeds_for_effect(1.0, noise.upper_sd, Design((2,)))
            critical = stats.t.isf(0.025, n - 1)
            powers.append(stats.nct.sf(critical, n - 1, math.sqrt(n)))
        return float(np.mean(powers))

    return measure


def false_claims(arms: int, noise: str) -> Callable[[int], float]:
    return lambda draws: simulate(Rules(margin=SD, looks=(8,)), arms, noise=noise, draws=draws).false


def equivalent_at_the_margin(draws: int) -> float:
    rules = Rules(margin=1.5 * SD_DIFFERENCE, looks=(16,))
    return simulate(rules, 10, truth=rules.margin, draws=draws).false_equivalent


def equivalent_with_a_failed_run(draws: int) -> float:
    """The fraction of claims with a failed run that are called equivalent."""
    rules = Rules(margin=1.0, looks=(8,), failure=(START + FAILED) / 2)
    rng = np.random.default_rng(0)
    claim, equivalent, failed = Claim("arm", "baseline"), 0, 0
    for _ in range(draws):
        fails = rng.random(8) < 0.1
        runs = np.where(fails, FAILED, START + SD * rng.standard_normal(8))
        baseline = START + SD * rng.standard_normal(8)
        (effect,) = rules.judge(
            {"arm": dict(enumerate(runs.tolist())), "baseline": dict(enumerate(baseline.tolist()))}, [claim]
        )
        failed += bool(fails.any())
        equivalent += bool(fails.any()) and effect.verdict == "equivalent"
    return equivalent / failed


def unpaired_false_claims(draws: int) -> float:
    """2 runs against 10, without a difference."""
    rng, false = np.random.default_rng(2), 0
    for _ in range(draws):
        few, many = rng.standard_normal(2), rng.standard_normal(10)
        effect = judge("few", "many", dict(enumerate(few)), dict(enumerate(many)), margin=0.0, paired=False)
        false += effect.verdict in ("better", "worse")
    return false / draws


def false_claims_of_rounding(draws: int) -> float:
    """Differences of exactly 0.1 in decimals, whose SD is rounding."""
    rng, false = np.random.default_rng(3), 0
    for _ in range(draws):
        baseline = [round(float(x), 2) for x in rng.uniform(1, 5, 5)]
        runs = {seed: round(x + 0.1, 2) for seed, x in enumerate(baseline)}
        false += judge("arm", "baseline", runs, dict(enumerate(baseline)), margin=0.0).verdict == "worse"
    return false / draws


ALL = [
    Promise("Power of a plan for 80%: one real arm of 3, looks at 4, 8, 16", "62%", "80 ± 3%", power_of_a_plan(3)),
    Promise("The same, one real arm of 10", "39%", "80 ± 3%", power_of_a_plan(10)),
    Promise(
        "Largest error of a verdict's planned probability near the margin",
        "63 points",
        "3 points",
        largest_error_of_a_plan,
    ),
    Promise("Mean power of plans for 80% from 4 pilot pairs", "57%", "at least 80%", power_after_pilots(4)),
    Promise("The same from 8 pairs", "68%", "at least 80%", power_after_pilots(8)),
    Promise("The same from 16 pairs", "74%", "at least 80%", power_after_pilots(16)),
    Promise(
        "False claims, 10 equal arms over a baseline four times noisier",
        "9%",
        "at most 5%",
        false_claims(10, "noisy baseline"),
    ),
    Promise(
        "False claims, one of 10 equal arms four times noisier", "20%", "at most 5%", false_claims(10, "one noisy arm")
    ),
    Promise("Called equivalent, of arms with a failed run", "26 to 50%", "0%", equivalent_with_a_failed_run),
    Promise("Any of 10 arms at the margin called equivalent", "15.5%", "at most 5%", equivalent_at_the_margin),
    Promise("False claims, 2 unpaired runs against 10", "9.8%", "at most 5.5%", unpaired_false_claims),
    Promise("Differences of exactly 0.1 in decimals called worse", "100%", "0%", false_claims_of_rounding),
]

"""The promises of docs/statistics.md, each measured by simulation apart from the functions that make them."""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy import stats

from partwise.comparison.stats.adjusted import replication_seeds
from partwise.comparison.stats.effect import Effect
from partwise.comparison.stats.intervals import judge
from partwise.comparison.stats.methods import find_method, newest_method
from partwise.comparison.stats.noise import pooled_noise
from partwise.comparison.stats.null_pairs import why_no_noise
from partwise.comparison.stats.protocol import Claim, Rules
from partwise.comparison.stats.simulated_power import Design, detectable_effect, one_real_claim, seeds_for_effect
from simulations import NOISES, SD, START, simulate

LOOKS = (4, 8, 16)
SD_DIFFERENCE = SD * math.sqrt(2)
FAILURE_RATE = 0.1


@dataclass(frozen=True)
class Promise:
    """What is promised, its figure before, the wanted figure, and how today's is measured over a number of simulations."""

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
    """The mean true power of plans for 80%, each from a pilot of its own."""

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


def equivalent_though_failing(draws: int) -> list[Effect]:
    """The claims called equivalent, of arms of which one run in ten fails: those in which, by chance, no run did."""
    rules = Rules(margin=1.0, looks=(8,))
    rng, found = np.random.default_rng(0), []
    for _ in range(draws):
        runs = np.where(rng.random(8) < FAILURE_RATE, math.nan, START + SD * rng.standard_normal(8))
        baseline = START + SD * rng.standard_normal(8)
        (effect,) = rules.judge(
            {"arm": dict(enumerate(runs.tolist())), "baseline": dict(enumerate(baseline.tolist()))},
            [Claim("arm", "baseline")],
        )
        found += [effect] if effect.verdict == "equivalent" else []
    return found


def failing_called_equivalent(draws: int) -> float:
    return len(equivalent_though_failing(draws)) / draws


def failure_rate_named(draws: int) -> float:
    """Of those verdicts, the fraction whose sentence has a limit of the failure rate that is above the true one."""
    sentences = [effect.sentence for effect in equivalent_though_failing(draws)]
    limits = [re.search(r"not rule out failure rates up to (\d+)%", sentence) for sentence in sentences]
    return sum(limit is not None and int(limit[1]) >= 100 * FAILURE_RATE for limit in limits) / len(limits)


def unpaired_false_claims(draws: int) -> float:
    """2 runs against 10, without a difference."""
    rng, false = np.random.default_rng(2), 0
    for _ in range(draws):
        few, many = rng.standard_normal(2), rng.standard_normal(10)
        effect = judge("few", "many", dict(enumerate(few)), dict(enumerate(many)), margin=0.0, paired=False)
        false += effect.verdict in ("better", "worse")
    return false / draws


def false_claims_of_rounding(draws: int) -> float:
    """Differences of exactly 0.1 in decimals: their SD is rounding."""
    rng, false = np.random.default_rng(3), 0
    for _ in range(draws):
        baseline = [round(float(x), 2) for x in rng.uniform(1, 5, 5)]
        runs = {seed: round(x + 0.1, 2) for seed, x in enumerate(baseline)}
        false += judge("arm", "baseline", runs, dict(enumerate(baseline)), margin=0.0).verdict == "worse"
    return false / draws


def identical_arms_at_their_best(draws: int) -> float:
    """The largest rate, over noise from small to large, at which identical arms differ at their best of 5 values."""
    truth, rates = (np.arange(5) - 2.25) ** 2, []
    for noise in (0.3, 0.7, 1.0, 1.5, 4.0):
        rng, false = np.random.default_rng(round(10 * noise)), 0
        for _ in range(draws):
            losses = truth[:, None] + noise * rng.standard_normal((2, 5, 4))
            chosen = [truth[curve.mean(-1).argmin()] for curve in losses]
            runs = START + noise * rng.standard_normal((2, 16)) + np.array(chosen)[:, None]
            claim = Claim("arm", "baseline", "claim", find_method(newest_method()).tuning_noise(*losses.tolist()))
            values = {name: dict(enumerate(row.tolist())) for name, row in zip(("arm", "baseline"), runs, strict=True)}
            (effect,) = Rules(margin=0.0, looks=(16,)).judge(values, [claim])
            false += effect.verdict in ("better", "worse")
        rates.append(false / draws)
    return max(rates)


def stopped_early(draws: int, effect: float) -> list[Effect]:
    """Claims of a true effect, in SDs of a difference, that stopped at the first of the looks as better."""
    rng, found = np.random.default_rng(7), []
    for _ in range(draws):
        runs = START + SD * rng.standard_normal((2, 16))
        runs[0] -= effect * SD_DIFFERENCE
        values = {name: dict(enumerate(row.tolist())) for name, row in zip(("arm", "baseline"), runs, strict=True)}
        (claim,) = Rules(margin=1e-9, looks=LOOKS).judge(values, [Claim("arm", "baseline")])
        if claim.verdict == "better" and claim.look == 1:
            found.append(claim)
    return found


def replicated(draws: int) -> float:
    """The mean true power of replications of claims that stopped at the first look, at an effect with 80% power."""
    powers = []
    for claim in stopped_early(draws, 0.81):
        n, _ = replication_seeds(claim, 0.05, newest_method())
        powers.append(stats.nct.sf(stats.t.isf(0.025, n - 1), n - 1, 0.81 * math.sqrt(n)))
    return float(np.mean(powers))


def added_seeds(draws: int) -> float:
    """Any false claim as 4 seeds are added three times, without planned looks."""
    rng, false = np.random.default_rng(8), 0
    for _ in range(draws):
        runs = START + SD * rng.standard_normal((2, 16))
        values = {name: dict(enumerate(row.tolist())) for name, row in zip(("arm", "baseline"), runs, strict=True)}
        first = {name: dict(list(each.items())[:4]) for name, each in values.items()}
        rules, claims = Rules(margin=0.0, looks=()), [Claim("arm", "baseline")]
        verdicts = [rules.judge(first, claims)[0].verdict]
        for n in (8, 12, 16):
            later = {name: dict(list(each.items())[:n]) for name, each in values.items()}
            verdicts.append(rules.explore(later, claims)[0].verdict)
        false += any(verdict in ("better", "worse") for verdict in verdicts)
    return false / draws


def deciding_seeds(pairs: int) -> Callable[[int], float]:
    """How often a new comparison decides with the number of seeds that an undecided one names."""

    def measure(draws: int) -> float:
        rng, decided, effect = np.random.default_rng(pairs), list[float](), 0.5
        for noise in rng.standard_normal((draws, pairs)):
            values = 5 + effect + noise - noise.mean()  # the mean as estimated: only the SD varies
            result = judge("arm", "baseline", dict(enumerate(values)), dict.fromkeys(range(pairs), 5.0), margin=0.01)
            (found,) = find_method(newest_method()).decide([result], 0.05)
            if seeds := found.seeds_to_decide:
                decided.append(stats.nct.sf(stats.t.ppf(0.975, seeds - 1), seeds - 1, effect * math.sqrt(seeds)))
        return float(np.mean(decided))

    return measure


def rounded_called_equivalent(draws: int, method: int | None = None) -> float:
    """Of arms that differ by the margin, half the unit of their values: 2 seeds with an effect of many units on both arms."""
    rng, unit, wrong = np.random.default_rng(7), 0.01, 0
    rules = Rules(margin=unit / 2, looks=(), method=method or newest_method())
    for _ in range(draws):
        seeds, noise = rng.normal(1.4, 10 * unit, 2), rng.normal(0, unit / 5, (2, 2))
        arm, baseline = np.round(seeds + noise + [[unit / 2], [0.0]], 2).tolist()
        (effect,) = rules.judge({"a": dict(enumerate(arm)), "b": dict(enumerate(baseline))}, [Claim("a", "b")])
        wrong += effect.verdict == "equivalent"
    return wrong / draws


def calibrations_that_fail(draws: int) -> float:
    """Of A/A pairs whose mean is off by two of their SDs, where 97% of t tests reject."""
    rng = np.random.default_rng(9)
    return sum(why_no_noise((rng.standard_normal(8) + 2).tolist()) is not None for _ in range(draws)) / draws


def covered_if_skewed(draws: int) -> float:
    return simulate(Rules(margin=0.0, looks=(8,)), noise="skewed over quiet", draws=draws).covered


def warned_if_skewed(draws: int) -> float:
    """Claims with 16 pairs of an exponential arm over a quiet baseline that a report warns about."""
    rng, warned = np.random.default_rng(10), 0
    for _ in range(draws):
        runs = SD * NOISES["skewed over quiet"](rng, (2, 16)) + START
        effect = judge("arm", "baseline", dict(enumerate(runs[1])), dict(enumerate(runs[0])))
        warned += any("skew" in message for message in find_method(newest_method()).warnings([effect]))
    return warned / draws


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
    Promise(
        "Called equivalent, arms of which one run in ten fails, 8 seeds", "41%", "stated", failing_called_equivalent
    ),
    Promise("Of these, verdicts that name a failure rate not ruled out", "0%", "100%", failure_rate_named),
    Promise("Any of 10 arms at the margin called equivalent", "15.5%", "at most 5%", equivalent_at_the_margin),
    Promise("False claims, 2 unpaired runs against 10", "9.8%", "at most 5.5%", unpaired_false_claims),
    Promise(
        "Identical arms that differ at their best tuned value", "16 to 44%", "at most 5%", identical_arms_at_their_best
    ),
    Promise("Power of replications of claims that stopped at look 1", "21%", "80%", replicated),
    Promise(
        "New comparisons that decide, with the seeds that 4 pairs name",
        "59%",
        "at least 80%",
        deciding_seeds(4),
    ),
    Promise("The same, of 8 pairs", "76%", "at least 80%", deciding_seeds(8)),
    Promise("Rounded values of arms at the margin called equivalent, 2 seeds", "24%", "0%", rounded_called_equivalent),
    Promise("False claims as seeds are added three times", "7.5%", "at most 5%", added_seeds),
    Promise("Calibrations that fail, of A/A pairs with a shifted mean", "0%", "about 97%", calibrations_that_fail),
    Promise("Covered, an exponential arm over a quiet baseline, 8 seeds", "89%", "stated", covered_if_skewed),
    Promise("Warned about, the same with 16 seeds", "0%", "mostly", warned_if_skewed),
    Promise("Differences of exactly 0.1 in decimals called worse", "100%", "0%", false_claims_of_rounding),
]

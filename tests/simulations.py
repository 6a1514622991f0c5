"""Simulated comparisons: error rates, coverage and power of the decision rules, judged by the code that judges real ones.

`make test` simulates some hundred comparisons of each kind; `make test-statistics` (tests/statistics_page.py) simulates
thousands and writes docs/statistics.md. All results are seeded.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from partwise.comparison.stats.protocol import Claim, Rules

SD, SHARED = 0.005, 0.004
"""The SD of an arm's own noise, and the SD of the seed effect that all arms share."""

START = 1.5
"""The mean result of the baseline."""

FAILED = START + 1.0
"""The result of a run that failed, in the noise "failing": one run in ten of every arm but the baseline."""

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


def skewed_over_quiet(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Exponential in every arm but the baseline, whose own SD is a tenth of theirs."""
    values = skewed(rng, shape)
    values[0] /= 10
    return values


def noisy_baseline(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Normal, with four times the SD in the baseline."""
    values = rng.standard_normal(shape)
    values[0] *= 4
    return values


def noisy_arm(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Normal, with four times the SD in the first arm after the baseline."""
    values = rng.standard_normal(shape)
    values[1] *= 4
    return values


def tied(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Normal, rounded to whole SDs, as results with few decimals are."""
    return np.round(rng.standard_normal(shape))


def failing(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Normal, but one run in ten of every arm but the baseline ends far off, at `FAILED`."""
    values = rng.standard_normal(shape)
    fails = rng.random(shape) < 0.1
    fails[0] = False
    return np.where(fails, (FAILED - START) / SD, values)


NOISES: dict[str, Noise] = {
    "normal": normal,
    "heavy-tailed": heavy,
    "skewed": skewed,
    "skewed over quiet": skewed_over_quiet,
    "noisy baseline": noisy_baseline,
    "one noisy arm": noisy_arm,
    "tied": tied,
    "failing": failing,
}


@dataclass(frozen=True)
class Rates:
    """What happened in simulated comparisons.

    Fractions of comparisons: `false`, any arm without a difference was called better or worse; `false_equivalent`, any arm
    whose difference is at least the margin was called equivalent. Fractions of claims: `covered`, not missed by their
    interval (a claim with a failed run has none), `shown` to differ (of the arms that do), `equivalent`, and `no_verdict`.
    `pairs` is the mean number of pairs per claim.
    """

    draws: int
    false: float
    false_equivalent: float
    covered: float
    shown: float
    equivalent: float
    no_verdict: float
    pairs: float


def simulate(
    rules: Rules,
    arms: int = 1,
    truth: float | Sequence[float] = 0.0,
    noise: str = "normal",
    draws: int = 400,
    seed: int = 0,
    seeds: int | None = None,
) -> Rates:
    """Simulate comparisons of `arms` arms whose true differences from the baseline are `truth`: one for all, or one each.

    `seeds` is the number of seeds if the rules plan no looks.
    """
    most = rules.looks[-1] if rules.looks else seeds or 8
    truths = np.broadcast_to(np.asarray(truth, dtype=float), (arms,))
    rng = np.random.default_rng([seed, arms, draws, *(rules.looks or (most,))])
    claims = [Claim(f"arm {number}", "baseline") for number in range(1, arms + 1)]
    names = ("baseline", *(claim.arm for claim in claims))
    any_false = any_equivalent = missed = shown = equivalent = none = pairs = 0
    for _ in range(draws):
        own = NOISES[noise](rng, (arms + 1, most))
        values = START + SHARED * rng.standard_normal(most) + SD * own
        values[1:] += truths[:, None]
        effects = rules.judge(
            {name: dict(enumerate(row.tolist())) for name, row in zip(names, values, strict=True)}, claims
        )
        wrong = [False, False]
        for effect, true in zip(effects, truths, strict=True):
            differs = effect.verdict in ("better", "worse")
            wrong[0] |= differs and (not true or (effect.verdict == "better") != (true < 0))
            wrong[1] |= effect.verdict == "equivalent" and abs(true) >= rules.margin
            shown += differs and bool(true)
            equivalent += effect.verdict == "equivalent"
            none += effect.verdict is None
            pairs += effect.n
            if effect.low is not None and effect.high is not None:
                missed += not effect.low <= true <= effect.high
        any_false, any_equivalent = any_false + wrong[0], any_equivalent + wrong[1]
    total, real = draws * arms, draws * int(np.count_nonzero(truths))
    return Rates(
        draws=draws,
        false=any_false / draws,
        false_equivalent=any_equivalent / draws,
        covered=1 - missed / total,
        shown=shown / max(1, real),
        equivalent=equivalent / total,
        no_verdict=none / total,
        pairs=pairs / total,
    )


def at_most(rate: float, draws: int, chance: float = 1e-5) -> float:
    """The fraction that `draws` simulations exceed with probability `chance` if the true rate is `rate`."""
    return float(stats.binom.isf(chance, draws, rate)) / draws


def at_least(rate: float, draws: int, chance: float = 1e-5) -> float:
    return float(stats.binom.ppf(chance, draws, rate)) / draws


def with_section(page: str, section: str, following: str) -> str:
    """The page with the section before the heading `following`, in place of an earlier one of the same title."""
    before, after = page.split(f"{following}\n")
    title = section.partition("\n")[0]
    return f"{before.split(title)[0]}{section}{following}\n{after}"

"""The error of "equivalent" by two one-sided tests at alpha, simulated without the functions that judge.

    python tests/equivalence_error.py [DRAWS]

prints the tables of docs/statistics.md, in a few minutes with 20000. The levels of looks are simulated as well.
"""

import math
import sys
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from scipy import special, stats

ALPHA = 0.05
LOOKS = ((16,), (4, 8, 16))
CLAIMS = (1, 3, 10)
MARGINS = (0.5, 0.6, 0.7, 0.8, 1.0, 1.25, 1.5, 2.0)
"""In SDs of a difference, as are all differences here."""

UNDECIDED, EQUIVALENT, LOWER, HIGHER = range(4)


class Errors(NamedTuple):
    """Fractions of comparisons with a false verdict."""

    equivalent: float
    """An arm that differs by the margin is called equivalent."""
    different: float
    """An equal arm is called better or worse, or an arm is called the wrong one of the two."""
    either: float


def truths(k: int, margin: float) -> Mapping[str, tuple[float, ...]]:
    """True differences with large errors: at the margin on either side, none, or far beyond it."""
    edge = tuple(-margin if index % 2 else margin for index in range(k))
    found = {"all at the margin": edge}
    if k > 1:
        half, far = k // 2 + 1, 10.0
        found |= {
            "all but one at the margin, one equal": (*edge[:-1], 0.0),
            "half at the margin, half equal": (*edge[:half], *[0.0] * (k - half)),
            "one at the margin, the others equal": (margin, *[0.0] * (k - 1)),
            "one at the margin, the others far off": (margin, *[far] * (k - 1)),
            "one at the margin, one equal, the others far off": (margin, 0.0, *[far] * (k - 2)),
        }
    return found


@lru_cache(maxsize=1)
def null_p(looks: tuple[int, ...], draws: int = 1_000_000) -> np.ndarray:
    """Two-sided p-values of equal arms at each look, (looks, draws)."""
    rng = np.random.default_rng(1)
    total, squares, found, n = np.zeros(draws), np.zeros(draws), [], 0
    for look in looks:
        for _ in range(look - n):
            x = rng.standard_normal(draws)
            total, squares = total + x, squares + x * x
        n = look
        error = np.sqrt((squares - total**2 / n) / (n - 1) / n)
        found.append(2 * special.stdtr(n - 1, -np.abs(total / n) / error))
    return np.array(found)


@lru_cache(maxsize=256)
def look_levels(looks: tuple[int, ...], level: float) -> tuple[float, ...]:
    """The two-sided level of each look: after n of N pairs, n / N of `level` has been spent."""
    if len(looks) == 1:
        return (level,)
    p, levels, spent = null_p(looks), [], 0
    is_open = np.ones(p.shape[1], bool)
    for row, n in zip(p, looks, strict=True):
        wanted = round(level * n / looks[-1] * p.shape[1])
        levels.append(float(np.partition(row[is_open], wanted - spent)[wanted - spent]))
        is_open &= row >= levels[-1]
        spent = wanted
    return tuple(levels)


def holm(passed: np.ndarray) -> np.ndarray:
    """Which hypotheses Holm's method rejects, if their p-values are below alpha / `passed`, (comparisons, claims)."""
    k = passed.shape[1]
    order = np.argsort(-passed, axis=1, kind="stable")
    step_down = np.logical_and.accumulate(np.take_along_axis(passed, order, 1) >= k - np.arange(k), axis=1)
    rejected = np.zeros_like(step_down)
    np.put_along_axis(rejected, order, step_down, 1)
    return rejected


def draw(k: int, draws: int, seed: int) -> np.ndarray:
    """Differences of k equally noisy arms from one baseline, SD 1, (draws, k, 16)."""
    rng = np.random.default_rng([seed, k, draws])
    return (rng.standard_normal((draws, k, 16)) + rng.standard_normal((draws, 1, 16))) / math.sqrt(2)


def judge(
    noise: np.ndarray, truth: tuple[float, ...], margin: float, looks: tuple[int, ...], share: float, known: bool
) -> np.ndarray:
    """The verdicts, (comparisons, claims); each one-sided test of equivalence is at a level of `share` alpha."""
    draws, k, _ = noise.shape
    alphas = ALPHA / np.arange(1, k + 1)
    levels, levels_equivalent = (
        np.array([look_levels(looks, float(level)) for level in sides]) for sides in (alphas, 2 * share * alphas)
    )
    different, within = np.zeros((draws, k), int), np.zeros((draws, k), int)
    sign, verdicts = np.zeros((draws, k)), np.full((draws, k), UNDECIDED)
    for look, n in enumerate(looks):
        x = noise[..., :n]
        mean = x.mean(-1) + np.array(truth)
        error = np.full(mean.shape, 1 / math.sqrt(n)) if known else x.std(-1, ddof=1) / math.sqrt(n)

        def count(statistic: np.ndarray, levels: np.ndarray, at: tuple[int, int] = (look, n)) -> np.ndarray:
            critical = -(special.ndtri(levels / 2) if known else special.stdtrit(at[1] - 1, levels / 2))
            return np.asarray((statistic[..., None] >= critical[:, at[0]]).sum(-1))

        is_open = verdicts == UNDECIDED
        different = np.where(is_open, count(np.abs(mean) / error, levels), different)
        within = np.where(is_open, count((margin - np.abs(mean)) / error, levels_equivalent), within)
        sign = np.where(is_open, mean, sign)
        verdicts = np.where(holm(different), np.where(sign < 0, LOWER, HIGHER), UNDECIDED)
        verdicts = np.where(holm(within), EQUIVALENT, verdicts)
    return verdicts


def errors(verdicts: np.ndarray, truth: tuple[float, ...], margin: float) -> Errors:
    true = np.array(truth)
    equivalent = (verdicts == EQUIVALENT) & (np.abs(true) >= margin)
    different = ((verdicts == LOWER) & (true >= 0)) | ((verdicts == HIGHER) & (true <= 0))
    return Errors(*(float(wrong.any(1).mean()) for wrong in (equivalent, different, equivalent | different)))


def power(seeds: int, margin: float, share: float) -> float:
    """The probability that an equal arm, the only one, is called equivalent: over the distribution of the SD, exactly."""
    quantiles = (np.arange(20_000) + 0.5) / 20_000
    sd = np.sqrt(stats.chi2.ppf(quantiles, seeds - 1) / (seeds - 1))
    room = margin * math.sqrt(seeds) - stats.t.ppf(1 - share * ALPHA, seeds - 1) * sd
    return float(np.maximum(0, 2 * stats.norm.cdf(room) - 1).mean())


def fewest_seeds(margin: float, share: float) -> int:
    return next(n for n in range(2, 1000) if power(n, margin, share) >= 0.8)


def rows(draws: int) -> Iterator[str]:
    """For each set of true differences, the largest errors over all margins, with levels of alpha / 2 and of alpha."""
    for known in (False, True):
        for looks in LOOKS:
            for k in CLAIMS:
                largest: dict[tuple[str, float], Errors] = {}
                noise = draw(k, draws, len(looks))
                for margin in MARGINS:
                    for name, truth in truths(k, margin).items():
                        for share in (0.5, 1.0):
                            found = errors(judge(noise, truth, margin, looks, share, known), truth, margin)
                            before = largest.get((name, share), Errors(0, 0, 0))
                            largest[name, share] = Errors(*map(max, zip(found, before, strict=True)))
                for name in truths(k, 1.0):
                    cells = [f"{100 * each:.2f}%" for share in (0.5, 1.0) for each in largest[name, share]]
                    sd = "known" if known else "estimated"
                    yield f"| {', '.join(map(str, looks))} | {k} | {name} | {sd} | {' | '.join(cells)} |"


def main(draws: int) -> None:
    for margin in (0.5, 1.0):
        print(f"margin {margin:g}: {fewest_seeds(margin, 0.5)} seeds, {fewest_seeds(margin, 1.0)} at alpha")
    for row in rows(draws):
        print(row, flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20_000)

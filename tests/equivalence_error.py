"""The section of docs/statistics.md on the level of equivalence, simulated without the functions that judge.

python tests/equivalence_error.py [DRAWS]    replace the section; a minute with 20000
"""

import math
import sys
from collections.abc import Iterator
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy import special, stats

from simulations import with_section

PAGE = Path("docs/statistics.md")
NEXT = "## Compute saved"
"""The heading after the section."""

TITLE = "## The level of equivalence"

TEXT = """{title}

*Equivalent* follows from two one-sided tests: the difference is above minus the margin, and it is below the margin. Of one
claim only one kind of verdict can be false: *better* or *worse* if the arms are equal, *equivalent* if they differ by the
margin or more. So with one claim each of the two tests is at 5%, and the 90% interval lies within the margin. Of several
claims some can be false in the first way and others in the second, which adds up, so there each test is at 2.5% before
Holm's adjustment, and the 95% interval lies within the margin. Methods 1 and 2 test one claim at 2.5%, too.

Fewest seeds that call two equal arms equivalent with a probability of 80%, judged once:

| margin, in SDs of a difference | tests at 2.5% | tests at 5% |
|---:|---:|---:|
{seeds}

The largest rates of false verdicts over margins of {first:g} to {last:g} SDs of a difference and up to six sets of arms
(equal, at either margin, or far beyond it), {draws:,} comparisons of each: `python tests/equivalence_error.py {draws}`.
*At the margin* is the fraction of comparisons in which an arm that differs by the margin is called equivalent, *any* that
with any false verdict. The levels of the rules are in bold.

| looks (seeds) | arms | SD | at the margin, tests at 2.5% | any | at the margin, tests at 5% | any |
|---|---:|---|---:|---:|---:|---:|
{rows}

Each kind of false verdict is limited to 5% for any number of arms. Both together exceed 5% with several arms and a known SD
(`--known-sd`), as they did before.

"""

ALPHA = 0.05
LOOKS = ((16,), (4, 8, 16))
CLAIMS = (1, 3, 10)
MARGINS = (0.5, 0.6, 0.7, 0.8, 1.0, 1.25, 1.5, 2.0)
"""In SDs of a difference, as are all differences here."""
SHARES = (0.5, 1.0)
"""Of alpha, for each of the two one-sided tests."""

UNDECIDED, EQUIVALENT, LOWER, HIGHER = range(4)


class Errors(NamedTuple):
    """Fractions of comparisons with a false verdict."""

    equivalent: float
    """An arm that differs by the margin is called equivalent."""
    either: float
    """That, or an equal arm is called better or worse, or an arm the wrong one of the two."""


def truths(k: int, margin: float) -> Iterator[tuple[float, ...]]:
    """True differences with large errors: at the margin on either side, none, or far beyond it."""
    edge = tuple(-margin if index % 2 else margin for index in range(k))
    yield edge
    if k > 1:
        half, far = k // 2 + 1, 10.0
        yield (*edge[:-1], 0.0)
        yield (*edge[:half], *[0.0] * (k - half))
        yield (margin, *[0.0] * (k - 1))
        yield (margin, *[far] * (k - 1))
        yield (margin, 0.0, *[far] * (k - 2))


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
    return Errors(*(float(wrong.any(1).mean()) for wrong in (equivalent, equivalent | different)))


def power(seeds: int, margin: float, share: float) -> float:
    """The probability that an equal arm, the only one, is called equivalent: over the distribution of the SD, exactly."""
    quantiles = (np.arange(20_000) + 0.5) / 20_000
    sd = np.sqrt(stats.chi2.ppf(quantiles, seeds - 1) / (seeds - 1))
    room = margin * math.sqrt(seeds) - stats.t.ppf(1 - share * ALPHA, seeds - 1) * sd
    return float(np.maximum(0, 2 * stats.norm.cdf(room) - 1).mean())


def fewest_seeds(margin: float, share: float) -> int:
    return next(n for n in range(2, 1000) if power(n, margin, share) >= 0.8)


def row(looks: tuple[int, ...], k: int, known: bool, draws: int) -> str:
    """The largest errors over all margins and true differences, with one-sided tests at alpha / 2 and at alpha."""
    noise, cells = draw(k, draws, len(looks)), list[str]()
    for share in SHARES:
        found = [
            errors(judge(noise, truth, margin, looks, share, known), truth, margin)
            for margin in MARGINS
            for truth in truths(k, margin)
        ]
        mark = "**" if share == (1.0 if k == 1 else 0.5) else ""
        cells += [f"{mark}{100 * max(each):.2f}%{mark}" for each in zip(*found, strict=True)]
    return f"| {', '.join(map(str, looks))} | {k} | {'known' if known else 'estimated'} | {' | '.join(cells)} |"


def section(draws: int) -> str:
    seeds = [f"| {at:g} | {' | '.join(str(fewest_seeds(at, share)) for share in SHARES)} |" for at in (0.5, 0.75, 1.0)]
    rows = [row(looks, k, known, draws) for known, looks, k in product((False, True), LOOKS, CLAIMS)]
    values = {"first": MARGINS[0], "last": MARGINS[-1], "draws": draws, "seeds": "\n".join(seeds)}
    return TEXT.format(title=TITLE, rows="\n".join(rows), **values)


if __name__ == "__main__":
    draws = int(sys.argv[1]) if len(sys.argv) > 1 else 20_000
    PAGE.write_text(with_section(PAGE.read_text(encoding="utf-8"), section(draws), NEXT), encoding="utf-8")

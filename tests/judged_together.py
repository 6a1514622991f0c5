"""Two sections of docs/statistics.md: intervals of several claims together, and values that are judged again as they grow.

    python tests/judged_together.py [DRAWS]    replace the sections; half a minute with 20000

Nothing here shares a function with the code that judges.
"""

import sys
from pathlib import Path

import numpy as np
from scipy import stats

from simulations import with_section

PAGE = Path("docs/statistics.md")
NEXT = "## Conclusions"
"""The heading after the sections."""

TITLE = "## Intervals of several arms together"

ALPHA = 0.05

TEXT = """{title}

The confidence of an interval is that of one claim: it is the interval of the test that its verdict follows from, and Holm's
method tests the claims at unequal levels. So all intervals of a comparison *together* hold the true differences less often
than one does. `python tests/judged_together.py {draws}` simulates {draws:,} comparisons with normal noise, judged once. A
real arm differs by 3 SDs of a difference; the margin is a hundredth of an SD, or 3 SDs.

| seeds | arms | of which real | margin | together | one |
|---:|---:|---:|---:|---:|---:|
{intervals}

## Values that are judged again as they grow

`partwise verdict` judges what a file has. If you add seeds to it and judge it again until there is a difference, chance gets
another try each time. Of {draws:,} files without a difference, at a margin of 0, this is the share with an arm called
better or worse at any of the sizes, and at the first one:

| judged at seeds | arms | false at any size | at the first |
|---|---:|---:|---:|
{growing}

Judge once, and give `--judged N`, the number of seeds of that verdict, when seeds are added: the later ones are exploratory.
Or plan the looks before the first run (`partwise compare --looks 4,8,16`), which keeps 5% over all of them.

"""


def differences(rng: np.random.Generator, draws: int, truths: np.ndarray, seeds: int) -> np.ndarray:
    """Paired differences of arms from one baseline, with an SD of 1 and a correlation of 1/2: (draws, arms, seeds)."""
    baseline = rng.standard_normal((draws, 1, seeds))
    return (rng.standard_normal((draws, len(truths), seeds)) + baseline) / np.sqrt(2) + truths[:, None]


def estimates(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Means and their standard errors."""
    return x.mean(-1), x.std(-1, ddof=1) / np.sqrt(x.shape[-1])


def holm(p: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Which hypotheses of each row Holm's method rejects, and the level at which it tests each."""
    k = p.shape[1]
    ranks = p.argsort(axis=1).argsort(axis=1)
    passed = np.sort(p, axis=1) <= ALPHA / (k - np.arange(k))
    rejected = np.cumprod(passed, axis=1).sum(axis=1)[:, None]
    return ranks < rejected, ALPHA / (k - np.minimum(ranks, np.minimum(rejected, k - 1)))


def coverage(seeds: int, truths: np.ndarray, margin: float, draws: int) -> tuple[float, float]:
    """How often all intervals hold the true differences, and how often a single one does."""
    mean, error = estimates(differences(np.random.default_rng([seeds, len(truths)]), draws, truths, seeds))
    different, level = holm(2 * stats.t.sf(np.abs(mean) / error, seeds - 1))
    inside = np.minimum(1, 2 * stats.t.sf((margin - np.abs(mean)) / error, seeds - 1))
    equivalent, level_equivalent = holm(inside)
    undecided = np.minimum(level, level_equivalent)
    level = np.where(equivalent, level_equivalent, np.where(different, level, undecided))
    held = np.abs(mean - truths) <= stats.t.isf(level / 2, seeds - 1) * error
    return float(held.all(axis=1).mean()), float(held.mean())


def interval_rows(draws: int) -> list[str]:
    rows = []
    for seeds in (8, 16):
        for arms in (3, 10):
            for real, margin in ((0, 0.01), (arms // 2, 0.01), (arms, 0.01), (0, 3.0)):
                truths = np.where(np.arange(arms) < real, 3.0, 0.0)
                rates = (f"{100 * rate:.1f}%" for rate in coverage(seeds, truths, margin, draws))
                rows.append(f"| {seeds} | {arms} | {real} | {margin:g} | {' | '.join(rates)} |")
    return rows


SIZES = {
    "4, 8, 16": (4, 8, 16),
    "4, 8, 16, 32": (4, 8, 16, 32),
    "5, 10, 15, 20": (5, 10, 15, 20),
    "every number from 4 to 16": tuple(range(4, 17)),
}


def false_while_growing(sizes: tuple[int, ...], arms: int, draws: int) -> tuple[float, float]:
    """How often any verdict of files without a difference is better or worse, at any of the sizes and at the first one."""
    x = differences(np.random.default_rng([*sizes, arms]), draws, np.zeros(arms), sizes[-1])
    false = []
    for n in sizes:
        mean, error = estimates(x[..., :n])
        false.append(holm(2 * stats.t.sf(np.abs(mean) / error, n - 1))[0].any(axis=1))
    return float(np.any(false, axis=0).mean()), float(false[0].mean())


def growing_rows(draws: int) -> list[str]:
    rows = []
    for name, sizes in SIZES.items():
        for arms in (1, 3, 10):
            rates = (f"{100 * rate:.1f}%" for rate in false_while_growing(sizes, arms, draws))
            rows.append(f"| {name} | {arms} | {' | '.join(rates)} |")
    return rows


def section(draws: int) -> str:
    rows = "\n".join(interval_rows(draws)), "\n".join(growing_rows(draws))
    return TEXT.format(title=TITLE, draws=draws, intervals=rows[0], growing=rows[1])


if __name__ == "__main__":
    draws = int(sys.argv[1]) if len(sys.argv) > 1 else 20_000
    page = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(with_section(page, section(draws), NEXT), encoding="utf-8")

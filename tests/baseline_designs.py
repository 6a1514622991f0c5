"""The section of docs/statistics.md on designs with more runs of the baseline, simulated without a function of the product.

python tests/baseline_designs.py [DRAWS]    replace the section; two minutes with 10000

Arms `a` are (draws, arms, n), the baseline `b` is (draws, m) with m >= n, and its first n runs have the arms' seeds.
"""

import functools
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
from scipy import optimize, special, stats

from simulations import with_section

PAGE = Path("docs/statistics.md")
LOOKS = (4, 8, 16)
SEEDS = (4, 6, 8, 12, 16)
FACTORS = {1: 2, 3: 2, 10: 3, 32: 6}
"""Arms -> baseline runs per run of an arm: about the root of the number of arms, at least 2."""

CORRELATIONS = (0.0, 0.1, 0.5, 0.9)
MARGIN = 1.5
"""In SDs of a run."""

NEXT = "## Power"
"""The heading after the section."""

TITLE = "## More runs of the baseline"

TEXT = """{title}

The runs of the baseline serve every arm, so more of them cost little. `--design` fixes how they are used: *paired*
differences of equal seeds; *unpaired* means, with Welch's standard error; or *covariate*, the regression of an arm on the
baseline's run of the same seed, evaluated at the mean of all baseline runs. We simulate normal runs whose pairs correlate
with r = {correlations}, {draws:,} comparisons of each kind: `python tests/baseline_designs.py {draws}`. With k arms and n
seeds, the baseline has f n runs. All rates are family-wise after Holm, of equal arms called different / of arms that differ
by the margin of {margin:g} SDs called equivalent, at the worst r; the half-width of 5% is {error:.1f}%.

| design | arms | f | {seeds} seeds | looks at {looks} |
|---|---:|---:|{rules}
{rates}

The fewest runs in total that show a difference of 1 SD of a run with 80% power, all seeds judged once, of at least 8 seeds:

| arms | r | paired | unpaired | f | covariate | f |
|---:|---:|---:|---:|---:|---:|---:|
{runs}

"""

Estimate = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Differences, standard errors, degrees of freedom: each (draws, arms)."""


def paired(a: np.ndarray, b: np.ndarray) -> Estimate:
    n = a.shape[2]
    d = a - b[:, None, :n]
    return d.mean(2), d.std(2, ddof=1) / np.sqrt(n), np.full(d.shape[:2], n - 1.0)


def unpaired(a: np.ndarray, b: np.ndarray) -> Estimate:
    n, m = a.shape[2], b.shape[1]
    parts = a.var(2, ddof=1) / n, (b.var(1, ddof=1) / m)[:, None] + 0 * a[..., 0]
    return a.mean(2) - b.mean(1)[:, None], np.sqrt(sum(parts)), freedom(parts, (n - 1, m - 1))


def covariate(a: np.ndarray, b: np.ndarray) -> Estimate:
    """The line through the pairs, at the mean of all baseline runs, less that mean.

    Given the baseline, the line has the variance of a regression; the mean of the baseline adds its own with 1 - slope.
    """
    n, m = a.shape[2], b.shape[1]
    x = b[:, None, :n]
    x0, y0 = x.mean(2), a.mean(2)
    sxx = ((x - x0[..., None]) ** 2).sum(2)
    slope = ((x - x0[..., None]) * a).sum(2) / sxx
    residual = ((a - y0[..., None] - slope[..., None] * (x - x0[..., None])) ** 2).sum(2) / (n - 2)
    away = b.mean(1)[:, None] - x0
    parts = residual * (1 / n + away**2 / sxx), (1 - slope) ** 2 * b.var(1, ddof=1)[:, None] / m
    return y0 + slope * away - b.mean(1)[:, None], np.sqrt(sum(parts)), freedom(parts, (n - 2, m - 1))


def freedom(parts: tuple[np.ndarray, np.ndarray], df: tuple[int, int]) -> np.ndarray:
    """The harmonic mean of Satterthwaite's degrees of freedom and the fewest; the fewest if they are below 4."""
    fewest, total = min(df), sum(parts)
    inverse = sum((part / total) ** 2 / each for part, each in zip(parts, df, strict=True))
    return np.full(total.shape, float(fewest)) if fewest < 4 else 2 / (inverse + 1 / fewest)


DESIGNS: dict[str, Callable[[np.ndarray, np.ndarray], Estimate]] = {
    "paired": paired,
    "unpaired": unpaired,
    "covariate": covariate,
}


def runs_of(rng: np.random.Generator, draws: int, arms: int, n: int, m: int, r: float) -> tuple[np.ndarray, np.ndarray]:
    """Runs with an SD of 1; pairs correlate with r."""
    shared = np.sqrt(r) * rng.standard_normal((draws, m))
    a = np.sqrt(1 - r) * rng.standard_normal((draws, arms, n)) + shared[:, None, :n]
    return a, np.sqrt(1 - r) * rng.standard_normal((draws, m)) + shared


@functools.cache
def levels_of(looks: tuple[int, ...], alpha: float) -> list[float]:
    """Two-sided levels of the looks that spend alpha in proportion to the seeds, by Armitage's recursion."""
    levels, grid, weights, at = [], np.zeros(1), np.ones(1), 0

    def left(limit: float, n: int) -> float:
        """The probability to be within the limit now, having been within all before."""
        step = np.sqrt(n - at)
        inside = stats.norm.cdf((limit - grid) / step) - stats.norm.cdf((-limit - grid) / step)
        return float((weights * inside).sum())

    for n in looks:
        kept = 1 - alpha * n / looks[-1]
        limit = optimize.brentq(lambda x, n=n, kept=kept: left(x, n) - kept, 0.1, 50.0, xtol=1e-12)
        levels.append(float(2 * stats.norm.sf(limit / np.sqrt(n))))
        points, spacing = np.linspace(-limit, limit, 2001, retstep=True)
        density = stats.norm.pdf(points[:, None], grid, np.sqrt(n - at)) @ weights
        density[[0, -1]] /= 2
        grid, weights, at = points, density * spacing, n
    return levels


def p_value(estimate: np.ndarray, error: np.ndarray, df: np.ndarray) -> np.ndarray:
    """Two-sided, of an estimate of 0."""
    return 2 * special.stdtr(df, -np.abs(estimate) / error)


def false_rates(design: str, a: np.ndarray, b: np.ndarray, looks: tuple[int, ...], factor: int) -> np.ndarray:
    """The family-wise rates of (equal arms called different, arms at the margin called equivalent)."""
    found = np.zeros((2, len(a)), bool)
    for n, level in zip(looks, levels_of(looks, 0.05 / a.shape[1]), strict=True):
        d, error, df = DESIGNS[design](a[..., :n], b[:, : factor * n])
        room = MARGIN - np.abs(d + MARGIN)
        found[0] |= (p_value(d, error, df) <= level).any(1)
        found[1] |= ((room > 0) & (p_value(room, error, df) <= level)).any(1)
    return found.mean(1)


def row(design: str, arms: int, draws: int) -> str:
    factor = 1 if design == "paired" else FACTORS[arms]
    cells = []
    for looks in (*((n,) for n in SEEDS), LOOKS):
        worst = np.zeros(2)
        for r in CORRELATIONS:
            rng = np.random.default_rng([arms, looks[-1], int(10 * r)])
            a, b = runs_of(rng, draws, arms, looks[-1], factor * looks[-1], r)
            worst = np.maximum(worst, false_rates(design, a, b, looks, factor))
        cells.append(" / ".join(f"{100 * rate:.1f}" for rate in worst))
    print(design, arms, factor, *cells, sep=" | ", flush=True)
    return f"| {design} | {arms} | {factor} | {' | '.join(cells)} |"


def fewest_runs(design: str, arms: int, factor: int, r: float, draws: int) -> int:
    """Arms and baseline together, for 80% power of one claim at the level that Holm's method may test it at."""

    def shown(n: int) -> bool:
        a, b = runs_of(np.random.default_rng(n), draws, 1, n, factor * n, r)
        d, error, df = DESIGNS[design](a + 1.0, b)
        return float(np.mean((d > 0) & (p_value(d, error, df) <= 0.05 / arms))) >= 0.8

    low, high = 7, 64
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if shown(middle) else (middle, high)
    return high * (arms + factor)


def runs_row(arms: int, r: float, draws: int) -> str:
    cells: list[object] = [arms, f"{r:g}", fewest_runs("paired", arms, 1, r, draws)]
    for design in ("unpaired", "covariate"):
        factors = range(1 + (design == "covariate"), FACTORS[arms] + 2)
        cells += min((fewest_runs(design, arms, factor, r, draws), factor) for factor in factors)
    print(*cells, sep=" | ", flush=True)
    return f"| {' | '.join(map(str, cells))} |"


def section(draws: int) -> str:
    rates = [row(design, arms, draws) for design in DESIGNS for arms in FACTORS]
    runs = [runs_row(arms, r, draws) for arms in FACTORS for r in CORRELATIONS]
    return TEXT.format(
        title=TITLE,
        draws=draws,
        correlations=", ".join(f"{r:g}" for r in CORRELATIONS),
        margin=MARGIN,
        error=196 * np.sqrt(0.05 * 0.95 / draws),
        seeds=" | ".join(map(str, SEEDS)),
        looks=", ".join(map(str, LOOKS)),
        rules="---:|" * (len(SEEDS) + 1),
        rates="\n".join(rates),
        runs="\n".join(runs),
    )


if __name__ == "__main__":
    draws = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    PAGE.write_text(with_section(PAGE.read_text(encoding="utf-8"), section(draws), NEXT), encoding="utf-8")

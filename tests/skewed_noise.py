"""The section of docs/statistics.md on skewed noise at a margin near 0, simulated without the functions that judge.

python tests/skewed_noise.py [DRAWS]    replace the section; a minute with 20000
"""

import sys
from pathlib import Path

import numpy as np
from scipy import stats

from partwise.comparison.stats.group_sequential import nominal_levels
from simulations import with_section

PAGE = Path("docs/statistics.md")
LOOKS = (4, 8, 16)
NEXT = "## More runs of the baseline"
"""The heading after the section."""

TITLE = "## Skewed noise at a margin near 0"

TEXT = """{title}

The rows *skewed over quiet* above have a margin of one SD, so most claims end as equivalent. With a margin near 0 the false
claims are these, of arms with skewed noise over a baseline with a tenth or a quarter of their SD, without a shared
seed effect unless it is named, over {draws:,} comparisons: `python tests/skewed_noise.py {draws}`. **Warned** is the share of
the false claims for which a report warns that the arms vary unequally (Pitman's test of the SDs of pairs at 5%).

| noise | arms | false claims | first at 4, 8, 16 seeds | warned | of those at 4, 8, 16 seeds |
|---|---:|---:|---:|---:|---:|
{rows}

No test of the mean of skewed values is exact. Johnson's t (1978) corrects t for the skewness of the differences. As a second
condition of every claim (*always*), or of those whose spreads differ by the test above (*if unequal*), it has these false
claims, of exponential arms over a tenth, and this power under normal noise where the t test has 80%. All seeds are judged
once:

| seeds | arms | false by t | always | if unequal | power, equal noise: always | if unequal | over a tenth: if unequal |
|---:|---:|---:|---:|---:|---:|---:|---:|
{tried}

With equal noise the condition *if unequal* would lose a point of power, but up to 23 points where a normal arm has a quiet
baseline, and a shared seed effect hides unequal spreads from it. So the rule is the t test: replicate a claim with unequal
spreads on fresh seeds.

"""


def exponential(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return rng.standard_exponential(shape) - 1


def lognormal(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return (np.exp(rng.standard_normal(shape)) - np.exp(0.5)) / np.sqrt((np.e - 1) * np.e)


def t_and_p(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    n = x.shape[-1]
    t = x.mean(-1) / x.std(-1, ddof=1) * np.sqrt(n)
    return t, 2 * stats.t.sf(np.abs(t), n - 1)


def johnson_p(x: np.ndarray) -> np.ndarray:
    """The larger p of the t test and of Johnson's."""
    n, (t, p) = x.shape[-1], t_and_p(x)
    corrected = t + stats.skew(x, axis=-1, bias=False) * (1 + 2 * t * t) / (6 * np.sqrt(n))
    return np.maximum(p, 2 * stats.t.sf(np.abs(corrected), n - 1))


def unequal_spreads_p(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Pitman's: that of no correlation between the differences and the sums of pairs."""
    d, s = a - b, a + b
    d, s, n = d - d.mean(-1, keepdims=True), s - s.mean(-1, keepdims=True), a.shape[-1]
    r = (d * s).sum(-1) / np.sqrt((d * d).sum(-1) * (s * s).sum(-1))
    return 2 * stats.t.sf(np.abs(r) * np.sqrt((n - 2) / (1 - r * r)), n - 2)


def row(name: str, noise: str, arms: int, quiet: float, shared: float, draws: int) -> str:
    rng = np.random.default_rng([arms, draws])
    seeds = shared * rng.standard_normal((draws, 1, 16))
    own = (exponential if noise == "exponential" else lognormal)(rng, (draws, arms, 16))
    a, b = own + seeds, quiet * rng.standard_normal((draws, 1, 16)) + seeds
    claimed, any_claimed = np.zeros((draws, arms), bool), np.zeros(draws, bool)
    first, found, warned = [], [], []
    for n, level in zip(LOOKS, nominal_levels(LOOKS, 0.05 / arms), strict=True):
        now = (t_and_p(a[..., :n] - b[..., :n])[1] <= level) & ~claimed
        first.append(np.mean(now.any(1) & ~any_claimed))
        found.append(now.sum())
        warned.append((now & (unequal_spreads_p(a[..., :n], b[..., :n]) < 0.05)).sum())
        claimed, any_claimed = claimed | now, any_claimed | now.any(1)
    by_look = ", ".join(f"{100 * rate:.1f}%" for rate in first)
    warned_by_look = ", ".join(f"{100 * w / max(1, f):.0f}%" for w, f in zip(warned, found, strict=True))
    total = f"{100 * sum(warned) / sum(found):.0f}%"
    return f"| {name} | {arms} | {100 * any_claimed.mean():.1f}% | {by_look} | {total} | {warned_by_look} |"


def tried(n: int, arms: int, draws: int) -> str:
    rng, level = np.random.default_rng([n, arms, draws]), 0.05 / arms

    def claimed(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Whether t, Johnson's t, and Johnson's t if the spreads are unequal, claim a difference."""
        p, corrected = t_and_p(a - b)[1], johnson_p(a - b)
        return p <= level, corrected <= level, np.where(unequal_spreads_p(a, b) < 0.05, corrected, p) <= level

    def power(a: np.ndarray, b: np.ndarray) -> list[float]:
        """At a difference where t has 80%."""
        low, high = 0.0, 9.0
        for _ in range(20):
            middle = (low + high) / 2
            low, high = (middle, high) if np.mean(t_and_p(a + middle - b)[1] <= level) < 0.8 else (low, middle)
        return [float(np.mean(each)) for each in claimed(a + high, b)]

    quiet = 0.1 * rng.standard_normal((draws, 1, n))
    rates = [np.mean(each.any(1)) for each in claimed(exponential(rng, (draws, arms, n)), quiet)]
    arm, baseline = rng.standard_normal((2, draws, n))
    rates += [*power(arm, baseline)[1:], power(arm, quiet[:, 0])[2]]
    return f"| {n} | {arms} | {' | '.join(f'{100 * rate:.1f}%' for rate in rates)} |"


def section(draws: int) -> str:
    kinds = (
        ("exponential over a tenth", "exponential", 0.1, 0.0),
        ("lognormal over a tenth", "lognormal", 0.1, 0.0),
        ("exponential over a quarter", "exponential", 0.25, 0.0),
        ("exponential over a tenth, shared seed effect of SD 0.8", "exponential", 0.1, 0.8),
    )
    rows = [row(name, noise, arms, quiet, shared, draws) for name, noise, quiet, shared in kinds for arms in (1, 3, 10)]
    tries = [tried(n, arms, draws) for n in (8, 16) for arms in (1, 3, 10)]
    return TEXT.format(title=TITLE, draws=draws, rows="\n".join(rows), tried="\n".join(tries))


if __name__ == "__main__":
    draws = int(sys.argv[1]) if len(sys.argv) > 1 else 20_000
    PAGE.write_text(with_section(PAGE.read_text(encoding="utf-8"), section(draws), NEXT), encoding="utf-8")

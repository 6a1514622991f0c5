"""Simulate whole searches under `--online`, with code that shares nothing with the instrument: which of the kept are false?

    python tests/online_searches.py [SEARCHES]

A search tries changes one after another, on ten paired seeds each, and keeps those that are better. The level of a test is
that of LORD*, from the published formula. `python tests/online_searches.py 2000` prints the table of docs/searching.md.
"""

import sys
from dataclasses import dataclass

import numpy as np
from scipy import special, stats

SEEDS, ALPHA, EFFECT = 10, 0.05, 2.0
"""An effect is 2 SDs of a paired difference, for better or for worse."""


@dataclass(frozen=True)
class Search:
    """What is tried: how many changes, which fractions help and harm, and in which order."""

    changes: int
    helpful: float
    harmful: float
    order: str = "random"
    shared: bool = False
    """Whether all comparisons have the same runs of the baseline."""


@dataclass(frozen=True)
class Kept:
    """Means over searches."""

    false_rate: float
    """Of false / max(1, kept): the false discovery rate of what is kept."""
    found: float
    """The fraction of helpful changes that are kept."""
    kept: float


def searches(search: Search, rule: str, draws: int, seed: int = 0) -> Kept:
    """`rule`: "better or worse" earns wealth, or only "better"; "one-sided" tests "not better" at the whole level."""
    rng = np.random.default_rng(seed)
    n = search.changes
    helpful, harmful = round(search.helpful * n), round(search.harmful * n)
    effects = np.tile(np.repeat([EFFECT, -EFFECT, 0.0], [harmful, helpful, n - helpful - harmful]), (draws, 1))
    if search.order == "random":
        effects = rng.permuted(effects, axis=1)
    base = rng.standard_normal((draws, 1 if search.shared else n, SEEDS))
    differences = (rng.standard_normal((draws, n, SEEDS)) + base) / np.sqrt(2) + effects[..., None]
    t = differences.mean(axis=2) / (differences.std(axis=2, ddof=1) / np.sqrt(SEEDS))
    p, better = 2 * stats.t.sf(np.abs(t), SEEDS - 1), t < 0
    weights = np.concatenate([[0.0], np.arange(1, n + 1) ** -1.3 / special.zeta(1.3)])
    earned, found_before, kept = np.zeros((draws, n + 1)), np.zeros(draws), np.zeros((draws, n), bool)
    for test in range(1, n + 1):
        level = weights[test] * ALPHA / 2 + earned[:, :test] @ weights[test - np.arange(test)]
        small = p[:, test - 1] <= (2 * level if rule == "one-sided" else level)
        kept[:, test - 1] = small & better[:, test - 1]
        discovered = small if rule == "better or worse" else kept[:, test - 1]
        earned[:, test] = np.where(discovered, np.where(found_before > 0, ALPHA, ALPHA / 2), 0.0)
        found_before += discovered
    false = (kept & (effects >= 0)).sum(axis=1)
    total = kept.sum(axis=1)
    found = (kept & (effects < 0)).sum() / max(1, draws * helpful)
    return Kept(float(np.mean(false / np.maximum(total, 1))), float(found), float(total.mean()))


RULES = ("better or worse", "better", "one-sided")


def table(draws: int) -> list[str]:
    lines = [
        "| changes | of which help | harm | order | baseline | earned by better or worse | by better | found | one-sided |",
        "|---:|---:|---:|---|---|---:|---:|---:|---:|",
    ]
    for shared in (False, True):
        for changes, helpful, harmful, order in (
            (40, 0.1, 0.0, "random"),
            (40, 0.1, 0.45, "random"),
            (100, 0.02, 0.5, "random"),
            (100, 0.02, 0.5, "harmful first"),
            (200, 0.01, 0.5, "random"),
            (200, 0.0, 0.5, "random"),
            (200, 0.0, 0.5, "harmful first"),
            (200, 0.1, 0.5, "random"),
        ):
            search = Search(changes, helpful, harmful, order, shared)
            old, new, one = (searches(search, rule, draws) for rule in RULES)
            rates = [f"{100 * each.false_rate:.1f}%" for each in (old, new, one)]
            rates.insert(2, f"{100 * new.found:.0f}%" if helpful else "-")
            cells = (
                changes,
                f"{100 * helpful:g}%",
                f"{100 * harmful:g}%",
                order,
                "same runs" if shared else "own runs",
                *rates,
            )
            lines.append(f"| {' | '.join(map(str, cells))} |")
    return lines


if __name__ == "__main__":
    print("\n".join(table(int(sys.argv[1]) if len(sys.argv) > 1 else 2000)))

"""Simulate whole searches under `--online`, with code that shares nothing with the instrument: which of the kept are false?

    python tests/online_searches.py [SEARCHES]

A search tries changes one after another, on ten paired seeds each, and keeps those that are better. The level of a test is
that of LORD*, from the published formula. `python tests/online_searches.py 2000` prints the tables of docs/searching.md.
"""

import sys
from dataclasses import dataclass, replace

import numpy as np
from scipy import special, stats

SEEDS, ALPHA, EFFECT = 10, 0.05, 2.0
"""An effect is 2 SDs of a paired difference, for better or for worse."""

HELPFUL, HARMFUL, CRASHING, NOTHING = range(4)

FISHER = np.array(
    [[stats.fisher_exact([[a, SEEDS - a], [b, SEEDS - b]])[1] for b in range(SEEDS + 1)] for a in range(SEEDS + 1)]
)
"""The p of equal failure rates, by the failed runs of the change and of the baseline."""


@dataclass(frozen=True)
class Search:
    """What is tried: how many changes, which fractions help, harm and crash (the others do nothing), and in which order."""

    changes: int
    helpful: float = 0.0
    harmful: float = 0.0
    crashing: float = 0.0
    order: str = "random"
    shared: bool = False
    """Whether all comparisons have the same runs of the baseline."""
    failing: float = 0.0
    """The probability that a run fails, of the baseline and of changes that harm or do nothing; helpful ones never fail."""


@dataclass(frozen=True)
class Kept:
    """Means over searches."""

    false_rate: float
    """Of false / max(1, kept): the false discovery rate of what is kept."""
    found: float
    """The fraction of helpful changes that are kept."""
    kept: float


def tried(search: Search, draws: int, rng: np.random.Generator) -> np.ndarray:
    """The kinds of the changes, in their order: draws x changes. Those that do nothing come last, unless all are mixed."""
    n = search.changes
    counts = {
        kind: round(share * n)
        for kind, share in ((HELPFUL, search.helpful), (HARMFUL, search.harmful), (CRASHING, search.crashing))
    }
    counts[NOTHING] = n - sum(counts.values())
    by_order = {
        "harmful first": (HARMFUL, CRASHING, HELPFUL, NOTHING),
        "helpful first": (HELPFUL, NOTHING, HARMFUL, CRASHING),
    }
    kinds = np.concatenate([np.full(counts[kind], kind) for kind in by_order.get(search.order, tuple(counts))])
    if search.order == "alternating":  # each kind at equal distances
        places = [(i + 0.5) / counts[kind] for kind in counts for i in range(counts[kind])]
        kinds = kinds[np.argsort(places, kind="stable")]
    kinds = np.tile(kinds, (draws, 1))
    return rng.permuted(kinds, axis=1) if search.order == "random" else kinds


def outcomes(search: Search, kinds: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """(two-sided p, better): of the paired t test, or of Fisher's test of the failure rates if any run failed."""
    draws, n = kinds.shape
    effects = np.array([-EFFECT, EFFECT, 0.0, 0.0])[kinds]
    base = rng.standard_normal((draws, 1 if search.shared else n, SEEDS))
    differences = (rng.standard_normal((draws, n, SEEDS)) + base) / np.sqrt(2) + effects[..., None]
    t = differences.mean(axis=2) / (differences.std(axis=2, ddof=1) / np.sqrt(SEEDS))
    failed = rng.binomial(SEEDS, np.array([0.0, search.failing, 1.0, search.failing])[kinds])
    failed_base = np.broadcast_to(rng.binomial(SEEDS, search.failing, base.shape[:2]), failed.shape)
    any_failed = failed + failed_base > 0
    p = np.where(any_failed, FISHER[failed, failed_base], 2 * stats.t.sf(np.abs(t), SEEDS - 1))
    return p, np.where(any_failed, failed < failed_base, t < 0)


def searches(search: Search, rule: str, draws: int, seed: int = 0) -> Kept:
    """`rule`: "better or worse" earns wealth, or only "better"; "one-sided" tests "not better" at the whole level."""
    rng = np.random.default_rng(seed)
    n = search.changes
    kinds = tried(search, draws, rng)
    p, better = outcomes(search, kinds, rng)
    weights = np.concatenate([[0.0], np.arange(1, n + 1) ** -1.3 / special.zeta(1.3)])
    earned, found_before, kept = np.zeros((draws, n + 1)), np.zeros(draws), np.zeros((draws, n), bool)
    for test in range(1, n + 1):
        level = weights[test] * ALPHA / 2 + earned[:, :test] @ weights[test - np.arange(test)]
        small = p[:, test - 1] <= (2 * level if rule == "one-sided" else level)
        kept[:, test - 1] = small & better[:, test - 1]
        discovered = small if rule == "better or worse" else kept[:, test - 1]
        earned[:, test] = np.where(discovered, np.where(found_before > 0, ALPHA, ALPHA / 2), 0.0)
        found_before += discovered
    helps = kinds == HELPFUL
    false, total = (kept & ~helps).sum(axis=1), kept.sum(axis=1)
    found = (kept & helps).sum() / max(1, helps.sum())
    return Kept(float(np.mean(false / np.maximum(total, 1))), float(found), float(total.mean()))


RULES = ("better", "better or worse", "one-sided")

ORDERS = ("random", "harmful first", "helpful first", "alternating")

SEARCHES = (
    Search(40, helpful=0.1),
    Search(40, helpful=0.1, harmful=0.45, crashing=0.1),
    Search(100, helpful=0.02, harmful=0.5),
    Search(200, harmful=0.4, crashing=0.1),
    *(Search(200, helpful=0.1, harmful=0.4, crashing=0.1, order=order) for order in ORDERS),
)


def least_favourable(rule: str, draws: int, failing: float = 0.0) -> Search:
    """The search of 200 changes with the most false keeps, over shares, orders and both kinds of baselines."""
    candidates = [
        Search(200, helpful, harmful, crashing, order, shared, failing)
        for helpful in (0.0, 0.02, 0.05, 0.1, 0.2, 0.4)
        for harmful, crashing in ((0.0, 0.0), (0.1, 0.0), (0.1, 0.1), (0.4, 0.1))
        for order in ORDERS
        for shared in (False, True)
    ]
    return max(candidates, key=lambda search: searches(search, rule, draws, seed=1).false_rate)


def row(search: Search, draws: int) -> str:
    own, shared = (searches(replace(search, shared=each), "better", draws) for each in (False, True))
    worse_earns = searches(search, "better or worse", draws)
    shares = [f"{100 * share:g}%" for share in (search.helpful, search.harmful, search.crashing)]
    rates = [f"{100 * each.false_rate:.1f}%" for each in (own, shared, worse_earns)]
    found = f"{100 * own.found:.0f}%" if search.helpful else "-"
    return f"| {' | '.join((str(search.changes), *shares, search.order, *rates[:2], found, rates[2]))} |"


def table(draws: int) -> list[str]:
    return [
        "| changes | help | harm | crash | order | false | false, same baseline | found | false if worse earned |",
        "|---:|---:|---:|---:|---|---:|---:|---:|---:|",
        *(row(search, draws) for search in (*SEARCHES, least_favourable("better", draws))),
    ]


def failing_baselines(draws: int) -> list[str]:
    lines = ["| runs that fail | false at most | found |", "|---:|---:|---:|"]
    for failing in (0.02, 0.05, 0.1, 0.3, 0.5, 0.7):
        worst = searches(least_favourable("better", draws // 4, failing), "better", draws)
        mixed = searches(Search(200, helpful=0.1, harmful=0.4, crashing=0.1, failing=failing), "better", draws)
        lines.append(f"| {100 * failing:g}% | {100 * worst.false_rate:.1f}% | {100 * mixed.found:.0f}% |")
    return lines


def one_sided(draws: int) -> list[str]:
    """What a test of "not better" at the whole level would find more, and its false keeps in its own worst search."""
    worst = searches(least_favourable("one-sided", draws), "one-sided", draws).false_rate
    lines = [f"One-sided: {100 * worst:.1f}% false at most."]
    for search in SEARCHES:
        if search.helpful:
            now, then = (searches(search, rule, draws) for rule in ("better", "one-sided"))
            lines.append(f"{search}: {100 * now.found:.0f}% found, one-sided {100 * then.found:.0f}%")
    return lines


if __name__ == "__main__":
    draws = int(sys.argv[1]) if len(sys.argv) > 1 else 2000
    print("\n".join([*table(draws), "", *failing_baselines(draws), "", *one_sided(draws)]))

"""Looks at growing data that together err as often as one: group-sequential t tests by alpha spending.

A look at n of the N planned pairs may have spent alpha n / N by then (Lan & DeMets 1983; Kim & DeMets 1987 with rho = 1).
Levels that hold for a normal process reject too often where t tests start at a few pairs, so the process here is that of
t itself. For n values of equal variance without effect let r = sum(x) / sqrt(n sum(x^2)), of which t and its
p-value are functions. The values' direction is uniform on a sphere, so r says nothing of their length, and m further ones
make it

    r' = sqrt(n w / (n + m)) r + sqrt(m (1 - w) / (n + m)) v,   w ~ Beta(n / 2, m / 2),  v^2 ~ Beta(1 / 2, (m - 1) / 2),

which is a Markov chain. It is followed in bins of the two-sided p-value, as Armitage, McPherson & Rowe (1969) followed the
normal one.
"""

import math
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise

import numpy as np
from scipy import special

from partwise.config import ConfigError

LOOKS = (4, 8, 16)
"""Pairs of seeds at which a comparison is judged, unless it says otherwise."""

EDGES = np.concatenate([np.geomspace(1e-9, 0.008, 40), np.linspace(0.01, 1.0, 100)])
"""Upper ends of the bins of a p-value; the first begins at 0."""
INSIDE = np.array([0.2113, 0.7887])  # where in a bin its mass is put: Gauss's two points
SHARES = 40  # of w: Gauss-Jacobi nodes
SMALLEST = 1e-8  # below it, a sequential p-value is proportional to the p-value


def check_looks(looks: Sequence[int]) -> tuple[int, ...]:
    """The looks, ascending. Raises ConfigError for fewer than 2 pairs at a look, repeated or descending looks."""
    looks = tuple(looks)
    if not looks or looks[0] < 2 or any(late <= early for early, late in pairwise(looks)):
        text = ",".join(str(look) for look in looks)
        raise ConfigError(f"looks={text}: give ascending numbers of paired seeds from 2 on, such as 4,8,16")
    if len(looks) > 20 or looks[-1] > 100_000:
        raise ConfigError(f"looks={looks[0]},...,{looks[-1]}: give at most 20 looks, at up to 100000 paired seeds")
    return looks


def spent(looks: Sequence[int], alpha: float = 0.05) -> tuple[float, ...]:
    """What the looks may have spent together, look by look: alpha n / N."""
    return tuple(alpha * look / looks[-1] for look in looks)


@lru_cache(maxsize=4096)
def levels(looks: tuple[int, ...], alpha: float = 0.05) -> tuple[float, ...]:
    """The two-sided p-value up to which each look rejects, so that without effect a look has rejected with probability
    `spent` by then. Raises ConfigError for impossible looks or an alpha outside (0, 1)."""
    check_looks(looks)
    if not 0 < alpha < 1:
        raise ConfigError(f"alpha={alpha:g}: expected an error probability between 0 and 1, such as 0.05")
    found: list[float] = []
    mass = np.diff(EDGES, prepend=0.0)  # of p at the first look: uniform
    for place, budget in enumerate(np.diff((0.0, *spent(looks, alpha)))):
        if place:
            mass = mass @ transition(looks[place - 1], looks[place])
        ends = np.cumsum(mass)
        level = float(np.interp(budget, np.concatenate([[0.0], ends]), np.concatenate([[0.0], EDGES])))
        found.append(level)
        low = np.concatenate([[0.0], EDGES[:-1]])
        mass = mass * np.clip((EDGES - level) / (EDGES - low), 0.0, 1.0)  # what has not been rejected goes on
    return tuple(found)


@lru_cache(maxsize=256)
def transition(n: int, later: int) -> np.ndarray:
    """P(the p-value of `later` values lies in a bin | that of the first `n` lies in a bin): (bins, bins), rows sum to 1."""
    m = later - n
    low = np.concatenate([[0.0], EDGES[:-1]])
    p = low[:, None] + INSIDE * (EDGES - low)[:, None]
    r = cosine(p, n)[..., None, None]
    w, weights = special.roots_jacobi(SHARES, m / 2 - 1, n / 2 - 1)
    w, weights = (w + 1) / 2, weights / weights.sum()
    ends = cosine(EDGES, later)
    middle, width = np.sqrt(n * w / later) * r[..., 0], np.sqrt(m * (1 - w) / later)

    def below(x: np.ndarray) -> np.ndarray:
        """P(r' <= x | r) for each r and each end."""
        v = (x - middle[..., None]) / width[:, None]
        if m == 1:
            cdf = (np.sign(v + 1) + np.sign(v - 1) + 2) / 4
        else:
            cdf = 0.5 + 0.5 * np.sign(v) * special.betainc(0.5, (m - 1) / 2, np.minimum(v * v, 1.0))
        return np.einsum("...wx,w->...x", cdf, weights)

    outside = (1 - below(ends) + below(-ends)).mean(axis=1)  # P(|r'| > end), of both places in a bin
    return np.diff(outside, prepend=0.0, axis=1)


def cosine(p: np.ndarray, n: int) -> np.ndarray:
    """|r| of n values whose two-sided t test has that p-value: r^2 ~ Beta(1 / 2, (n - 1) / 2)."""
    return np.sqrt(1 - special.betaincinv((n - 1) / 2, 0.5, p))


@lru_cache(maxsize=64)
def _table(looks: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """log alpha, and for each look the log of its level."""
    alphas = np.concatenate([np.geomspace(SMALLEST, 0.01, 50), np.linspace(0.012, 0.999, 150)])
    return np.log(alphas), np.log(np.array([levels(looks, float(alpha)) for alpha in alphas]).T)


def sequential_p(p: Sequence[float], looks: Sequence[int]) -> float:
    """The smallest alpha at which one of the looks so far would have rejected, given their two-sided p-values.

    A p-value itself: without effect it is at most x with probability x or less, whenever one stops. `p` has one value for
    each look so far; with a single planned look it is that value. Raises ConfigError for more values than looks.
    """
    looks = check_looks(looks)
    if not 1 <= len(p) <= len(looks):
        raise ConfigError(f"{len(p)} p-values for {len(looks)} looks: give one for each look so far")
    if len(looks) == 1:
        return p[0]
    alphas, table = _table(looks)
    best = 1.0
    for value, row in zip(p, table, strict=False):
        if value <= math.exp(row[0]):
            best = min(best, value * math.exp(alphas[0] - row[0]))
        elif (log := math.log(value)) <= row[-1]:
            best = min(best, math.exp(float(np.interp(log, row, alphas))))
    return best

"""Group-sequential t tests with alpha spending: several looks at accumulating data with the error rate of one.

The alpha spent by a look at n of the N planned pairs is alpha n / N (Lan & DeMets 1983; Kim & DeMets 1987 with rho = 1).
Levels derived for a normal process reject too often if the t tests start at a few pairs, so this uses the process of t
itself. For n values of equal variance without an effect, let r = sum(x) / sqrt(n sum(x^2)); t and its p-value are
functions of r. The direction of the values is uniform on a sphere and independent of their length, so m further values
turn r into

    r' = sqrt(n w / (n + m)) r + sqrt(m (1 - w) / (n + m)) v,   w ~ Beta(n / 2, m / 2),  v^2 ~ Beta(1 / 2, (m - 1) / 2),

which is a Markov chain. We propagate it over bins of the two-sided p-value, as Armitage, McPherson & Rowe (1969) did for
the normal process.
"""

import math
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise

import numpy as np
from scipy import special

from partwise.config import ConfigError

DEFAULT_LOOKS = (4, 8, 16)
"""Default numbers of seed pairs at the looks of a protocol."""

BIN_EDGES = np.concatenate([np.geomspace(1e-9, 0.008, 40), np.linspace(0.01, 1.0, 100)])
"""Upper edges of the p-value bins; the first bin starts at 0."""
GAUSS_POINTS = np.array([0.2113, 0.7887])  # two-point Gauss quadrature within a bin
JACOBI_NODES = 40  # Gauss-Jacobi nodes for the integral over w
MIN_ALPHA = 1e-8  # below it, a sequential p-value is proportional to the p-value


def check_looks(looks: Sequence[int]) -> tuple[int, ...]:
    """The looks as a tuple. Raises ConfigError unless they are ascending and each has at least 2 pairs."""
    looks = tuple(looks)
    if not looks or looks[0] < 2 or any(late <= early for early, late in pairwise(looks)):
        text = ",".join(str(look) for look in looks)
        raise ConfigError(f"looks={text}: expected ascending numbers of paired seeds, each at least 2, such as 4,8,16")
    if len(looks) > 20 or looks[-1] > 100_000:
        raise ConfigError(f"looks={looks[0]},...,{looks[-1]}: give at most 20 looks, at up to 100000 paired seeds")
    return looks


def spending_function(looks: Sequence[int], alpha: float = 0.05) -> tuple[float, ...]:
    """The cumulative alpha spent by each look: alpha n / N."""
    return tuple(alpha * look / looks[-1] for look in looks)


@lru_cache(maxsize=4096)
def nominal_levels(looks: tuple[int, ...], alpha: float = 0.05) -> tuple[float, ...]:
    """The nominal two-sided significance level of each look, such that the cumulative probability of a false rejection
    equals `spending_function`. Raises ConfigError for invalid looks or an alpha outside (0, 1)."""
    check_looks(looks)
    if not 0 < alpha < 1:
        raise ConfigError(f"alpha={alpha:g}: expected an error probability between 0 and 1, such as 0.05")
    levels: list[float] = []
    mass = np.diff(BIN_EDGES, prepend=0.0)  # p at the first look is uniform
    for index, increment in enumerate(np.diff((0.0, *spending_function(looks, alpha)))):
        if index:
            mass = mass @ transition_matrix(looks[index - 1], looks[index])
        cumulative = np.cumsum(mass)
        level = float(np.interp(increment, np.concatenate([[0.0], cumulative]), np.concatenate([[0.0], BIN_EDGES])))
        levels.append(level)
        low = np.concatenate([[0.0], BIN_EDGES[:-1]])
        mass = mass * np.clip((BIN_EDGES - level) / (BIN_EDGES - low), 0.0, 1.0)  # keep what was not rejected
    return tuple(levels)


@lru_cache(maxsize=256)
def transition_matrix(n: int, later: int) -> np.ndarray:
    """P(bin of the p-value of `later` values | bin of the p-value of the first `n`): (bins, bins), rows sum to 1."""
    m = later - n
    low = np.concatenate([[0.0], BIN_EDGES[:-1]])
    p = low[:, None] + GAUSS_POINTS * (BIN_EDGES - low)[:, None]
    r = cosine(p, n)[..., None, None]
    w, weights = special.roots_jacobi(JACOBI_NODES, m / 2 - 1, n / 2 - 1)
    w, weights = (w + 1) / 2, weights / weights.sum()
    edges = cosine(BIN_EDGES, later)
    center, scale = np.sqrt(n * w / later) * r[..., 0], np.sqrt(m * (1 - w) / later)

    def cdf_of_later(x: np.ndarray) -> np.ndarray:
        """P(r' <= x | r) for each r and each x."""
        v = (x - center[..., None]) / scale[:, None]
        if m == 1:
            cdf = (np.sign(v + 1) + np.sign(v - 1) + 2) / 4
        else:
            cdf = 0.5 + 0.5 * np.sign(v) * special.betainc(0.5, (m - 1) / 2, np.minimum(v * v, 1.0))
        return np.einsum("...wx,w->...x", cdf, weights)

    outside = (1 - cdf_of_later(edges) + cdf_of_later(-edges)).mean(axis=1)  # P(|r'| > edge), over both Gauss points
    return np.diff(outside, prepend=0.0, axis=1)


def cosine(p: np.ndarray, n: int) -> np.ndarray:
    """|r| of n values whose two-sided t test has p-value `p`: r^2 ~ Beta(1 / 2, (n - 1) / 2)."""
    return np.sqrt(1 - special.betaincinv((n - 1) / 2, 0.5, p))


@lru_cache(maxsize=64)
def _level_table(looks: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """log alpha, (alphas,), and the log of each look's nominal level, (looks, alphas). 5% / k is a node, for k up to 20."""
    steps = (np.geomspace(MIN_ALPHA, 0.01, 50), 0.05 / np.arange(1, 21), np.linspace(0.012, 0.999, 150))
    alphas = np.unique(np.concatenate(steps))
    return np.log(alphas), np.log(np.array([nominal_levels(looks, float(alpha)) for alpha in alphas]).T)


def nominal_level(looks: Sequence[int], look: int, alpha: float) -> float:
    """The nominal two-sided level of look number `look` at a level of `alpha` over all looks; `alpha` itself for one look.

    Interpolated from `nominal_levels`, as the inverse of `repeated_p`. Raises ConfigError for invalid looks.
    """
    if len(looks) < 2:
        return alpha
    log_alphas, log_levels = _level_table(check_looks(looks))
    row = log_levels[look - 1]
    if alpha <= math.exp(log_alphas[0]):
        return alpha * math.exp(row[0] - log_alphas[0])
    return math.exp(float(np.interp(math.log(alpha), log_alphas, row)))


def repeated_p(p: float, looks: Sequence[int], look: int) -> float:
    """The repeated p-value of a look: the smallest alpha over all looks at which this look alone rejects.

    Without an effect it is at most x at any look with probability at most x, so it is valid under any stopping rule
    (Jennison & Turnbull 2000, section 9.4). `p` is the two-sided p-value of look number `look`; with a single look that value
    is returned. Raises ConfigError for invalid looks.
    """
    if len(looks) < 2:
        return p
    log_alphas, log_levels = _level_table(check_looks(looks))
    row = log_levels[look - 1]
    if p <= math.exp(row[0]):
        return p * math.exp(log_alphas[0] - row[0])
    return math.exp(float(np.interp(math.log(p), row, log_alphas))) if math.log(p) <= row[-1] else 1.0

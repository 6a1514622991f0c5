"""Online control of the false discovery rate: the level of each comparison in a sequence that has no planned end.

LORD with asynchronous tests (Zrnic, Ramdas & Jordan 2021, JMLR 22(33), algorithm LORD*; LORD itself: Javanmard & Montanari
2018, Ramdas et al. 2017). Test number t is judged at the level

    alpha_t = g(t) w + g(t - r_1) (alpha - w) + sum over k >= 2 of g(t - r_k) alpha,

where r_k is the number of tests that had started when the k-th discovery became known, w is the initial wealth, and the
weights g(1), g(2), ... sum to 1. A level depends only on what is known when the test starts, so tests may run at once
and finish in any order. The expected fraction of false discoveries is at most alpha if the p-values of the tests are
independent.
"""

from collections.abc import Sequence

from scipy import special

from partwise.config import ConfigError

EXPONENT = 1.3
"""g(j) is proportional to j^-1.3: of the weights tried, it detects most in simulations of 200 t tests, a tenth
with an effect."""

INITIAL_WEALTH = 0.5
"""w as a fraction of alpha."""


def weight(test: int) -> float:
    """g(test), for test = 1, 2, ...; the weights sum to 1."""
    return float(test**-EXPONENT / special.zeta(EXPONENT))


def online_level(started: int, discoveries: Sequence[int], alpha: float = 0.05) -> float:
    """The level of the next test after `started` tests.

    `discoveries` has an entry for every discovery that is known: the number of tests that had started when it became known.
    `alpha` is the false discovery rate of the sequence. Raises ConfigError if alpha is not between 0 and 1, or a discovery
    is not one of the tests that have started.
    """
    if not 0 < alpha < 1:
        raise ConfigError(f"alpha={alpha:g}: expected an error probability between 0 and 1, such as 0.05")
    for known in discoveries:
        if not 1 <= known <= started:
            raise ConfigError(
                f"a discovery known after {known} tests: expected 1 to {started}, the tests that have started"
            )
    if len(discoveries) > started:
        raise ConfigError(f"{len(discoveries)} discoveries by {started} tests: give at most one discovery per test")
    test = started + 1
    wealth = INITIAL_WEALTH * alpha
    level = weight(test) * wealth
    for number, known in enumerate(sorted(discoveries)):
        level += weight(test - known) * (alpha if number else alpha - wealth)
    return level

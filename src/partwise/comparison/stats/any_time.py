"""A t test that may be asked after every new run, and its confidence sequence.

For normal values with mean mu and any SD, let delta be mu in SDs. Under a half-normal prior on delta > 0 with variance g, and
the right Haar prior on the SD, the Bayes factor against delta = 0 of n values with t statistic t is, in closed form,

    e = 2 (1 + n g)^(-1/2) (1 - q u)^(-n/2) F(t sqrt(q n / ((n - 1 + t^2) (1 - q u)))),
    q = n g / (1 + n g),  u = t^2 / (n - 1 + t^2),

where F is the distribution function of Student's t with n degrees of freedom. It depends on the values by their t statistics
alone, and is a martingale with mean 1 if delta = 0, so it ever reaches 1 / alpha with a probability of at most alpha (Ville
1939). A shift of all values shifts every t in the same direction, and e grows with t: so that holds for delta < 0 too. The
two-sided form is that of Wang & Ramdas 2023, arXiv:2310.03722; Lai (1976) has the limit of large g, and Perez-Ortiz et al.
(2024, arXiv:2208.07610) the theory for groups such as this one.
"""

import functools
import math
from collections.abc import Sequence
from typing import NamedTuple

from scipy import special

from partwise.comparison.stats.samples import mean, sd

SCALE = 1.0
"""g: effects of about one SD of a value are expected."""

LARGEST = 1e300


class AnyTimeTest(NamedTuple):
    """The evidence of a sample against a number, on both sides; e-values are None if the values do not vary."""

    n: int
    mean: float
    sd: float | None
    e_above: float | None
    """Evidence that the true mean is above the number: if not, it ever reaches 1 / alpha with probability alpha at most."""
    e_below: float | None

    def bounds(self, level: float) -> tuple[float | None, float | None]:
        """Bounds that the true mean is never beyond, each with an error of at most `level` over all numbers of values."""
        if not self.sd:
            return None, None
        critical = critical_t(self.n, level)
        if critical is None:
            return None, None
        half = critical * self.sd / math.sqrt(self.n)
        return self.mean - half, self.mean + half


def any_time_test(values: Sequence[float], number: float = 0.0) -> AnyTimeTest:
    """Test finite values against a number; all values so far, whichever their order."""
    n, center = len(values), mean(values)
    spread = sd(values, max(map(abs, values))) if n > 1 else None
    if not spread:
        return AnyTimeTest(n, center, spread, None, None)
    t = (center - number) / (spread / math.sqrt(n))
    return AnyTimeTest(n, center, spread, e_value(t, n), e_value(-t, n))


def e_value(t: float, n: int, scale: float = SCALE) -> float:
    """The Bayes factor of a positive mean, given the t statistic of n values."""
    q = n * scale / (1 + n * scale)
    rest = 1 - q * t * t / (n - 1 + t * t)
    inner = t * math.sqrt(q * n / ((n - 1 + t * t) * rest))
    log_two_sided = -n / 2 * math.log(rest) - math.log1p(n * scale) / 2
    below = float(special.stdtr(n, inner))
    if below == 0.0:
        return 0.0
    log_e = math.log(2) + log_two_sided + math.log(below)
    return math.exp(log_e) if log_e < math.log(LARGEST) else LARGEST


@functools.lru_cache(maxsize=2**12)
def critical_t(n: int, level: float, scale: float = SCALE) -> float | None:
    """The t statistic whose e-value is 1 / level; None if no t of so few values is large enough."""
    low, high = 0.0, 1.0
    while e_value(high, n, scale) * level < 1:
        low, high = high, 2 * high
        if high > 1e9:
            return None
    while high - low > 1e-10 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if e_value(middle, n, scale) * level >= 1 else (middle, high)
    return high


def fewest_values(level: float, scale: float = SCALE) -> int:
    """The fewest values that can reach an error of `level` at all."""
    return next(n for n in range(2, 1000) if critical_t(n, level, scale) is not None)

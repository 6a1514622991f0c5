"""Statistics of one sample or two: means, standard errors, t and Fisher's tests, correlation and outliers.

All intervals use Student's t: a percentile bootstrap has poor coverage at the usual 3 to 10 seeds.
"""

import functools
import math
from collections.abc import Sequence

import numpy as np
from scipy import special

ROUNDING = 2.0**-50
"""Four units in the last place, relative to the largest value: a smaller spread is rounding."""

MAX_EXACT_FLIPS = 16
MAX_FLIPPED = 100
FLIPS = 100_000
"""Random sign changes of more than `MAX_EXACT_FLIPS` differences."""


def mean(x: Sequence[float]) -> float:
    return math.fsum(x) / len(x) if min(x) < max(x) else x[0]  # equal values have an SD of exactly 0


def sd(x: Sequence[float], scale: float = 0.0) -> float:
    """The standard deviation; 0 if it is rounding of values as large as `scale`."""
    center = mean(x)
    spread = math.hypot(*[value - center for value in x]) / math.sqrt(len(x) - 1)
    return spread if spread > ROUNDING * scale else 0.0


def pooled_sd(arms: Sequence[Sequence[float]]) -> float | None:
    """The pooled seed SD of all arms: sqrt(sum (n - 1) sd^2 / sum (n - 1)); None if every arm has fewer than 2 runs."""
    arms = [arm for arm in arms if len(arm) > 1]
    df = sum(len(arm) - 1 for arm in arms)
    return math.hypot(*[sd(arm) * math.sqrt((len(arm) - 1) / df) for arm in arms]) if arms else None


def correlation(a: Sequence[float], b: Sequence[float]) -> float | None:
    """Pearson's r; None for fewer than 3 pairs or a constant arm."""
    mean_a, mean_b = mean(a), mean(b)
    from_a, from_b = [value - mean_a for value in a], [value - mean_b for value in b]
    norm_a, norm_b = math.hypot(*from_a), math.hypot(*from_b)
    if len(a) < 3 or not norm_a or not norm_b:
        return None
    r = math.fsum([x / norm_a * (y / norm_b) for x, y in zip(from_a, from_b, strict=True)])
    return max(-1.0, min(1.0, r))


def welch(sd_a: float, n_a: int, sd_b: float, n_b: int) -> tuple[float, float]:
    """The standard error of a difference of means (Welch 1947) and its degrees of freedom.

    Those of Welch and Satterthwaite reject too often if an arm has few runs: 12% of true hypotheses at 5% with 2 runs against
    50, 6% with 5. So from 5 runs on, we use their harmonic mean with min(n) - 1, and below that min(n) - 1, which is always
    enough (Hsu 1938).
    """
    return harmonic_df(sd_a / math.sqrt(n_a), n_a - 1, sd_b / math.sqrt(n_b), n_b - 1)


def harmonic_df(a: float, df_a: int, b: float, df_b: int) -> tuple[float, float]:
    """The standard error of the sum of two independent estimates, from theirs, and its degrees of freedom as in `welch`."""
    error, fewest = math.hypot(a, b), float(min(df_a, df_b))
    if not error or fewest < 4:
        return error, fewest
    inverse = (a / error) ** 4 / df_a + (b / error) ** 4 / df_b  # ratios, to avoid overflow
    return error, 2 / (inverse + 1 / fewest)


@functools.lru_cache(maxsize=2**14)
def t_critical(df: float, alpha: float) -> float:
    """The two-sided critical value of Student's t, normal if df is infinite."""
    return -float(special.stdtrit(df, alpha / 2) if math.isfinite(df) else special.ndtri(alpha / 2))


def t_sf(df: float, t: float) -> float:
    """P(T > t), the survival function."""
    return float(special.stdtr(df, -t) if math.isfinite(df) else special.ndtr(-t))


def t_interval(x: Sequence[float], alpha: float) -> tuple[float, float] | tuple[None, None]:
    """mean ± t SD / sqrt(n) at a confidence of 1 - alpha; None for fewer than 2 values or values that do not vary."""
    spread = sd(x, max(map(abs, x))) if len(x) > 1 else 0.0
    if not spread:
        return None, None
    half = t_critical(len(x) - 1, alpha) * spread / math.sqrt(len(x))
    return mean(x) - half, mean(x) + half


def sign_flip_p(differences: Sequence[float]) -> float | None:
    """The two-sided p of the sign-flip test: the fraction of sign changes with a sum at least as large in magnitude.

    Valid without normality if the differences are symmetric around 0 (Fisher 1935, section 21). Exact over all 2^n for up to
    16 differences, else from 100,000 with a fixed seed. None for more than 100, where it agrees with the t test.
    """
    if len(differences) > MAX_FLIPPED:
        return None
    least = abs(math.fsum(differences)) * (1 - 1e-12)  # sums that are equal up to rounding count as equal
    if not least:
        return 1.0
    n = len(differences)
    if n <= MAX_EXACT_FLIPS:  # the sums with the opposite sign of the first difference are the negatives of these
        sums = _signed_sums(differences[1:]) + differences[0]
        return int(np.count_nonzero(np.abs(sums) >= least)) / len(sums)
    groups = [differences[start : start + 8] for start in range(0, n, 8)]
    signs = np.random.default_rng(0).integers(
        256, size=(len(groups), FLIPS), dtype=np.uint8
    )  # a byte per 8 differences
    sums = np.zeros(FLIPS)
    for group, byte in zip(groups, signs, strict=True):
        sums += _signed_sums(group)[byte & (2 ** len(group) - 1)]
    return float((1 + np.count_nonzero(np.abs(sums) >= least)) / (1 + FLIPS))


def _signed_sums(x: Sequence[float]) -> np.ndarray:
    """The sums of x under all sign changes: (2^n,)."""
    sums = np.zeros(1)
    for value in x:
        sums = np.concatenate([sums + value, sums - value])
    return sums


def skewness(x: Sequence[float]) -> float | None:
    """The sample skewness adjusted for its size, G1; None for fewer than 3 values or values that do not vary."""
    n = len(x)
    if n < 3 or not (spread := sd(x, max(map(abs, x)))):
        return None
    center = mean(x)
    return n / ((n - 1) * (n - 2)) * math.fsum([((value - center) / spread) ** 3 for value in x])


def skewness_p(x: Sequence[float]) -> float | None:
    """The two-sided p of D'Agostino's test (1970) of skewness; None for fewer than 8 values or values that do not vary."""
    n, adjusted = len(x), skewness(x)
    if n < 8 or adjusted is None:
        return None
    b1 = adjusted * (n - 2) / math.sqrt(n * (n - 1))  # the moment ratio m3 / m2^1.5
    y = b1 * math.sqrt((n + 1) * (n + 3) / (6 * (n - 2)))
    kurtosis = 3 * (n * n + 27 * n - 70) * (n + 1) * (n + 3) / ((n - 2) * (n + 5) * (n + 7) * (n + 9))
    w2 = math.sqrt(2 * (kurtosis - 1)) - 1
    z = math.asinh(y / math.sqrt(2 / (w2 - 1))) / math.sqrt(math.log(w2) / 2)
    return 2 * float(special.ndtr(-abs(z)))


def unequal_spreads_p(sd_a: float, n_a: int, sd_b: float, n_b: int, r: float | None) -> float | None:
    """The two-sided p of equal SDs: Pitman's test (1939) of pairs with the correlation `r`, else the F test.

    None for fewer than 3 values of an arm, or two constant arms; 0 for one constant arm.
    """
    if min(n_a, n_b) < 3 or not max(sd_a, sd_b):
        return None
    if not min(sd_a, sd_b):
        return 0.0
    ratio = sd_a / sd_b
    if r is None:
        (ratio, n, m) = (ratio, n_a, n_b) if ratio > 1 else (1 / ratio, n_b, n_a)
        return min(1.0, 2 * float(special.fdtrc(n - 1, m - 1, ratio * ratio)))
    if abs(r) == 1:
        return float(ratio == 1)
    return 2 * t_sf(n_a - 2.0, abs(ratio - 1 / ratio) / 2 * math.sqrt((n_a - 2) / (1 - r * r)))


def fisher_exact(failed_a: int, n_a: int, failed_b: int, n_b: int) -> float:
    """The two-sided p of Fisher's exact test that two arms fail equally often: the sum over tables at most as probable."""
    failed = failed_a + failed_b
    tables = [math.comb(n_a, x) * math.comb(n_b, failed - x) for x in range(failed + 1)]
    return sum(count for count in tables if count <= tables[failed_a]) / sum(tables)


def grubbs(x: Sequence[float]) -> float | None:
    """The two-sided p-value of Grubbs' outlier test (1969), n times that of its t test; None for fewer than 4 values."""
    n = len(x)
    if n < 4 or not all(map(math.isfinite, x)) or not (spread := sd(x)):
        return None
    center = mean(x)
    g = max(abs(value - center) for value in x) / spread
    remainder = (n - 1) ** 2 / n - g * g
    if remainder <= 0:
        return 0.0
    return min(1.0, 2 * n * t_sf(n - 2.0, g * math.sqrt((n - 2) / remainder)))

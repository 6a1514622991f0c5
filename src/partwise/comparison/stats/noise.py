"""The noise that a plan assumes: the SD of a difference between two arms at one seed, and how well it is known."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from scipy import special

from partwise.comparison.stats.samples import sd
from partwise.config import ConfigError

ASSURANCE = 0.8
"""The probability that the upper limit of an SD exceeds the true SD."""


@dataclass(frozen=True)
class Noise:
    """The SD of one paired difference, its degrees of freedom (infinite if it is given or guessed), and its source.

    Raises ConfigError for an SD that is not positive.
    """

    sd: float
    df: float
    source: str
    correlation: float | None = None
    """Pearson's r of paired runs of two arms; None if it is unknown."""

    def __post_init__(self) -> None:
        check_sd(self.sd)
        if not self.df >= 1:
            raise ConfigError(f"df={self.df:g}: expected the degrees of freedom of an SD, at least 1")

    @property
    def upper_sd(self) -> float:
        """The one-sided 80% upper confidence limit of the SD, which plans use: sd sqrt(df / chi2(df) at 20%).

        A plan for 80% power from the SD itself has less on average, as the SD of a few pairs is often too small.
        """
        return upper_limit(self.sd, self.df)

    @property
    def sentence(self) -> str:
        """The SD that a plan uses, and why."""
        if math.isinf(self.df):
            return f"assuming that differences have SD {self.sd:.4g}: {self.source}"
        return (
            f"assuming that differences have SD {self.upper_sd:.4g}, the 80% upper limit of {self.sd:.4g} with {self.df:.3g} "
            f"degrees of freedom: {self.source}"
        )


def upper_limit(sd: float, df: float) -> float:
    """The one-sided 80% upper confidence limit of an SD with `df` degrees of freedom; `sd` itself if they are infinite."""
    return sd if math.isinf(df) else sd * math.sqrt(df / float(special.chdtri(df, ASSURANCE)))


def given_noise(sd_difference: float) -> Noise:
    """The noise that a user states."""
    return Noise(
        sd_difference, math.inf, "the SD of the difference between two arms trained on the same seed, from --sd"
    )


def pooled_noise(differences: Sequence[Sequence[float]], source: str, correlation: float | None = None) -> Noise | None:
    """The noise of the paired differences of one or more claims; None if they do not vary, or there are fewer than 2 pairs.

    The claims share a baseline, so their variances are correlated by 1/4 and k of them with n pairs each have
    k (n - 1) / (1 + (k - 1) / 4) degrees of freedom.
    """
    claims = [claim for claim in differences if len(claim) > 1]
    df = sum(len(claim) - 1 for claim in claims)
    squares = math.fsum((len(claim) - 1) * sd(claim, max(map(abs, claim))) ** 2 for claim in claims)
    if not squares:
        return None
    return Noise(math.sqrt(squares / df), df / (1 + (len(claims) - 1) / 4), source, correlation)


def check_sd(sd: float) -> None:
    """Raise ConfigError unless `sd` is a possible SD of differences."""
    if not (math.isfinite(sd) and sd > 0):
        raise ConfigError(
            f"sd={sd:g}: expected the SD of the difference between two arms trained on the same seed, a positive number"
        )

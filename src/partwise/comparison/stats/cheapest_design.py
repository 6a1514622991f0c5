"""The runs that each design needs, from the noise and the correlation of an earlier comparison's pairs."""

import math
from dataclasses import dataclass

from partwise.comparison.stats.designs import FEWEST_SEEDS
from partwise.comparison.stats.effect import BaselineDesign
from partwise.comparison.stats.noise import check_sd
from partwise.comparison.stats.power import paired_t_power
from partwise.comparison.stats.samples import harmonic_df, welch
from partwise.comparison.stats.simulated_power import POWER, fewest_seeds


@dataclass(frozen=True, order=True)
class DesignRuns:
    """The fewest runs, of all arms together, with which a design shows a difference with 80% power."""

    runs: int
    seeds: int
    design: BaselineDesign
    baseline_runs: int
    """Per run of an arm."""

    @property
    def flags(self) -> str:
        more = f" --baseline-runs {self.baseline_runs}" if self.baseline_runs > 1 else ""
        return f"--design {self.design}{more} --seeds {self.seeds}"


def design_runs(effect: float, sd_difference: float, r: float, claims: int, alpha: float) -> list[DesignRuns]:
    """The runs of each design, paired first, then those with the best number of baseline runs up to sqrt(claims) + 1.

    All seeds are judged once, and one claim differs by `effect`. `sd_difference` and `r`, below 1, are those of paired runs.
    Raises ConfigError if a design needs over 100,000 seeds.
    """
    check_sd(sd_difference)
    sd = sd_difference / math.sqrt(2 * (1 - r))
    most = math.isqrt(claims) + 1

    def fewest(design: BaselineDesign, factor: int) -> DesignRuns:
        seeds = fewest_seeds(
            lambda n: _power(design, factor, n, abs(effect) / sd, r, alpha / claims) >= POWER,
            f"design={design} for an effect of {effect:g}",
        )
        seeds = seeds if factor == 1 else max(seeds, FEWEST_SEEDS)
        return DesignRuns(seeds * (claims + factor), seeds, design, factor)

    unpaired = min(fewest("unpaired", factor) for factor in range(1, most + 1))
    covariate = min(fewest("covariate", factor) for factor in range(2, max(most, 2) + 1))
    return [fewest("paired", 1), unpaired, covariate]


def _power(design: BaselineDesign, factor: int, n: int, effect: float, r: float, alpha: float) -> float:
    """The power of one claim with `n` seeds, from the expected standard error; `effect` is in SDs of a run."""
    m = factor * n
    if design == "paired":
        error, df = math.sqrt(2 * (1 - r) / n), n - 1.0
    elif design == "unpaired":
        error, df = welch(1.0, n, 1.0, m)
    elif n < 4:
        return 0.0
    else:
        line = math.sqrt((1 - r * r) * (1 / n + (1 / n - 1 / m) / (n - 3)))
        error, df = harmonic_df(line, n - 2, (1 - r) / math.sqrt(m), m - 1)
    return paired_t_power(effect / error, df + 1, alpha)

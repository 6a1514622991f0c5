"""Measure seed-to-seed noise from A/A pairs."""

import math
import statistics
from dataclasses import asdict, dataclass
from typing import Any

from scipy import special

from partwise.comparison.experiment import Comparison
from partwise.comparison.noise_store import (
    CALIBRATED_METRIC,
    FORMAT,
    configuration_key,
    write_calibration,
)
from partwise.comparison.stats.null_pairs import flip_p, mean_p, rejected_subsets, why_no_noise
from partwise.config import ConfigError


@dataclass(frozen=True)
class Calibration:
    """The noise of one configuration, in the unit of its metric, with 95% intervals."""

    name: str
    family: str
    """The family of parts that the second arm re-initializes; empty if the second arm has other seeds."""
    seeds: int
    sd_difference: float
    """The SD of a paired difference, with `seeds - 1` degrees of freedom; plans use it."""
    sd_low: float
    sd_high: float
    sd: float
    """The seed SD of one run."""
    correlation: float
    """The correlation between two runs that share seed and data but not the family's initial weights."""
    correlation_low: float
    correlation_high: float
    mean: float
    """The mean difference of the A/A pairs; near 0."""
    evaluation_se: float | None
    """The standard error of one run's loss over the choice of validation text."""
    paired_evaluation_se: float | None
    """The standard error of a pair's difference over the choice of validation text, which both runs share."""
    p_mean: float
    """p of a t test that the mean difference is 0."""
    p_sign_flip: float
    """p of the exact sign-flip test of the same."""
    rejected_subsets: float
    """The fraction of subsets of `subset_size` pairs that a t test at 5% rejects."""
    subsets: int
    subset_size: int
    failure: str | None = None
    """Why the pairs are no measure of noise; None if their mean is compatible with 0."""
    positive_control: str = ""
    control_effect: float | None = None
    """The mean difference of the positive control, if there is one."""
    control_sd: float | None = None
    """The SD of its paired differences."""
    metric: str = CALIBRATED_METRIC
    seconds: float | None = None
    """The median time of a trial, if it is a command."""
    format: int = FORMAT

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def check_pairs(seeds: int) -> None:
    if seeds < 3:
        raise ConfigError(f"--seeds {seeds}: must be at least 3; 8 pairs estimate the seed SD to within about 25%")


def calibrate(
    comparison: Comparison,
    data_hash: str,
    family: str = "",
    evaluation: tuple[float | None, float | None] = (None, None),
) -> Calibration:
    """Estimate the noise from a finished A/A comparison and save it to the store.

    `evaluation` has the standard errors of a value and of a pair's difference over the choice of validation text.
    """
    results = comparison.results
    effect = results.claims[0].effect
    if effect.sd_pooled is None or not effect.sd_difference:
        raise ConfigError(
            f"{comparison.path}: {effect.sentence} No calibration was stored: fix the cause, then run it again"
        )
    differences = [difference for difference in effect.differences if difference is not None]
    n, sd, r = len(differences), effect.sd_difference, effect.correlation or 0.0
    low, high = (sd * math.sqrt((n - 1) / float(special.chdtri(n - 1, p))) for p in (0.025, 0.975))
    half_width = 1.96 / math.sqrt(n - 3) if n > 3 else math.inf  # 95% half-width of Fisher's z
    rejected, n_subsets, subset_size = rejected_subsets(differences)
    seconds = [trial.seconds for arm in results.arms for trial in arm.trials if trial.seconds]
    controls = [claim.effect for claim in results.claims if claim.role == "positive" and claim.effect.mean is not None]
    calibration = Calibration(
        name=comparison.path.name,
        family=family,
        seeds=n,
        sd_difference=sd,
        sd_low=low,
        sd_high=high,
        sd=effect.sd_pooled,
        correlation=r,
        correlation_low=math.tanh(math.atanh(max(-0.999999, r)) - half_width) if r < 1 else 1.0,
        correlation_high=math.tanh(math.atanh(min(0.999999, r)) + half_width),
        mean=math.fsum(differences) / n,
        evaluation_se=evaluation[0],
        paired_evaluation_se=evaluation[1],
        p_mean=mean_p(differences),
        p_sign_flip=flip_p(differences),
        rejected_subsets=rejected,
        subsets=n_subsets,
        subset_size=subset_size,
        failure=why_no_noise(differences),
        positive_control=controls[0].arm if controls else "",
        control_effect=controls[0].mean if controls else None,
        control_sd=controls[0].sd_difference if controls else None,
        metric=results.protocol.metric,
        seconds=statistics.median(seconds) if seconds else None,
    )
    write_calibration(configuration_key(comparison.plan.arms[0].config.to_stored(), data_hash), calibration.to_dict())
    return calibration

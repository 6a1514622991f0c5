"""Measure seed-to-seed noise from A/A pairs."""

import itertools
import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from scipy import special

from partwise.checkpoint import load, write_json
from partwise.comparison.experiment import Comparison
from partwise.comparison.noise_store import CALIBRATIONS_FILE, read_calibrations, setting_key
from partwise.config import ConfigError
from partwise.data import Dataset, build_examples
from partwise.evaluate.loss import mean_loss

MAX_RELABELINGS = 4096


@dataclass(frozen=True)
class Calibration:
    """The noise of one task, model size and number of steps, in nats, with 95% intervals."""

    name: str
    family: str
    """The family of parts that the second arm re-initializes."""
    seeds: int
    sd: float
    """The seed SD of one run, with `df` degrees of freedom."""
    df: float
    sd_low: float
    sd_high: float
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
    false_positive_rate: float
    """The fraction of relabelings of the A/A pairs that a t test at 5% rejects."""
    relabelings: int
    positive_control: str = ""
    control_effect: float | None = None
    """The mean difference of the positive control, if there is one."""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def calibrate(comparison: Comparison, dataset: Dataset) -> Calibration:
    """Estimate the noise from a finished A/A comparison and save it to the store."""
    results = comparison.results
    effect, arm = results.claims[0].effect, results.arms[1]
    if effect.sd_pooled is None:
        raise ConfigError(f"{comparison.path}: {effect.sentence} Nothing was calibrated: lower train.lr or add warmup")
    differences = np.array(effect.differences)
    r = effect.correlation or 0.0
    # the arms of a pair share noise, so they determine the SD less well than independent runs
    n, sd, df = len(differences), effect.sd_pooled, 2 * (effect.n - 1) / (1 + r * r)
    low, high = (sd * math.sqrt(df / float(special.chdtri(df, p))) for p in (0.025, 0.975))
    half_width = 1.96 / math.sqrt(n - 3) if n > 3 else math.inf  # 95% half-width of Fisher's z
    rate, n_relabelings = false_positive_rate(differences)
    single, paired = evaluation_standard_errors(comparison, dataset)
    controls = [claim.effect for claim in results.claims if claim.role == "positive" and claim.effect.mean is not None]
    calibration = Calibration(
        name=comparison.path.name,
        family=comparison.plan.arm(arm.name).config.train.reinitialize or "",
        seeds=n,
        sd=sd,
        df=df,
        sd_low=low,
        sd_high=high,
        correlation=r,
        correlation_low=math.tanh(math.atanh(max(-0.999999, r)) - half_width) if r < 1 else 1.0,
        correlation_high=math.tanh(math.atanh(min(0.999999, r)) + half_width),
        mean=float(differences.mean()),
        evaluation_se=single,
        paired_evaluation_se=paired,
        false_positive_rate=rate,
        relabelings=n_relabelings,
        positive_control=controls[0].arm if controls else "",
        control_effect=controls[0].mean if controls else None,
    )
    store = read_calibrations()
    store[setting_key(comparison.plan.arms[0].config, dataset)] = calibration.to_dict()
    CALIBRATIONS_FILE.parent.mkdir(exist_ok=True)
    write_json(CALIBRATIONS_FILE, store)
    return calibration


def false_positive_rate(differences: np.ndarray, alpha: float = 0.05) -> tuple[float, int]:
    """The fraction of relabelings that a t test at alpha rejects, where a relabeling swaps the arms of some pairs.

    All 2^(n-1) are tried if these are few, else MAX_RELABELINGS are sampled with a fixed seed.
    """
    n = len(differences)
    if 2 ** (n - 1) <= MAX_RELABELINGS:
        signs = np.array([(1, *rest) for rest in itertools.product((1, -1), repeat=n - 1)])
    else:
        signs = np.random.default_rng(0).choice([1, -1], (MAX_RELABELINGS, n))
    x = signs * differences
    error = x.std(axis=1, ddof=1) / math.sqrt(n)
    limit = -float(special.stdtrit(n - 1, alpha / 2))
    return float(np.mean(np.abs(x.mean(axis=1)) > limit * error)), len(signs)


def evaluation_standard_errors(comparison: Comparison, dataset: Dataset) -> tuple[float | None, float | None]:
    """The standard errors of a loss and of a pair's difference over validation batches; None if there is only one batch."""
    losses: list[np.ndarray] = []
    for arm in comparison.plan.arms[:2]:
        folder = next(job.folder for job in comparison.jobs if job.arm == arm.name)
        model, _ = load(folder)
        config = arm.config
        batches = list(build_examples(dataset, "val", config.seq_len, config.model.context_length).eval_batches())
        full = [batch for batch in batches if batch.n_targets >= max(b.n_targets for b in batches) / 2]
        losses.append(np.array([mean_loss(model, [batch]) for batch in full]))
    if len(losses[0]) < 2:
        return None, None
    single, paired = (x.std(ddof=1) / math.sqrt(len(x)) for x in (losses[0], losses[1] - losses[0]))
    return float(single), float(paired)

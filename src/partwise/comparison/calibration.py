"""How far seeds lie apart where nothing was changed, measured from null pairs."""

import itertools
import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from scipy import special

from partwise.checkpoint import load, write_json
from partwise.comparison.experiment import Comparison
from partwise.comparison.store import STORE, key_of, read_store
from partwise.config import ConfigError
from partwise.data import Dataset, examples
from partwise.evaluate.loss import mean_loss

RELABELLINGS = 4096


@dataclass(frozen=True)
class Calibration:
    """The noise of one task, size and horizon, in nats; intervals are of 95 %."""

    name: str
    part: str
    seeds: int
    sd: float
    """Of one run, over seeds; with `df` degrees of freedom."""
    df: float
    sd_low: float
    sd_high: float
    correlation: float
    """Between two runs that share seed and data, but not the initial values of the part."""
    correlation_low: float
    correlation_high: float
    mean: float
    """The null pairs' mean difference: near 0."""
    evaluation_error: float | None
    """The standard error of one run's loss, had the validation text been another."""
    paired_evaluation_error: float | None
    """The same for the difference of a pair, which reads the same text."""
    false_positives: float
    """The share of relabellings of the null pairs that a t test at 5 % tells apart."""
    relabellings: int
    planted: str = ""
    planted_effect: float | None = None
    """What a change that must be seen did, where one was given."""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def calibrate(comparison: Comparison, dataset: Dataset) -> Calibration:
    """What a finished comparison of null pairs says of the noise; kept in the store."""
    row, arm = comparison.results["comparisons"][0], comparison.results["arms"][1]
    if row["sd_pooled"] is None:
        raise ConfigError(f"{comparison.path}: {row['sentence']} Nothing is calibrated: lower train.lr, or warm up")
    differences = np.array(row["differences"])
    r = row["correlation"] or 0.0
    # both arms of a pair share noise: together they know the SD less well than as many runs of their own
    n, sd, df = len(differences), row["sd_pooled"], 2 * (row["n"] - 1) / (1 + r * r)
    low, high = (sd * math.sqrt(df / float(special.chdtri(df, p))) for p in (0.025, 0.975))
    wide = 1.96 / math.sqrt(n - 3) if n > 3 else math.inf
    share, number = false_positives(differences)
    single, paired = evaluation_errors(comparison, dataset)
    planted = [
        found for found in comparison.results["comparisons"] if found["role"] == "planted" and found["mean"] is not None
    ]
    found = Calibration(
        name=comparison.path.name,
        part=comparison.plan.arm(arm["name"]).config.train.redraw or "",
        seeds=n,
        sd=sd,
        df=df,
        sd_low=low,
        sd_high=high,
        correlation=r,
        correlation_low=math.tanh(math.atanh(max(-0.999999, r)) - wide) if r < 1 else 1.0,
        correlation_high=math.tanh(math.atanh(min(0.999999, r)) + wide),
        mean=float(differences.mean()),
        evaluation_error=single,
        paired_evaluation_error=paired,
        false_positives=share,
        relabellings=number,
        planted=planted[0]["arm"] if planted else "",
        planted_effect=planted[0]["mean"] if planted else None,
    )
    store = read_store()
    store[key_of(comparison.plan.arms[0].config, dataset)] = found.to_dict()
    STORE.parent.mkdir(exist_ok=True)
    write_json(STORE, store)
    return found


def false_positives(differences: np.ndarray, alpha: float = 0.05) -> tuple[float, int]:
    """The share of relabellings that a t test at alpha calls different: which arm of a pair is which is a coin's choice.

    All 2^(n-1) where these are few, else RELABELLINGS drawn with a fixed seed.
    """
    n = len(differences)
    if 2 ** (n - 1) <= RELABELLINGS:
        signs = np.array([(1, *rest) for rest in itertools.product((1, -1), repeat=n - 1)])
    else:
        signs = np.random.default_rng(0).choice([1, -1], (RELABELLINGS, n))
    x = signs * differences
    error = x.std(axis=1, ddof=1) / math.sqrt(n)
    limit = -float(special.stdtrit(n - 1, alpha / 2))
    return float(np.mean(np.abs(x.mean(axis=1)) > limit * error)), len(signs)


def evaluation_errors(comparison: Comparison, dataset: Dataset) -> tuple[float | None, float | None]:
    """The standard errors of a loss and of a pair's difference, from the batches of the validation split; None
    where there is one only."""
    losses: list[np.ndarray] = []
    for arm in comparison.plan.arms[:2]:
        folder = next(job.folder for job in comparison.jobs if job.arm == arm.name)
        model, _ = load(folder)
        config = arm.config
        batches = list(examples(dataset, "val", config.context, config.model.max_len).scored())
        full = [batch for batch in batches if batch.count >= max(b.count for b in batches) / 2]
        losses.append(np.array([mean_loss(model, [batch]) for batch in full]))
    if len(losses[0]) < 2:
        return None, None
    single, paired = (x.std(ddof=1) / math.sqrt(len(x)) for x in (losses[0], losses[1] - losses[0]))
    return float(single), float(paired)

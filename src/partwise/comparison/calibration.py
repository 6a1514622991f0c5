"""How far seeds lie apart where nothing was changed, measured and kept for later comparisons.

runs/calibrations.json holds one entry per task, size and horizon; `partwise plan` and every comparison read it.
"""

import itertools
import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy import special

from partwise.checkpoint import load, write_json
from partwise.comparison.experiment import Comparison
from partwise.comparison.plan import Plan
from partwise.comparison.results import earlier_sd
from partwise.data import Dataset, examples
from partwise.evaluate.loss import mean_loss
from partwise.train.settings import RunConfig

STORE = Path("runs") / "calibrations.json"
RELABELLINGS = 4096
GUESS = 0.005
"""The seed SD of a small character model, in nats, where nothing is known."""


@dataclass(frozen=True)
class Calibration:
    """The noise of one task, size and horizon, in nats; intervals are of 95 %."""

    name: str
    part: str
    seeds: int
    sd: float
    """Of one run, over seeds; with `df` degrees of freedom."""
    df: int
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


@dataclass(frozen=True)
class Noise:
    """What is expected of a comparison before it runs: the SD of one run, the correlation of a pair, and why."""

    sd: float
    correlation: float
    source: str


def key_of(config: RunConfig, dataset: Dataset) -> str:
    """Task, size and horizon, in words."""
    train = config.train
    horizon = f"{train.steps} steps of {train.batch_size} x {config.context}"
    return f"{config.data} {dataset.hash[:16]}, {config.model.parameters()} parameters, {horizon}"


def calibrate(comparison: Comparison, dataset: Dataset) -> Calibration:
    """What a finished comparison of null pairs says of the noise; kept in the store."""
    row, arm = comparison.results["comparisons"][0], comparison.results["arms"][1]
    differences = np.array(row["differences"])
    n, sd, df = len(differences), row["sd_pooled"], 2 * (row["n"] - 1)
    low, high = (sd * math.sqrt(df / float(special.chdtri(df, p))) for p in (0.025, 0.975))
    r = row["correlation"] or 0.0
    wide = 1.96 / math.sqrt(n - 3) if n > 3 else math.inf
    share, number = false_positives(differences)
    single, paired = evaluation_errors(comparison, dataset)
    planted = [found for found in comparison.results["comparisons"] if found["role"] == "planted"]
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


def read_store(path: Path = STORE) -> dict[str, Any]:
    """What was calibrated below this working folder; nothing where the file is missing or damaged."""
    try:
        store = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return store if isinstance(store, dict) else {}


def expected_noise(plan: Plan, dataset: Dataset, sd: float | None = None) -> Noise:
    """From the user, the store, an earlier comparison of the same task, size and horizon, or a guess; in this order."""
    if sd is not None:
        return Noise(sd, 0.0, f"a seed SD of {sd:g} and no correlation")
    entry = read_store().get(key_of(plan.arms[0].config, dataset))
    if isinstance(entry, dict) and isinstance(entry.get("sd"), float) and entry["sd"] > 0:
        r = max(0.0, float(entry.get("correlation") or 0.0))
        name = entry.get("name")
        return Noise(entry["sd"], r, f"the seed SD {entry['sd']:.4f} and correlation {r:.2f} calibrated by {name}")
    if earlier := earlier_sd(Path("runs"), plan):
        spread, r, name = earlier
        return Noise(spread, r, f"the seed SD {spread:.4f} and paired correlation {r:.2f} of {name}")
    return Noise(GUESS, 0.0, f"a guessed seed SD of {GUESS:g} and no correlation (partwise calibrate measures it)")

"""What was calibrated below this working folder, and what is therefore expected of a comparison before it runs.

runs/calibrations.json holds one entry per task, size and horizon; `partwise plan` and every comparison read it.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from partwise.comparison.plan import Plan
from partwise.comparison.power import power_over_looks
from partwise.comparison.results import earlier_sd
from partwise.config import ConfigError
from partwise.data import Dataset
from partwise.train.settings import RunConfig

STORE = Path("runs") / "calibrations.json"
GUESS = 0.005
"""The seed SD of a small character model, in nats, where nothing is known."""

GUESS_EXACT = 0.1
"""The same of a share of exact answers: while they are being learned, seeds lie far apart."""

SURE = 0.95
"""The power that a planted effect must have."""


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


def read_store(path: Path = STORE) -> dict[str, Any]:
    """What was calibrated below this working folder; nothing where the file is missing or damaged."""
    try:
        store = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return store if isinstance(store, dict) else {}


def calibrated(plan: Plan, dataset: Dataset) -> dict[str, Any] | None:
    """What is stored of the plan's task, size and horizon; calibrations are of the loss alone."""
    entry = read_store().get(key_of(plan.arms[0].config, dataset)) if plan.rules.lower_is_better else None
    return entry if isinstance(entry, dict) else None


def expected_noise(plan: Plan, dataset: Dataset, sd: float | None = None) -> Noise:
    """From the user, the store, an earlier comparison of the same task, size and horizon, or a guess; in this order."""
    if sd is not None:
        return Noise(sd, 0.0, f"a seed SD of {sd:g} and no correlation")
    entry = calibrated(plan, dataset)
    if entry and isinstance(entry.get("sd"), float) and entry["sd"] > 0:
        r = max(0.0, float(entry.get("correlation") or 0.0))
        name = entry.get("name")
        return Noise(entry["sd"], r, f"the seed SD {entry['sd']:.4f} and correlation {r:.2f} calibrated by {name}")
    if earlier := earlier_sd(Path("runs"), plan):
        spread, r, name = earlier
        return Noise(spread, r, f"the seed SD {spread:.4f} and paired correlation {r:.2f} of {name}")
    if plan.rules.lower_is_better:
        return Noise(GUESS, 0.0, f"a guessed seed SD of {GUESS:g} and no correlation (partwise calibrate measures it)")
    return Noise(GUESS_EXACT, 0.0, f"a guessed seed SD of {GUESS_EXACT:g} and no correlation (name another with --sd)")


def planted_power(plan: Plan, dataset: Dataset) -> float | None:
    """The power to see the planted control, where its effect was calibrated. Raises ConfigError where it is below 95 %."""
    planted = [claim for claim in plan.claims if claim.role == "planted"]
    entry = calibrated(plan, dataset)
    if not planted or not entry or entry.get("planted") != planted[0].arm or entry.get("planted_effect") is None:
        return None
    noise = expected_noise(plan, dataset)
    power = power_over_looks(float(entry["planted_effect"]), noise.sd, plan.looks, noise.correlation, plan.rules.alpha)
    if power < SURE:
        raise ConfigError(
            f"--control-planted {planted[0].arm!r}: its effect of {entry['planted_effect']:+.4f} would be seen with "
            f"{power:.0%} only, and a control needs {SURE:.0%}: plant a larger one, or give more --seeds"
        )
    return power

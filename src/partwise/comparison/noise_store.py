"""The store of calibrated seed noise, and the noise to expect of a comparison before it runs.

`runs/calibrations.json` has one entry per task, model size and number of steps; `partwise plan` and all comparisons read it.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from partwise.comparison.design.plan import Plan
from partwise.comparison.results import Results
from partwise.comparison.stats.power import power_over_looks
from partwise.config import ConfigError
from partwise.data import Dataset
from partwise.train.config import RunConfig

CALIBRATIONS_FILE = Path("runs") / "calibrations.json"
GUESSED_SD = 0.005
"""The assumed seed SD of a small character model, in nats, if nothing was measured."""

GUESSED_ACCURACY_SD = 0.1
"""The assumed seed SD of an accuracy; seeds differ widely while a task is being learned."""

CONTROL_POWER = 0.95
"""The power required of a positive control."""


@dataclass(frozen=True)
class Noise:
    """The expected noise of a comparison: the SD of one run, the correlation of a pair, and the source of both."""

    sd: float
    correlation: float
    source: str


def setting_key(config: RunConfig, dataset: Dataset) -> str:
    """Task, model size and training length as text."""
    train = config.train
    length = f"{train.steps} steps of {train.batch_size} x {config.seq_len}"
    return f"{config.data} {dataset.hash[:16]}, {config.model.parameters()} parameters, {length}"


def read_calibrations(path: Path = CALIBRATIONS_FILE) -> dict[str, Any]:
    """All calibrations of this working folder; empty if the file is missing or damaged."""
    try:
        store = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return store if isinstance(store, dict) else {}


def find_calibration(plan: Plan, dataset: Dataset) -> dict[str, Any] | None:
    """The calibration of the plan's task, size and number of steps, if any; calibrations cover the loss only."""
    entry = read_calibrations().get(setting_key(plan.arms[0].config, dataset)) if plan.rules.lower_is_better else None
    return entry if isinstance(entry, dict) else None


def expected_noise(plan: Plan, dataset: Dataset, sd: float | None = None) -> Noise:
    """The expected noise, from the first available of: the user's `sd`, the store, an earlier comparison, a guess.

    An earlier comparison has the same task, size and steps.
    """
    if sd is not None:
        return Noise(sd, 0.0, f"a seed SD of {sd:g} and no correlation")
    entry = find_calibration(plan, dataset)
    if entry and isinstance(entry.get("sd"), float) and entry["sd"] > 0:
        r = max(0.0, float(entry.get("correlation") or 0.0))
        name = entry.get("name")
        return Noise(entry["sd"], r, f"the seed SD {entry['sd']:.4f} and correlation {r:.2f} calibrated by {name}")
    if earlier := earlier_sd(Path("runs"), plan):
        spread, r, name = earlier
        return Noise(spread, r, f"the seed SD {spread:.4f} and paired correlation {r:.2f} of {name}")
    if plan.rules.lower_is_better:
        source = f"a guessed seed SD of {GUESSED_SD:g} and no correlation (partwise calibrate measures it)"
        return Noise(GUESSED_SD, 0.0, source)
    source = f"a guessed seed SD of {GUESSED_ACCURACY_SD:g} and no correlation (set another with --sd)"
    return Noise(GUESSED_ACCURACY_SD, 0.0, source)


def positive_control_power(plan: Plan, dataset: Dataset) -> float | None:
    """The power of the positive control, if its effect was calibrated. Raises ConfigError if it is below 95%."""
    controls = [claim for claim in plan.claims if claim.role == "positive"]
    entry = find_calibration(plan, dataset)
    if (
        not controls
        or not entry
        or entry.get("positive_control") != controls[0].arm
        or entry.get("control_effect") is None
    ):
        return None
    noise = expected_noise(plan, dataset)
    power = power_over_looks(float(entry["control_effect"]), noise.sd, plan.looks, noise.correlation, plan.rules.alpha)
    if power < CONTROL_POWER:
        raise ConfigError(
            f"--positive-control {controls[0].arm!r}: its effect of {entry['control_effect']:+.4f} has {power:.0%} power, "
            f"and a control needs {CONTROL_POWER:.0%}: choose a larger change or more --seeds"
        )
    return power


def earlier_sd(folder: Path, plan: Plan) -> tuple[float, float, str] | None:
    """(seed SD, paired correlation, name) of the latest earlier comparison of the same task, model size and steps."""
    first = plan.arms[0].config
    setting = (str(first.data), first.train.steps, first.train.batch_size, first.seq_len, first.model.parameters())
    for path in sorted(folder.glob("*/results.json"), key=lambda path: path.stat().st_mtime, reverse=True):
        try:
            results = Results.from_json(path)
        except ConfigError:
            continue
        task = results.task
        if task is None or not results.claims or results.protocol.metric != plan.rules.metric:
            continue
        effect, parameters = results.claims[0].effect, results.arms[0].parameters
        if (task.data, task.steps, task.batch_size, task.seq_len, parameters) == setting and effect.sd_pooled:
            return effect.sd_pooled, effect.correlation or 0.0, path.parent.name
    return None

"""The store of calibrations, and the noise to expect of a comparison before it runs.

`runs/calibrations.json` has one entry per configuration; `partwise plan` and all comparisons read it.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from partwise.comparison.design.plan import Plan
from partwise.comparison.results import Results
from partwise.comparison.stats.noise import Noise, given_noise, pooled_noise
from partwise.comparison.stats.simulated_power import Design, one_real_claim
from partwise.config import ConfigError, digest
from partwise.json_files import write_json
from partwise.messages import quantity
from partwise.records import DamagedFileError, read_record

CALIBRATIONS_FILE = Path("runs") / "calibrations.json"
FORMAT = 3
"""The version of an entry of the store."""

NO_DATA = ""
"""The hash of a command's data, which partwise does not know."""

CALIBRATED_METRIC = "validation loss"
"""The metric of calibrations of training runs; those of commands name their own."""

GUESSED_SD = 0.007
"""The assumed SD of a paired difference of small character models, in nats, if nothing was measured."""

GUESSED_ACCURACY_SD = 0.14
"""The assumed SD of a paired difference of accuracies; seeds differ widely while a task is being learned."""

CONTROL_POWER = 0.95
"""The power required of a positive control."""

PILOT = "a pilot of the real arms (`partwise compare ... --seeds 4`) measures theirs, and `plan` then uses it"

SETTINGS_WITHOUT_EFFECT = (
    "seed",
    "device",
    "attention_backend",
    "ffn_backend",
    "block_backend",
    "threads",
    "deterministic",
    "save_every",
    "log",
)
"""Training settings that do not change the distribution of a result."""


def configuration_key(config: Mapping[str, Any], data_hash: str) -> str:
    """The digest of a baseline's configuration, without its seed and the settings of the machine, and of its data.

    The data of a command are `NO_DATA`.
    """
    if "train" in config:
        train = {key: value for key, value in config["train"].items() if key not in SETTINGS_WITHOUT_EFFECT}
        config = {**config, "train": train}
    return digest({**config, "data_hash": data_hash})


def read_calibrations(path: Path = CALIBRATIONS_FILE) -> dict[str, dict[str, Any]]:
    """All calibrations of this working folder, without those of older versions and those that were changed."""
    return _read(path)[0]


def write_calibration(key: str, entry: dict[str, Any], path: Path = CALIBRATIONS_FILE) -> None:
    """Add an entry, with the hash of its content and key, or replace the one of the same key."""
    path.parent.mkdir(exist_ok=True)
    write_json(path, {**_read(path)[0], key: {**entry, "sha256": digest([key, entry])}})


def ignored_calibrations(path: Path = CALIBRATIONS_FILE) -> str | None:
    """One line about what `read_calibrations` leaves out, if it does."""
    return _read(path)[1]


def _read(path: Path) -> tuple[dict[str, dict[str, Any]], str | None]:
    """The calibrations, and a line about those that are ignored."""
    if not path.exists():
        return {}, None
    try:
        stored = read_record(path)
    except DamagedFileError as error:
        return {}, f"{error}: its calibrations are ignored; run `partwise calibrate` again"
    entries = {key: entry for key, entry in stored.items() if _is_current(key, entry)}
    ignored = len(stored) - len(entries)
    line = (
        f"{path}: ignored {quantity(ignored, 'calibration')} from an older version or edited since; run `partwise calibrate` "
        "again"
    )
    return entries, line if ignored else None


def _is_current(key: str, entry: Any) -> bool:
    if not isinstance(entry, dict) or entry.get("format") != FORMAT:
        return False
    content = {name: value for name, value in entry.items() if name != "sha256"}
    return entry.get("sha256") == digest([key, content])


def find_calibration(plan: Plan, data_hash: str) -> dict[str, Any] | None:
    """The calibration of the plan's baseline in its metric, if any that did not fail."""
    entry = read_calibrations().get(configuration_key(plan.arms[0].config.to_stored(), data_hash))
    usable = entry and entry.get("failure") is None and entry.get("metric", CALIBRATED_METRIC) == plan.rules.metric
    return entry if usable else None


def expected_noise(plan: Plan, data_hash: str, sd: float | None = None) -> Noise:
    """The expected noise of a difference: the known one, else a guess."""
    if known := known_noise(plan, data_hash, sd):
        return known
    if plan.rules.lower_is_better:
        return Noise(
            GUESSED_SD, float("inf"), "a guess (a comparison or `partwise calibrate` measures it, --sd sets it)"
        )
    return Noise(GUESSED_ACCURACY_SD, float("inf"), "a guess (a comparison measures it, --sd sets it)")


def known_noise(plan: Plan, data_hash: str = NO_DATA, sd: float | None = None) -> Noise | None:
    """The user's `sd`, else the noise of an earlier comparison with the same baseline and data, else of A/A pairs."""
    if sd is not None:
        return given_noise(sd)
    if earlier := earlier_noise(Path("runs"), plan, data_hash):
        return earlier
    entry = find_calibration(plan, data_hash)
    if not entry:
        return None
    source = f"from the A/A pairs of {entry['name']}, {calibration_limits(entry['family'], entry['correlation'])}"
    return Noise(entry["sd_difference"], entry["seeds"] - 1, source)


def calibration_limits(family: str, correlation: float) -> str:
    """How the noise of A/A pairs differs from that of real arms, and the remedy; without a `family` no pair shares a seed."""
    if family:
        return (
            f"whose runs correlate (r = {correlation:.2f}) more than those of different arms: a real change may need two or "
            f"three times this SD; {PILOT}"
        )
    return f"whose trials share no seed, which overstates the noise of paired arms: {PILOT}"


def earlier_noise(folder: Path, plan: Plan, data_hash: str) -> Noise | None:
    """The noise of the latest comparison with the same baseline, data and metric: of the same arms, if it has any of them."""
    key = configuration_key(plan.arms[0].config.to_stored(), data_hash)
    arms = {claim.arm for claim in plan.claims if claim.role == "claim"}
    for path in sorted(folder.glob("*/results.json"), key=lambda path: path.stat().st_mtime, reverse=True):
        try:
            results = Results.from_json(path)
        except ConfigError:
            continue
        found_hash = (results.task.hash if results.task else None) or ""
        if results.protocol.metric != plan.rules.metric or configuration_key(results.config, found_hash) != key:
            continue
        claims = [claim for claim in results.claims if claim.role == "claim"]
        claims = [claim for claim in claims if not is_null(results, claim.effect.arm)]
        found = [claim.exploratory or claim.effect for claim in claims]  # with the seeds that were added later
        found = [effect for effect in found if effect.arm in arms] or found
        pairs = [[x for x in effect.differences if x is not None] for effect in found]
        n = sum(map(len, pairs))
        source = f"from {n} pairs of {path.parent.name}, an earlier comparison with this baseline"
        r = mean_correlation([effect.correlation for effect in found])
        noise = pooled_noise(pairs, source + ("" if r is None else f"; its paired runs correlate with r = {r:.2f}"), r)
        if noise:
            return noise
    return None


def mean_correlation(values: Sequence[float | None]) -> float | None:
    """The mean correlation of the paired runs of several claims; None if none is known."""
    known = [value for value in values if value is not None]
    return math.fsum(known) / len(known) if known else None


def is_null(results: Results, name: str) -> bool:
    """Whether an arm is the baseline with other initial weights or on other seeds, as in a calibration."""
    arm = results.arm(name)
    changed = [change[0] for change in arm.config_changes] if arm else []
    return changed in (["train.reinitialize"], ["seed_offset"])


def positive_control_power(plan: Plan, data_hash: str) -> float | None:
    """The power of the positive control, if its effect was calibrated. Raises ConfigError if it is below 95%."""
    controls = [claim for claim in plan.claims if claim.role == "positive"]
    entry = find_calibration(plan, data_hash)
    if not controls or not entry or entry["positive_control"] != controls[0].arm or not entry["control_sd"]:
        return None
    noise = Noise(entry["control_sd"], entry["seeds"] - 1, "")
    rules = plan.rules
    design = Design(plan.looks, 1, rules.margin, rules.alpha, method=rules.method)  # a control is a family of its own
    power = one_real_claim(design, entry["control_effect"], noise.upper_sd).better
    if power < CONTROL_POWER:
        raise ConfigError(
            f"--positive-control {controls[0].arm!r}: its effect of {entry['control_effect']:+.4f} has {power:.0%} power, "
            f"and a control needs {CONTROL_POWER:.0%}: choose a larger change or more --seeds"
        )
    return power

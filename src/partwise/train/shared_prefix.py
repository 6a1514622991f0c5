"""Runs that differ only in their number of steps: leading steps are equal as long as nothing depends on that number."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from partwise.compute.backend_plan import BackendPlan
from partwise.config import ConfigError
from partwise.config.overrides import difference
from partwise.model import Transformer, meta_model
from partwise.records import DamagedFileError, read_record
from partwise.train.config import RunConfig
from partwise.train.result import WITHOUT_EFFECT


@dataclass(frozen=True)
class SharedRun:
    """How a run belongs to runs of other lengths: the folder of the run that it extends, and the steps of the run that will
    extend it."""

    of: Path | None = None
    to: int | None = None


ALONE = SharedRun()


def with_steps(config: RunConfig, steps: int) -> RunConfig:
    """The configuration with another number of steps and the same number of steps between evaluations."""
    changes = {"steps": steps, "eval_every": config.eval_every}
    return config.model_copy(update={"train": config.train.model_copy(update=changes)})


def shared_steps(config: RunConfig, steps: int, model: Transformer) -> int:
    """The number of leading steps that a run of this model has in common with an equal run of another number of steps.

    The steps agree while the learning rate, the weight of multi-token prediction and the average of the weights do: with
    `schedule=wsd` until the decay of the shorter run begins (Hu et al. 2024, arXiv:2404.06395), with a cosine until the end
    of its warm-up.
    """
    lengths = (config.train.steps, steps)
    for step in range(min(lengths)):
        rates = {config.schedule.factor(step, length) for length in lengths}
        weights = {model.ahead.loss_weight_at(step / length) for length in lengths}
        averaging = {config.averaging.rate(step, length) for length in lengths}
        if len(rates) > 1 or len(weights) > 1 or len(averaging) > 1:
            return step
    return min(lengths)


def steps_of_prefix(folder: Path, config: RunConfig, data_hash: str, plan: BackendPlan) -> int | None:
    """The steps of the run in a folder if it differs from this one in nothing else, or None. Raises DamagedFileError."""
    metadata = read_record(folder / "run.json")
    try:
        stored, stored_plan = RunConfig.from_stored(metadata.record("config")), BackendPlan.from_dict(metadata["plan"])
    except (ConfigError, KeyError, TypeError):
        raise DamagedFileError(f"{folder / 'run.json'} is damaged or of another version") from None
    other = with_steps(stored, config.train.steps).to_stored()
    changed = {path for path, _, _ in difference(other, with_steps(config, config.train.steps).to_stored())}
    same_data = metadata.record("data").get("hash") == data_hash
    same = changed <= set(WITHOUT_EFFECT) and same_data and stored_plan.difference(plan) is None
    return stored.train.steps if same else None


def total_steps(config: RunConfig, horizons: Sequence[int]) -> int:
    """The steps that runs of these lengths, in ascending order, take if each starts from what it shares with the previous."""
    model = meta_model(config.model)
    shared = (shared_steps(with_steps(config, short), long, model) for short, long in itertools.pairwise(horizons))
    return sum(horizons) - sum(shared)

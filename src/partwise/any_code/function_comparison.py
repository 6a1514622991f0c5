"""A comparison of one training function under several settings."""

import hashlib
import inspect
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from partwise.any_code.function_execution import TrainingFunction, call, check_function, name_of
from partwise.comparison.design.plan import Arm, Plan
from partwise.comparison.experiment import Comparison
from partwise.comparison.stats.effect import BaselineDesign
from partwise.comparison.stats.protocol import Claim, Rules
from partwise.comparison.trials.executor import Executor
from partwise.comparison.trials.job import FUNCTIONS
from partwise.comparison.trials.local import LocalExecutor
from partwise.comparison.trials.stored import JOB, StoredTrial, prepare_trial
from partwise.comparison.trials.trial import Trial
from partwise.comparison.trials.workload import Workload
from partwise.config import ConfigError, digest
from partwise.config.overrides import difference
from partwise.config.yaml import parse_value, show
from partwise.files import working_folder
from partwise.machine import hardware
from partwise.records import read_record
from partwise.run_names import check_run_name, default_run_name


@dataclass(frozen=True)
class FunctionConfig:
    """The keyword arguments of one arm; `function` and the hash of its `source` are those of all arms."""

    function: str
    source: str | None
    settings: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        return {"function": self.function, "source": self.source, **self.settings}

    def to_stored(self) -> dict[str, Any]:
        return self.to_dict()

    @classmethod
    def from_stored(cls, values: Mapping[str, Any]) -> Self:
        settings = {key: value for key, value in values.items() if key not in ("function", "source")}
        return cls(values["function"], values["source"], settings)

    def with_override(self, override: str) -> Self:
        """The configuration with one keyword argument changed."""
        key, _, text = override.partition("=")
        return replace(self, settings={**self.settings, key: parse_value(text)})


class InThisProcess(Executor):
    """Calls the function in this process, one trial at a time."""

    def __init__(self, function: TrainingFunction) -> None:
        self.function = function
        self._waiting: list[Trial] = []

    def submit(self, trials: Sequence[Trial]) -> None:
        self._waiting += trials

    def watch(self, seconds: float) -> Sequence[Trial]:
        if not self._waiting:
            return ()
        trial = self._waiting.pop(0)
        trial.status = "running"
        stored = read_record(trial.folder / JOB)
        try:
            trial.status = call(self.function, trial.folder, stored["job"], stored["hash"])
        except KeyboardInterrupt:
            trial.status = "interrupted"
            raise
        return [trial]

    def cancel(self) -> None:
        self._waiting.clear()


@dataclass
class FunctionWorkload(Workload):
    """Calls of a function, in this process or, with `workers`, in that many processes."""

    function: TrainingFunction
    workers: int | None = None

    def prepare(self, plan: Plan[FunctionConfig]) -> str:
        return digest(plan.arms[0].config.source)

    def choose_setup(self, plan: Plan[FunctionConfig], timed: bool) -> dict[str, Any]:
        return {"machine": hardware()}

    def restore_setup(self, plan: Plan[FunctionConfig], setup: Mapping[str, Any]) -> None:
        """Nothing was chosen."""

    def executor(self) -> Executor:
        return LocalExecutor(self.workers, executed_by=FUNCTIONS) if self.workers else InThisProcess(self.function)

    def trial(self, arm: Arm[FunctionConfig], seed: int, folder: Path) -> StoredTrial:
        job = {"arm": arm.name, "seed": seed, "source": arm.config.source, "settings": dict(arm.config.settings)}
        function = self.function
        place = {"module": function.__module__, "name": name_of(function), "path": str(module_folder(function))}
        return prepare_trial(folder, arm.name, seed, job, FUNCTIONS, place)


def module_folder(function: TrainingFunction) -> Path:
    """The folder from which the function's module is imported."""
    module = sys.modules.get(function.__module__)
    path = getattr(module, "__file__", None)
    depth = function.__module__.count(".")
    return Path(path).resolve().parents[depth] if path else working_folder()


def make_function_comparison(
    function: TrainingFunction,
    arms: Mapping[str, Mapping[str, Any]],
    *,
    seeds: int = 5,
    first_seed: int = 0,
    looks: Sequence[int] = (),
    design: BaselineDesign = "paired",
    baseline_runs: int = 1,
    margin: float,
    alpha: float = 0.05,
    failure: float | None = None,
    online: bool = False,
    metric: str = "value",
    unit: str = "",
    higher_is_better: bool = False,
    name: str | None = None,
    workers: int | None = None,
) -> Comparison:
    """The comparison, validated but not started. Raises ConfigError."""
    check_function(function)
    if not margin > 0:
        raise ConfigError(f"margin={margin!r}: give the largest difference of {metric} that does not matter to you")
    if len(arms) < 2:
        raise ConfigError(
            "arms needs at least two, the first being the baseline, as in {'base': {}, 'wide': {'width': 96}}"
        )
    if workers and (function.__module__ == "__main__" or "<" in name_of(function)):
        raise ConfigError(
            f"workers={workers}: worker processes cannot import {name_of(function)}: put it into a file of its own and "
            "import it, or leave out workers"
        )
    source = source_hash(function)
    made = tuple(
        Arm(arm, words(settings), FunctionConfig(name_of(function), source, plain(arm, settings)))
        for arm, settings in arms.items()
    )
    for number, arm in enumerate(made):
        for other in made[:number]:
            if not difference(other.config.to_dict(), arm.config.to_dict()):
                raise ConfigError(f"arm {arm.name!r} has the same settings as {other.name!r}: change something else")
    rules = Rules(
        margin=margin,
        alpha=alpha,
        looks=tuple(looks),
        design=design,
        baseline_runs=baseline_runs,
        failure=failure,
        lower_is_better=not higher_is_better,
        metric=metric,
        unit=unit,
    )
    claims = tuple(Claim(arm.name, made[0].name) for arm in made[1:])
    plan = Plan(made, max(looks, default=seeds), rules, claims, first_seed)
    path = Path("runs") / (check_run_name(name) if name else default_run_name([name_of(function), *arms]))
    return Comparison(path, plan, FunctionWorkload(function, workers), online=online)


def plain(arm: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings in their stored form. Raises ConfigError for a value that is not JSON, such as a model."""
    try:
        found: dict[str, Any] = json.loads(json.dumps(dict(settings)))
    except (TypeError, ValueError):
        found = {}
    for key, value in settings.items():
        if key in ("seed", "report", "function", "source"):
            raise ConfigError(f"arms[{arm!r}][{key!r}]: the name is taken; choose another")
        if found.get(key) != value and found.get(key) != list_of(value):
            raise ConfigError(
                f"arms[{arm!r}][{key!r}]={show(repr(value))}: settings are stored with the results, so they must be numbers, "
                "text, lists or mappings; make other values inside the function"
            )
    return found


def list_of(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def words(settings: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(f"{key}={value}" for key, value in settings.items())


def source_hash(function: TrainingFunction) -> str | None:
    """SHA-256 of the function's source, so that another version of it does not continue a comparison; None without one."""
    try:
        return hashlib.sha256(inspect.getsource(function).encode()).hexdigest()
    except (OSError, TypeError):
        return None

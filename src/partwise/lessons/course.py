"""Run a lesson: its comparisons, then the measures of each trained model."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from partwise.ablation.run_comparison import RunComparison, make_comparison
from partwise.comparison.experiment import Comparison
from partwise.comparison.results import Results
from partwise.config import ConfigError
from partwise.json_files import write_json
from partwise.lessons.answers import Measured, find_value
from partwise.lessons.lesson import CHOOSING, STORED, Lesson
from partwise.lessons.measures import MEASURES
from partwise.records import read_record

MEASURES_FILE = "lesson.json"
"""The measures of a trained model, in the folder of its run."""

Progress = Callable[[Comparison], AbstractContextManager[Callable[[Comparison], None]]]


@dataclass(frozen=True)
class LessonRun:
    """A reader's run of a lesson, or one that stores the answer: comparisons below `runs/`, by their names in the lesson."""

    lesson: Lesson
    comparisons: dict[str, RunComparison]
    shorter: int = 1
    """Runs are this many times shorter than the lesson says, in tests; steps are named as in the lesson."""

    @classmethod
    def plan(
        cls,
        lesson: Lesson,
        first_seed: int = 0,
        seeds: int | None = None,
        common: Sequence[str] = (),
        name: str = "",
        shorter: int = 1,
    ) -> "LessonRun":
        """Validated and not started; `common` overrides what all arms share. Raises ConfigError."""
        name = name or lesson.name + (f"-from-{first_seed}" if first_seed else "")
        found = {}
        for key, request in lesson.head.runs.items():
            words = [shortened(word, shorter) for word in request.common]
            changes = {"first_seed": first_seed, "seeds": seeds or request.seeds, "common": [*words, *common]}
            made = make_comparison(request.model_copy(update=changes), name if key == "main" else f"{name}-{key}")
            made.origin = {"lesson": str(lesson.number)}
            found[key] = made
        return cls(lesson, found, shorter)

    @property
    def is_started(self) -> bool:
        return any(comparison.is_started for comparison in self.comparisons.values())

    @property
    def minutes_left(self) -> float:
        """An estimate for this machine, measured over a few steps of training."""
        return sum(each.estimate(each.finished_runs()).minutes_left for each in self.comparisons.values())

    def run(self, show: Progress | None = None, on_measuring: Callable[[int], None] = lambda models: None) -> Measured:
        """Train what is missing and measure every model. Raises ConfigError, or KeyboardInterrupt after saving.

        `on_measuring` is called with the number of trained models before they are measured, which takes a while.
        """
        measured = {}
        for key, comparison in self.comparisons.items():
            with show(comparison) if show else nullcontext(ignore) as progress:
                results = comparison.run(progress)
            measures = self.lesson.head.measures.get(key, [])
            models = sum(not (trial.folder / MEASURES_FILE).exists() for trial in comparison.trials) if measures else 0
            if models:
                on_measuring(models)
            measured[key] = self.measure(comparison, results, measures)
        return measured

    def measure(
        self, comparison: RunComparison, results: Results, measures: Sequence[str]
    ) -> dict[str, dict[str, dict[int, float]]]:
        """The values of each arm: losses at each evaluation, and measures of the trained models."""
        found: dict[str, dict[str, dict[int, float]]] = {}
        for arm in results.arms:
            for trial in arm.trials:
                values = {f"loss@{step * self.shorter}": loss for step, loss, _ in trial.evaluations}
                values["loss"] = math.nan if trial.value is None or trial.failed else trial.value
                folder = next(
                    each.folder for each in comparison.trials if (each.arm, each.seed) == (arm.name, trial.seed)
                )
                values |= measure_run(folder, measures)
                for measure, value in values.items():
                    found.setdefault(arm.name, {}).setdefault(measure, {})[trial.seed] = value
        return found

    def values(self, measured: Measured) -> dict[str, float]:
        """Each quantity of the lesson."""
        return {name: find_value(quantity, measured) for name, quantity in self.lesson.head.quantities.items()}

    def facts(self) -> tuple[str, str]:
        """The precision of the runs, and the processor."""
        provenance = next(iter(self.comparisons.values())).results.provenance
        return str(provenance.runtime.get("precision")), str(provenance.machine.get("cpu"))


def shortened(word: str, times: int) -> str:
    """`train.steps=600` -> `train.steps=6` for 100 times fewer steps."""
    key, _, value = word.partition("=")
    return f"{key}={int(value) // times}" if key in ("train.steps", "train.eval_every") else word


def ignore(comparison: Comparison) -> None:
    """Show nothing."""


def measure_run(folder: Path, names: Sequence[str]) -> dict[str, float]:
    """The measures of the trained model in a run's folder; those that are stored there are not taken again."""
    if not names:
        return {}
    path = folder / MEASURES_FILE
    stored: dict[str, Any] = read_record(path) if path.exists() else {}
    if missing := [name for name in names if name not in stored]:
        stored |= dict(take(folder.resolve(), missing))  # by its whole path, an opened run is kept
        write_json(path, stored)
    return {name: stored[name] for name in names if stored[name] is not None}


def take(folder: Path, names: Sequence[str]) -> Iterator[tuple[str, float | None]]:
    for name in names:
        kind, _, argument = name.partition("@")
        if kind not in MEASURES:
            raise ConfigError(f"measure {name}: expected one of {', '.join(MEASURES)}")
        yield name, MEASURES[kind](folder, argument)


def check_first_seed(first_seed: int, seeds: int) -> None:
    """Refuse the seeds that the course has used itself. Raises ConfigError."""
    for used, purpose in ((CHOOSING, "chose its settings"), (STORED, "stores its answers")):
        if first_seed < used.stop and first_seed + seeds > used.start:
            raise ConfigError(
                f"--first-seed {first_seed}: with seeds {used.start} to {used.stop - 1} the course {purpose}, and yours "
                f"should be others: choose one below {CHOOSING.start - seeds + 1}, or from {STORED.stop}"
            )

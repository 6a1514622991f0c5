"""Experiments of any code: YAML files that were named when the studio was started. No other is read or run."""

import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from partwise.any_code.command_comparison import CommandComparison, make_command_comparison
from partwise.any_code.experiment_file import experiment_from_yaml
from partwise.comparison.ledger.predictions import Prediction
from partwise.config import ConfigError
from partwise.config.yaml import read_yaml
from partwise.studio.questions import Allowed, int_of, name_of, number_of, predict_words, text_of

KEYS = {"experiment", "seeds", "margin", "name"}
SEEDS = 5
"""Without another number, as `partwise compare` has it."""


@dataclass(frozen=True)
class ExperimentQuestion:
    """A question that the YAML file of an experiment asks."""

    file: str
    name: str
    seeds: int
    margin: float | None

    @classmethod
    def from_page(
        cls, values: Mapping[str, Any], allowed: Allowed, is_taken: Callable[[str], bool] = lambda name: False
    ) -> "ExperimentQuestion":
        """The question of a page's fields; without a name, one that is not taken. Raises ConfigError."""
        if unknown := set(values) - KEYS:
            raise ConfigError(f"{sorted(unknown)[0]!r}: no field of an experiment")
        file = text_of(values, "experiment")
        if file not in allowed.experiments:
            named = ", ".join(allowed.experiments) or "none"
            raise ConfigError(f"{file}: the studio runs the experiments that it was started with: {named}")
        seeds = int_of(values["seeds"], "seeds") if values.get("seeds") else SEEDS
        margin = number_of(values["margin"], "margin") if values.get("margin") else None
        return cls(file, name_of(values, [Path(file).stem], is_taken), seeds, margin)

    def compare_words(self, prediction: Prediction | None) -> list[str]:
        """The words of `partwise compare`, without the program."""
        margin = ["--margin", f"{self.margin:g}"] if self.margin else []
        words = ["compare", self.file, "--seeds", str(self.seeds), *margin, "--name", self.name]
        return words + predict_words(prediction)

    def plan_words(self) -> list[str]:
        """The words of `partwise plan`."""
        return ["plan", self.file, *(["--margin", f"{self.margin:g}"] if self.margin else []), "--json"]

    def describe(self) -> dict[str, Any]:
        """The arms, the rules and the command. Raises ConfigError with the reason it cannot be run."""
        path = Path(self.file)
        experiment = experiment_from_yaml(read_yaml(path), path)
        settings: dict[str, Any] = {"seeds": self.seeds, "margin": self.margin}
        made: CommandComparison = make_command_comparison(experiment, path.parent, self.name, **settings)
        plan = made.plan
        return {
            "question": plan.question,
            "notes": [f"It runs: {experiment.command}"],
            "arms": [{"name": arm.name} for arm in plan.arms],
            "unit": plan.rules.unit,
            "metric": plan.rules.metric,
            "margin": plan.rules.margin,
            "lower_is_better": plan.rules.lower_is_better,
            "seeds": plan.seeds,
            "name": self.name,
            "command": shlex.join(["partwise", *self.compare_words(None)]),
        }


def check_experiment(file: str) -> None:
    """Raise ConfigError for a file that describes no experiment of commands."""
    if not Path(file).is_file():
        raise ConfigError(f"{file}: no such file")
    if "command" not in read_yaml(Path(file)):
        raise ConfigError(f"{file}: expected an experiment, which has a command, its arms and its metric")

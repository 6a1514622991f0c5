"""The settings of a search, stored once: what runs, what is measured, for how long, and what no candidate may change."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from partwise.any_code.candidates import check_command, check_fixed, check_known, is_outside
from partwise.any_code.experiment_file import Metric, TrialLimits
from partwise.any_code.result_files import lies_in_folder
from partwise.any_code.template import split_words
from partwise.any_code.worktrees import Repository
from partwise.comparison.search.rule import Design
from partwise.config import Config, ConfigError
from partwise.config.neutral import Neutral
from partwise.config.yaml import show

OVERRUN = 3
"""A run is ended, and has failed, after this multiple of its minutes: programs keep their own budget, and start and compile
outside it."""


class SearchSettings(Config):
    """What all tries of a search have in common."""

    command: str
    metric: Metric
    minutes: float = Field(gt=0)
    start: str
    """What the first best was called."""
    commit: str
    """The commit that `start` was."""
    inside: str
    """The folder of the repository in which commands run."""
    alpha: float = 0.05
    rule: dict[str, Any]
    """The fields of the design but for `alpha` and the direction, as they were when the search started."""
    fixed: list[str] = Field(default_factory=list)
    evaluate: str | None = None
    share: list[str] = Field(default_factory=list)
    setup: str | None = None
    workers: Annotated[int, Neutral(1), Field(gt=0)] = 1
    """Runs at a time. One setting for all runs: those beside others may be slower, and see less in their time."""

    @property
    def limits(self) -> TrialLimits:
        return TrialLimits(minutes=OVERRUN * self.minutes)

    @property
    def design(self) -> Design:
        stored: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in self.rule.items()
        }
        return Design(**stored, alpha=self.alpha, lower_is_better=self.metric.better == "lower")

    def fixed_paths(self, repository: Repository) -> tuple[str, ...]:
        return check_fixed(repository, self.commit, self.fixed)


def make_settings(given: Mapping[str, Any], metric: Mapping[str, Any], repository: Repository) -> SearchSettings:
    """The settings of a new search, checked. Raises ConfigError."""
    start = given.get("start") or "HEAD"
    settings = SearchSettings.from_dict(
        {
            **{key: value for key, value in given.items() if value is not None},
            "metric": Metric.from_dict(metric, "--metric"),
            "start": start,
            "commit": repository.commit_of(start),
            "inside": repository.inside.as_posix(),
            "rule": stored_rule(Design()),
        }
    )
    _ = settings.design  # raises for an alpha that is none
    check_command(settings.command)
    settings.fixed_paths(repository)
    repository.ignored_link_targets(settings.share)
    check_metric_source(settings)
    if settings.evaluate is not None:
        check_evaluation(settings)
    return settings


def stored_rule(design: Design) -> dict[str, Any]:
    """The fields that no option sets, as JSON has them."""
    fields = {key: value for key, value in asdict(design).items() if key not in ("alpha", "lower_is_better")}
    return {key: list(value) if isinstance(value, tuple) else value for key, value in fields.items()}


def check_metric_source(settings: SearchSettings) -> None:
    source = settings.metric.source
    if settings.metric.is_stream or (lies_in_folder(source) and settings.evaluate is None):
        return
    if lies_in_folder(source):
        raise ConfigError(
            f"--metric {source}: with --evaluate the program under test could write this file itself: print the value, or "
            "write it to a path without {folder}"
        )
    if is_outside(source):
        raise ConfigError(
            f"--metric {source}: runs would read each other's file: give a path within the repository or below {{folder}}"
        )


def check_evaluation(settings: SearchSettings) -> None:
    """Raise ConfigError unless the evaluation's program is fixed."""
    assert settings.evaluate is not None
    words = [Path(word).as_posix() for word in split_words(settings.evaluate)]
    if not any(is_below(word, path) for word in words for path in settings.fixed):
        raise ConfigError(
            f"--evaluate {show(settings.evaluate)}: name its program with --fixed, or a candidate could change how it is "
            "measured"
        )
    check_known(settings.evaluate)


def is_below(word: str, path: str) -> bool:
    return Path(path) in (Path(word), *Path(word).parents)


def check_same(settings: SearchSettings, given: Mapping[str, Any], metric: Mapping[str, Any] | None, name: str) -> None:
    """Raise ConfigError for a setting that is not that of the search."""
    asked: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
    if metric is not None:
        asked["metric"] = Metric.from_dict(metric, "--metric")
    for key, value in asked.items():
        stored = getattr(settings, key)
        if stored != value:
            raise ConfigError(
                f"--{key} {shown(value)}: search {name} has {shown(stored)}, and a search keeps its settings: leave the "
                "option out, or choose another --search"
            )


def shown(value: Any) -> str:
    if isinstance(value, Metric):
        return show(value.pattern or f"{value.source}:{value.value}") + f" ({value.better} is better)"
    return (
        " ".join(map(str, value)) or "none"
        if isinstance(value, Sequence) and not isinstance(value, str)
        else str(value)
    )

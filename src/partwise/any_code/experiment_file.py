"""The YAML file that describes a comparison of commands: the command, its arms, and where its metric is found."""

import math
import re
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field, model_validator

from partwise.config import Config, ConfigError
from partwise.config.yaml import show
from partwise.messages import quantity

Setting = str | int | float | bool
TENSORBOARD = "tensorboard"
RESERVED = ("seed", "arm", "folder", "args")
"""Placeholders that every command has; all others are settings."""


class NumberSource(Config):
    """Where numbers are found: a pattern in the output of the command, or a key or column of a file that it writes."""

    model_config = ConfigDict(populate_by_name=True)

    source: str = Field("stdout", alias="from")
    """`stdout`, `stderr`, or a path, which may have placeholders: JSON, JSON lines (.jsonl) or CSV by its suffix;
    `tensorboard` for the event files at or below `{folder}`."""
    pattern: str | None = None
    """A regular expression; its last group is the value. Without it, `value` is read from a file."""
    value: str | None = None
    """A key, with dots for nested ones, a column, or the tag of a scalar in TensorBoard's event files."""

    @model_validator(mode="after")
    def check_source(self) -> Self:
        if self.source == TENSORBOARD and (self.pattern is not None or self.value is None):
            raise ValueError("`from: tensorboard` needs `value`, the tag of a scalar, and no `pattern`")
        if (self.pattern is None) == (self.value is None):
            raise ValueError("give either `pattern`, a regular expression, or `value`, a key of the file in `from`")
        if self.value is not None and self.is_stream:
            raise ValueError(
                f"`value` needs a file in `from`, not {self.source}: give `from: '{{folder}}/FILE'`, or `pattern` for the "
                "output"
            )
        if self.pattern is not None and compile_pattern(self.pattern).groups < self.n_groups:
            example = "val loss (\\S+)" if self.n_groups == 1 else "step (\\d+): val loss (\\S+)"
            raise ValueError(f"the pattern needs {quantity(self.n_groups, 'group')} in parentheses, as in '{example}'")
        return self

    @property
    def is_stream(self) -> bool:
        """Whether it is the output of the command rather than a file."""
        return self.source in ("stdout", "stderr")

    @property
    def n_groups(self) -> int:
        return 1


class Metric(NumberSource):
    """The number that is compared."""

    name: str = Field("value", min_length=1)
    unit: str = ""
    better: Literal["lower", "higher"] = "lower"
    margin: float | None = Field(None, gt=0)
    failure: float | None = None
    """A value worse than this is a failed trial."""
    take: Literal["last", "first", "min", "max"] = "last"
    """Which of several matches."""


class Curve(NumberSource):
    """A number over training, shown beside the verdict and not judged."""

    step: str | None = None
    """The key or column of the step; with a pattern, the step is its first group."""

    @model_validator(mode="after")
    def check_step(self) -> Self:
        if self.source == TENSORBOARD and self.step is not None:
            raise ValueError("event files of TensorBoard have their own steps: leave out `step`")
        if self.value is not None and self.step is None and self.source != TENSORBOARD:
            raise ValueError("`step` is missing: give the key or column of the step")
        return self

    @property
    def n_groups(self) -> int:
        return 2


class TrialLimits(Config):
    """The resources and the time limit of one trial."""

    cpus: int = Field(1, gt=0)
    gpus: int = Field(0, ge=0)
    processes: int = Field(1, gt=0)
    """Processes that run the command together, as torchrun starts them; `cpus` and `gpus` are those of each."""
    minutes: Annotated[float, Field(gt=0)] | Annotated[int, Field(gt=0)] | None = None
    retries: int = Field(0, ge=0)
    resumable: bool = False
    """Whether an interrupted command continues from what it left in `{folder}`; otherwise it starts in an empty one."""

    def to_dict(self) -> dict[str, Any]:
        """Without `processes` where it is 1, so that a job is the same as before there was this setting."""
        values = super().to_dict()
        return values if self.processes > 1 else {key: value for key, value in values.items() if key != "processes"}

    @property
    def all_cpus(self) -> int:
        return self.cpus * self.processes

    @property
    def all_gpus(self) -> int:
        return self.gpus * self.processes


class ArmSpec(Config):
    """One arm: words added to the command, variables, another commit, and settings for its placeholders."""

    model_config = ConfigDict(extra="allow")

    args: str | list[str] = ""
    env: dict[str, str] = Field(default_factory=dict)
    ref: str | None = None

    @property
    def settings(self) -> dict[str, Setting]:
        return dict(self.model_extra or {})


class Experiment(Config):
    """A comparison of commands."""

    command: str = Field(min_length=1)
    shell: bool = False
    """Whether a shell runs the command; otherwise it is split into words as a shell would, and nothing else."""
    arms: dict[str, ArmSpec]
    """The first is the baseline."""
    metric: Metric
    curve: Curve | None = None
    trial: TrialLimits = TrialLimits()
    settings: dict[str, Setting] = Field(default_factory=dict)
    """Values of the command's further placeholders, for the arms that do not set them."""
    env: dict[str, str] = Field(default_factory=dict)
    folder: str = "."
    """Where the command runs, relative to the file."""
    check: str | None = None
    """Further arguments that make a trial short, for a check of every arm before the first trial."""
    setup: str | None = None
    """With refs: a command that prepares a worktree, such as an installation into an environment of its own."""
    share: list[str] = Field(default_factory=list)
    """With refs: ignored files and folders, such as data, to link into every worktree."""
    negative_control: bool = False
    """Add the baseline once more on other seeds."""

    @model_validator(mode="after")
    def check_arms(self) -> Self:
        if len(self.arms) < 2:
            raise ValueError("needs at least two arms, the first being the baseline")
        for name, arm in self.arms.items():
            if not name.isprintable() or not name.strip():
                raise ValueError(f"arm {name!r}: give it a printable name")
            for key, value in arm.settings.items():
                if not isinstance(value, Setting):
                    raise ValueError(f"arms.{name}.{key}={show(value)}: expected a number or text")
        return self

    def file_sources(self) -> dict[str, NumberSource]:
        """The metric and the curve, if a file that the experiment names holds them."""
        every: dict[str, NumberSource | None] = {"metric": self.metric, "curve": self.curve}
        return {
            key: source
            for key, source in every.items()
            if source is not None and not source.is_stream and source.source != TENSORBOARD
        }


def compile_pattern(pattern: str) -> re.Pattern[str]:
    """Raises ValueError for an invalid regular expression."""
    try:
        return re.compile(pattern, re.MULTILINE)
    except re.error as error:
        raise ValueError(f"pattern {show(pattern)} is not a regular expression: {error}") from None


def experiment_from_yaml(values: dict[str, Any], path: Path) -> Experiment:
    """The experiment that the values of a YAML file describe. Raises ConfigError."""
    values["arms"] = {str(name): arm or {} for name, arm in mapping(values.get("arms"), path, "arms").items()}
    for owner in (values, *values["arms"].values()):
        if isinstance(owner, dict) and isinstance(owner.get("env"), dict):  # FLAG: 1 is the text "1"
            owner["env"] = {str(name): env_text(value) for name, value in owner["env"].items()}
    return parse_experiment(values, str(path))


def parse_experiment(values: dict[str, Any], source: str) -> Experiment:
    kinds: dict[str, type[Config]] = {"metric": Metric, "curve": Curve, "trial": TrialLimits}
    try:
        parsed = {key: kind.from_dict(values[key], key) for key, kind in kinds.items() if values.get(key) is not None}
        return Experiment.from_dict({**values, **parsed})
    except ConfigError as error:
        raise ConfigError(f"{source}: {error}") from None


def mapping(value: Any, path: Path, key: str) -> dict[Any, Any]:
    if not isinstance(value, dict):
        raise ConfigError(f"{path}: {key}={show(value)}: expected NAME: {{args: ...}} for each arm, the baseline first")
    return value


def env_text(value: Any) -> Any:
    """The text of a number as YAML has it, with `true` and `false` as in YAML."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int) or (isinstance(value, float) and math.isfinite(value)) else value

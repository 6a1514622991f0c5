"""The request for a comparison: the options of `partwise compare`, of a study's entry, or of `partwise.compare`."""

import shlex
from pathlib import Path
from typing import Literal

from pydantic import Field

from partwise.comparison.results import Measure
from partwise.comparison.stats.effect import DEFAULT_MARGIN, Variance
from partwise.config import Config
from partwise.train.run_names import default_run_name


class Request(Config):
    """The request for one comparison; `plan_comparison` validates it."""

    preset: str
    change: list[str] = Field(default_factory=list)  # overrides of the second arm
    arms: list[str] = Field(default_factory=list)  # further arms, the overrides of each in one string
    cumulative: bool = False  # cumulative ablation: each arm adds to the previous one and is compared with it
    interaction: list[str] = Field(default_factory=list)  # two changes: each alone, and both
    data: str | None = None
    common: list[str] = Field(default_factory=list)  # overrides for every arm
    seeds: int = Field(5, gt=0)  # per arm, at most
    first_seed: int = Field(0, ge=0)
    looks: list[int] = Field(default_factory=list)  # numbers of seeds at the planned looks: a protocol
    variance: Variance = "pair"
    metric: Literal["loss", "exact_match", "char_accuracy"] = "loss"  # accuracies on arithmetic only
    margin: float = Field(DEFAULT_MARGIN, gt=0)
    alpha: float = Field(0.05, ge=1e-9, le=0.5)
    negative_control: str | None = None  # control without an effect: the family whose weights are re-initialized
    positive_control: str | None = None  # control with a large effect: overrides in one string
    tune: str | None = None  # a setting and its candidate values: train.lr=1e-4,3e-4,1e-3
    tune_seeds: int = Field(2, gt=0)
    match: Measure | None = None

    def name_parts(self) -> list[str]:
        """The components of the default name."""
        data = [self.data] if self.data else []
        return [Path(self.preset).stem, *self.change, *self.interaction, *self.arms, *self.common, *data]

    def name(self) -> str:
        return default_run_name(self.name_parts())

    def command(self, name: str | None, imports: tuple[str, ...] = ()) -> str:
        """The `partwise compare` command of this request."""
        command = ["partwise", "compare", self.preset, *self.change]
        for option, values in (
            ("--arm", self.arms),
            ("--interaction", self.interaction),
            ("--common", self.common),
            ("--import", imports),
        ):
            command += [word for value in values for word in (option, value)]
        fields = type(self).model_fields
        for key in (
            "data",
            "metric",
            "first_seed",
            "variance",
            "alpha",
            "negative_control",
            "positive_control",
            "tune",
            "tune_seeds",
            "match",
        ):
            if (value := getattr(self, key)) != fields[key].default:
                command += [f"--{key.replace('_', '-')}", f"{value:g}" if isinstance(value, float) else str(value)]
        command += ["--cumulative"] * self.cumulative
        command += ["--looks", ",".join(map(str, self.looks))] if self.looks else ["--seeds", str(self.seeds)]
        command += ["--margin", f"{self.margin:g}", *(["--name", name] if name else [])]
        return shlex.join(command)

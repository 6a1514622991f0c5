"""What is asked: the words of one `partwise compare`, of a study's entry, or of a call from Python."""

import shlex
from pathlib import Path
from typing import Literal, get_args

from pydantic import Field

from partwise.comparison.effect import MARGIN
from partwise.comparison.protocol import Variance
from partwise.config import Config
from partwise.train.names import default_name

Measure = Literal["tokens", "parameters", "flops", "seconds"]
"""What may be held equal between the arms."""

MEASURES: tuple[Measure, ...] = get_args(Measure)


class Request(Config):
    """One comparison as it is asked for; `plan_comparison` checks that it can be answered."""

    preset: str
    change: list[str] = Field(default_factory=list)  # overrides of the second arm
    arms: list[str] = Field(default_factory=list)  # further arms, the overrides of each in one text
    ladder: bool = False  # each arm on top of those before it, and compared with the last of them
    interaction: list[str] = Field(default_factory=list)  # two changes: each alone, and both
    data: str | None = None
    common: list[str] = Field(default_factory=list)  # overrides for every arm
    seeds: int = Field(5, gt=0)  # of each arm, at most
    first_seed: int = Field(0, ge=0)
    looks: list[int] = Field(default_factory=list)  # numbers of seeds at which it is judged: a protocol
    variance: Variance = "pair"
    # the validation loss, or on arithmetic the share of exact answers, or of right characters in them
    metric: Literal["loss", "exact", "characters"] = "loss"
    margin: float = Field(MARGIN, gt=0)
    alpha: float = Field(0.05, ge=1e-9, le=0.5)
    control_null: str | None = (
        None  # a control without effect: the family of parts whose initial values are drawn again
    )
    control_planted: str | None = None  # a control with a large effect: overrides in one text
    tune: str | None = None  # a number and its values: train.lr=1e-4,3e-4,1e-3
    tune_seeds: int = Field(2, gt=0)
    match: Measure | None = None

    def words(self) -> list[str]:
        """What names the comparison's folder, where no name is given."""
        data = [self.data] if self.data else []
        return [Path(self.preset).stem, *self.change, *self.interaction, *self.arms, *self.common, *data]

    def name(self) -> str:
        return default_name(self.words())

    def command(self, name: str | None, imports: tuple[str, ...] = ()) -> str:
        """The command that asks for this."""
        given = ["partwise", "compare", self.preset, *self.change]
        for option, values in (
            ("--arm", self.arms),
            ("--interaction", self.interaction),
            ("--common", self.common),
            ("--import", imports),
        ):
            given += [word for value in values for word in (option, value)]
        fields = type(self).model_fields
        for key in (
            "data",
            "metric",
            "first_seed",
            "variance",
            "alpha",
            "control_null",
            "control_planted",
            "tune",
            "tune_seeds",
            "match",
        ):
            if (value := getattr(self, key)) != fields[key].default:
                given += [f"--{key.replace('_', '-')}", f"{value:g}" if isinstance(value, float) else str(value)]
        given += ["--ladder"] * self.ladder
        given += ["--looks", ",".join(map(str, self.looks))] if self.looks else ["--seeds", str(self.seeds)]
        given += ["--margin", f"{self.margin:g}", *(["--name", name] if name else [])]
        return shlex.join(given)

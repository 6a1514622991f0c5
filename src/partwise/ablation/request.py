"""The request for a comparison: the options of `partwise compare`, of a study's entry, or of `partwise.compare`.

Each option is declared once, as a field: the command line, the keys of a study's YAML and the command in a report follow
from it.
"""

import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, get_origin

from pydantic import AfterValidator, Field
from pydantic.fields import FieldInfo

from partwise.comparison.measures import Measure
from partwise.comparison.stats.effect import DEFAULT_MARGIN, BaselineDesign
from partwise.config import Config
from partwise.run_names import default_run_name


@dataclass(frozen=True)
class Option:
    """How a field of a `Request` is written on the command line, where this does not follow from its name and type."""

    flag: str | None = None
    short: str | None = None
    panel: str | None = None
    """The panel of `--help` that lists it."""
    metavar: str | None = None
    """The metavar of its value in `--help`."""
    positional: bool = False
    unset: bool = False
    """Whether the command can tell that it was not given; its help then names the default."""
    always: bool = False
    """Whether printed commands have it also at its default."""


def check_metric(name: str) -> str:
    """Reject the name of an unknown metric; tasks are found when the comparison is planned."""
    if name not in ("loss", "exact_match", "char_accuracy") and not re.fullmatch(r"task:\S.*", name):
        raise ValueError("expected loss, exact_match, char_accuracy or task:NAME")
    return name


ARMS, SEEDS, DECISION = "Arms", "Seeds and looks", "Decision"
CONTROLS, TUNING = "Controls", "Tuning"
"""Panels of `--help`."""


class Request(Config):
    """The request for one comparison; `plan_comparison` validates it."""

    preset: Annotated[str, Option(positional=True)]
    change: Annotated[list[str], Option(positional=True)] = Field(
        default_factory=list, description="Overrides of the second arm."
    )
    data: Annotated[str | None, Option(panel=ARMS, metavar="DATA")] = Field(
        None,
        description="Training data: arithmetic, shakespeare, python, or a text file, .jsonl file or folder.",
    )
    arms: Annotated[list[str], Option("--arm", panel=ARMS, metavar="OVERRIDES")] = Field(
        default_factory=list, description="Overrides of a further arm, in quotes. Repeatable."
    )
    cumulative: Annotated[bool, Option(panel=ARMS)] = Field(
        False, description="Cumulative ablation: each arm adds to the previous one and is compared with it."
    )
    interaction: Annotated[list[str], Option(panel=ARMS, metavar="OVERRIDES")] = Field(
        default_factory=list,
        description="Test an interaction: give it twice, for two changes, each alone and both.",
    )
    common: Annotated[list[str], Option(panel=ARMS, metavar="OVERRIDE")] = Field(
        default_factory=list, description="Override that applies to every arm. Repeatable."
    )
    seeds: Annotated[int, Option(unset=True, always=True, panel=SEEDS)] = Field(
        5, gt=0, description="Paired seeds per arm. Default: 5, or 16 with --protocol."
    )
    horizons: Annotated[list[int], Option(panel=SEEDS, metavar="N,N,...")] = Field(
        default_factory=list,
        description="Train every trial to each of these numbers of steps; the verdict is for the last.",
    )
    first_seed: Annotated[int, Option(panel=SEEDS)] = Field(0, ge=0, description="First seed.")
    looks: Annotated[list[int], Option(panel=SEEDS, metavar="N,N,...")] = Field(
        default_factory=list,
        description="Plan interim looks at these numbers of seeds, such as 4,8,16; stop early.",
    )
    design: Annotated[BaselineDesign, Option(panel=SEEDS, metavar="DESIGN")] = Field(
        "paired", description="Use of the baseline's runs: paired, unpaired or covariate."
    )
    baseline_runs: Annotated[int, Option(panel=SEEDS)] = Field(
        1, gt=0, description="Runs of the baseline per run of an arm, for an unpaired or covariate design."
    )
    metric: Annotated[str, AfterValidator(check_metric), Option(panel=DECISION, metavar="METRIC")] = Field(
        "loss", description="loss; on arithmetic also exact_match or char_accuracy; or task:NAME, a task of lm_eval."
    )
    margin: Annotated[float, Option(unset=True, always=True, panel=DECISION)] = Field(
        DEFAULT_MARGIN, gt=0, description=f"Equivalence margin, in the metric's unit. Default: {DEFAULT_MARGIN:g}."
    )
    alpha: Annotated[float, Option(panel=DECISION)] = Field(
        0.05, ge=1e-9, le=0.5, description="Maximum probability of a false claim."
    )
    failure: Annotated[float | None, Option(panel=DECISION)] = Field(
        None,
        description="Value beyond which a run failed. Default for losses: ln(vocabulary) + 1, a nat above uniform guessing.",
    )
    online: Annotated[bool, Option(panel=DECISION)] = Field(
        False,
        description="Control the false discovery rate over all --online comparisons of this project at --alpha.",
    )
    negative_control: Annotated[str | None, Option(panel=CONTROLS, metavar="FAMILY")] = Field(
        None, description="Add an A/A arm that re-initializes this family, such as ffn."
    )
    positive_control: Annotated[str | None, Option(panel=CONTROLS, metavar="OVERRIDES")] = Field(
        None, description="Add an arm with a known large effect: its overrides in quotes."
    )
    tune: Annotated[str | None, Option(panel=TUNING, metavar="OPTION=X,X,...")] = Field(
        None, description="Tune a setting per arm over these values: train.lr=1e-4,3e-4,1e-3."
    )
    tune_seeds: Annotated[int, Option(panel=TUNING)] = Field(
        4, ge=4, description="Tuning seeds per value, disjoint from the test seeds."
    )
    tune_steps: Annotated[int | None, Option(panel=TUNING)] = Field(
        None, gt=0, description="Steps of the tuning runs. Default: as many as the test runs."
    )
    tuned_only: Annotated[bool, Option(panel=TUNING)] = Field(
        False, description="Judge the arms at their best values only, not at their defaults."
    )
    allow_leak: Annotated[bool, Option(panel=DECISION)] = Field(
        False, description="Compare although a part of your own sees the tokens that it predicts."
    )
    match: Annotated[Measure | None, Option(panel=ARMS, metavar="MEASURE")] = Field(
        None, description="Hold one of these equal between arms: tokens, parameters, flops or seconds."
    )

    def name_parts(self) -> list[str]:
        """The components of the default name."""
        data = [self.data] if self.data else []
        return [Path(self.preset).stem, *self.change, *self.interaction, *self.arms, *self.common, *data]

    def name(self) -> str:
        return default_run_name(self.name_parts())

    def command(self, name: str | None, imports: tuple[str, ...] = ()) -> str:
        """The `partwise compare` command of this request."""
        words = ["partwise", "compare", self.preset, *self.change]
        for key, field in type(self).model_fields.items():
            option, value = option_of(field), getattr(self, key)
            default = field.get_default(call_default_factory=True)
            if option.positional or (key == "seeds" and self.looks):  # the last look sets the seeds
                continue
            if value != default or option.always:
                words += option_words(flag_of(key, field), value)
        words += option_words("--import", list(imports))
        return shlex.join([*words, *(["--name", name] if name else [])])


def option_of(field: FieldInfo) -> Option:
    return next((each for each in field.metadata if isinstance(each, Option)), Option())


def flag_of(key: str, field: FieldInfo) -> str:
    """`first_seed` -> `--first-seed`."""
    return option_of(field).flag or f"--{key.replace('_', '-')}"


def is_list_of(field: FieldInfo, item: type) -> bool:
    return get_origin(field.annotation) is list and field.annotation == list[item]  # type: ignore[valid-type]


def option_words(flag: str, value: Any) -> list[str]:
    """The words of one option: a switch, a list of numbers joined by commas, or a flag and its value for each string."""
    if isinstance(value, bool):
        return [flag] * value
    if isinstance(value, list) and value and all(isinstance(item, int) for item in value):
        return [flag, ",".join(map(str, value))]
    items = value if isinstance(value, list) else [value]
    return [word for item in items for word in (flag, f"{item:g}" if isinstance(item, float) else str(item))]

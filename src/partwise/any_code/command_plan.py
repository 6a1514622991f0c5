"""The plan of a comparison of commands: an arm is arguments, variables, settings and a commit."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

from partwise.any_code.experiment_file import RESERVED, ArmSpec, Experiment, Setting
from partwise.any_code.template import fill, fill_shell, fill_words, placeholders, split_words
from partwise.comparison.design.plan import Arm, Plan
from partwise.comparison.stats.effect import BaselineDesign, Role
from partwise.comparison.stats.protocol import Claim, Rules
from partwise.config import ConfigError, did_you_mean
from partwise.config.overrides import difference
from partwise.config.yaml import parse_value
from partwise.git import shell

OTHER_SEEDS = 500_000
"""The distance of the negative control's seeds from those of the arms."""


@dataclass(frozen=True)
class CommandConfig:
    """What one arm runs. `commit` is what its `ref` was when the comparison started; None without one."""

    command: str
    shell: bool = False
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, Setting] = field(default_factory=dict)
    ref: str | None = None
    commit: str | None = None
    seed_offset: int = 0
    """Added to the seed: only a negative control has another than 0."""

    neutral: ClassVar[Mapping[str, Any]] = {"ref": None, "commit": None}
    """The options that stored values lack at these values, which are their defaults."""

    def to_dict(self) -> dict[str, Any]:
        return {**vars(self), "args": list(self.args), "env": dict(self.env), "settings": dict(self.settings)}

    def to_stored(self) -> dict[str, Any]:
        values, absent = self.to_dict(), object()
        return {key: value for key, value in values.items() if value != self.neutral.get(key, absent)}

    @classmethod
    def from_stored(cls, values: Mapping[str, Any]) -> Self:
        if unknown := [key for key in values if key not in cls.__dataclass_fields__]:
            raise ConfigError(f"{unknown[0]!r} is an option of another version of partwise")
        return cls(**{**values, "args": tuple(values["args"])})

    def with_override(self, override: str) -> Self:
        """The configuration with one setting changed. Raises ConfigError if the command has no such placeholder."""
        key, _, text = override.partition("=")
        if key not in self.settings:
            raise ConfigError(f"{override}: the command has no setting {key!r}{did_you_mean(key, self.settings)}")
        return replace(self, settings={**self.settings, key: parse_value(text)})

    def values(self, arm: str, seed: int, folder: str) -> dict[str, str]:
        """The values of the placeholders, except `{args}`."""
        settings = {name: setting_text(value) for name, value in self.settings.items()}
        return {**settings, "seed": str(seed + self.seed_offset), "arm": arm, "folder": folder}

    def words(self, values: Mapping[str, str], more: tuple[str, ...] = ()) -> list[str]:
        """The words to execute: those of the command, or a shell and its text. `more` are further arguments."""
        args = (*self.args, *more)
        if self.shell:
            return [shell(), "-c", fill_shell(self.command, args, values)]
        return fill_words(self.command, args, values)

    def variables(self, values: Mapping[str, str]) -> dict[str, str]:
        """The environment variables of the arm, and the placeholders' values as PARTWISE_SEED and so on."""
        own = {f"PARTWISE_{name.upper()}": value for name, value in values.items()}
        return {**own, **{name: fill(value, values) for name, value in self.env.items()}}


CommandArm = Arm[CommandConfig]
CommandPlan = Plan[CommandConfig]


def setting_text(value: Setting) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def plan_commands(
    experiment: Experiment,
    commits: Mapping[str, str],
    *,
    seeds: int,
    first_seed: int = 0,
    looks: tuple[int, ...] = (),
    design: BaselineDesign = "paired",
    baseline_runs: int = 1,
    margin: float | None = None,
    alpha: float = 0.05,
    failure: float | None = None,
) -> CommandPlan:
    """The arms, checked against the command, and the rules; `commits` are those of the refs. Raises ConfigError."""
    metric = experiment.metric
    margin = margin or metric.margin
    if margin is None:
        raise ConfigError(
            f"metric.margin is missing: give the largest difference of {metric.name} that does not matter to you, in its unit"
        )
    if experiment.check and "args" not in placeholders(experiment.command):
        raise ConfigError(f"check: {experiment.check}: the command has no {{args}}, where these would go: add it")
    arms: list[CommandArm] = []
    roles: list[Role] = []
    for name, spec in experiment.arms.items():
        add_arm(arms, Arm(name, overrides_of(spec), command_config(experiment, name, spec, commits)))
        roles.append("claim")
    if experiment.negative_control:
        control = replace(arms[0].config, seed_offset=OTHER_SEEDS)
        add_arm(arms, Arm(f"A/A control ({arms[0].name} on other seeds)", arms[0].overrides, control))
        roles.append("negative")
    rules = Rules(
        margin=margin,
        alpha=alpha,
        looks=looks,
        design=design,
        baseline_runs=baseline_runs,
        failure=metric.failure if failure is None else failure,
        lower_is_better=metric.better == "lower",
        metric=metric.name,
        unit=metric.unit,
    )
    claims = [Claim(arm.name, arms[0].name, role) for arm, role in zip(arms[1:], roles[1:], strict=True)]
    return Plan(tuple(arms), max(looks, default=seeds), rules, tuple(claims), first_seed)


def add_arm(arms: list[CommandArm], arm: CommandArm) -> None:
    """Append it. Raises ConfigError if another arm runs the same."""
    for other in arms:
        if not difference(other.config.to_dict(), arm.config.to_dict()):
            raise ConfigError(
                f"arm {arm.name!r} runs the same as {other.name!r}: change its args, env, ref or settings"
            )
    arms.append(arm)


def command_config(experiment: Experiment, name: str, spec: ArmSpec, commits: Mapping[str, str]) -> CommandConfig:
    args = spec.args if isinstance(spec.args, list) else split_words(spec.args) if spec.args.strip() else []
    config = CommandConfig(
        command=experiment.command,
        shell=experiment.shell,
        args=tuple(args),
        env={**experiment.env, **spec.env},
        settings={**experiment.settings, **spec.settings},
        ref=spec.ref,
        commit=commits[spec.ref] if spec.ref else None,
    )
    check_placeholders(config, name, spec)
    return config


def check_placeholders(config: CommandConfig, name: str, spec: ArmSpec) -> None:
    """Raise ConfigError unless the seed reaches the command, and every setting and argument has a place in it."""
    texts = [config.command, *config.args, *config.env.values()]
    used = set().union(*map(placeholders, texts))
    for key in config.settings:
        if key in RESERVED:
            raise ConfigError(f"arms.{name}.{key}: {key} is reserved; rename the setting")
        if key not in used:
            known = {"args", "env", "ref", *used} - set(RESERVED[:3])
            raise ConfigError(
                f"arms.{name}.{key}: unknown, and the command has no placeholder {{{key}}}{did_you_mean(key, known)}"
            )
    for unknown in sorted(used - {*config.settings, *RESERVED}):
        known = {*config.settings, *RESERVED}
        raise ConfigError(
            f"{{{unknown}}} is unknown{did_you_mean(unknown, known)}; give `settings: {{{unknown}: VALUE}}`, or write "
            f"{{{{{unknown}}}}} for text in braces"
        )
    if "seed" not in used:
        raise ConfigError(
            "the command has no {seed}, so all trials of an arm would be the same: add it, as in --seed={seed}, or as a "
            "variable, `env: {SEED: '{seed}'}`"
        )
    if config.args and "args" not in placeholders(config.command):
        raise ConfigError(
            f"arms.{name}.args={' '.join(config.args)!r}: the command has no {{args}}: add it where they belong"
        )
    if any("args" in placeholders(text) for text in texts[1:]):
        raise ConfigError(f"arms.{name}: {{args}} may stand only in the command")
    values = config.values(name, 0, "folder")
    config.words(values)
    config.variables(values)


def overrides_of(spec: ArmSpec) -> tuple[str, ...]:
    """The change of an arm in words, for the report and the ledger."""
    args = spec.args if isinstance(spec.args, list) else [spec.args]
    words = [*(word for word in args if word), *(f"{key}={value}" for key, value in spec.env.items())]
    words += [f"{key}={setting_text(value)}" for key, value in spec.settings.items()]
    return (*words, *([f"ref={spec.ref}"] if spec.ref else []))

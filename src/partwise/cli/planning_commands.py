"""Commands before a comparison: calibrate measures noise, and plan computes power and time."""

from dataclasses import asdict, dataclass
from typing import Annotated, Any

import typer

from partwise.cli.experiment_files import is_experiment_file
from partwise.cli.modes import Mode, command_with_modes
from partwise.cli.options import (
    ALLOW_OVERRIDES,
    FLAG,
    Import,
    Json,
    Name,
    Overrides,
    Preset,
    SecondArm,
    Workers,
    app,
    collect_overrides,
    load_imports,
)

ExperimentFile = Annotated[str, typer.Argument(metavar="FILE.yaml", help="The experiment: a command and its metric.")]
Pairs = Annotated[int, typer.Option(help="A/A pairs.")]


def calibrate_preset(
    context: typer.Context,
    preset: Preset,
    overrides: Overrides = None,
    *,
    options: dict[str, Any],
    family: Annotated[
        str, typer.Option(help="Family of parts to re-initialize in the A/A pairs: ffn, attention, ...")
    ] = "ffn",
    positive_control: Annotated[
        str | None, typer.Option(help="Also measure a change with a known large effect: its overrides in quotes.")
    ] = None,
    seeds: Pairs = 8,
    name: Name = None,
    workers: Workers = None,
    imports: Import = None,
) -> None:
    """Train A/A pairs of a preset.

    Example: partwise calibrate mingpt --data shakespeare
    """
    load_imports(imports)
    from partwise.cli.commands.calibrate import calibrate_preset as run

    run(
        preset,
        collect_overrides(context, overrides),
        **options,
        family=family,
        positive_control=positive_control,
        seeds=seeds,
        name=name,
        workers=workers,
    )


def calibrate_file(
    context: typer.Context,
    file: ExperimentFile,
    *,
    options: dict[str, Any],
    seeds: Pairs = 8,
    name: Name = None,
    workers: Workers = None,
) -> None:
    """Run the baseline of an experiment's YAML file on pairs of seeds.

    Example: partwise calibrate experiment.yaml --seeds 6
    """
    from partwise.cli.commands.experiment_noise import calibrate_experiment

    calibrate_experiment([file, *context.args], context.obj, **options, seeds=seeds, name=name, workers=workers)


def calibrate_sources(
    context: typer.Context,
    preset: Preset,
    overrides: Overrides = None,
    *,
    vary: Annotated[str, typer.Option("--vary", metavar="init,order", help="The sources of noise.")],
    options: dict[str, Any],
    seeds: Annotated[int, typer.Option(help="Initializations, and data orders.")] = 4,
    name: Name = None,
    workers: Workers = None,
    imports: Import = None,
) -> None:
    """Split the noise of a preset by source: train every initialization in every data order.

    Example: partwise calibrate mingpt --data shakespeare --vary init,order
    """
    load_imports(imports)
    from partwise.cli.commands.calibrate import calibrate_sources as run

    changes = collect_overrides(context, overrides)
    run(preset, changes, **options, vary=vary, seeds=seeds, name=name, workers=workers)


@dataclass(frozen=True)
class PowerOptions:
    """The options of every mode of `plan`."""

    protocol: Annotated[
        bool,
        typer.Option("--protocol", metavar=FLAG, help="With interim looks, as `compare --protocol`."),
    ] = False
    effect: Annotated[
        float | None, typer.Option(help="True difference to compute the power for, in the metric's unit.")
    ] = None
    sd: Annotated[
        float | None,
        typer.Option(
            help="SD of a paired difference to assume. Default: from an earlier comparison or calibrate, else a guess."
        ),
    ] = None
    as_json: Json = False


@dataclass(frozen=True)
class TimeOptions:
    """How many trials run at a time."""

    workers: Workers = None
    machines: Annotated[
        int, typer.Option("--machines", metavar="N", help="Machines like this one that share the trials.", min=1)
    ] = 1


def plan_preset(
    context: typer.Context,
    preset: Preset,
    overrides: SecondArm = None,
    *,
    options: dict[str, Any],
    power: PowerOptions,
    time: TimeOptions,
    imports: Import = None,
) -> None:
    """Power and time of a comparison of variants of a preset.

    Example: partwise plan mingpt ffn=swiglu --data shakespeare
    """
    change = collect_overrides(context, overrides)
    load_imports(imports)
    from partwise.cli.commands.plan_preset import plan_preset as run

    run({"preset": preset, "change": change, **options}, **asdict(power), **asdict(time))


def plan_file(
    context: typer.Context,
    file: ExperimentFile,
    *,
    options: dict[str, Any],
    power: PowerOptions,
    time: TimeOptions,
) -> None:
    """Power of a comparison that a YAML file describes, and its time after `calibrate`.

    Example: partwise plan experiment.yaml --effect 0.05
    """
    from partwise.cli.commands.experiment_noise import plan_experiment

    plan_experiment([file, *context.args], context.obj, options, **asdict(power), **asdict(time))


def plan_numbers(
    *,
    options: dict[str, Any],
    power: PowerOptions,
    claims: Annotated[int, typer.Option(help="Number of claims.", min=1)] = 1,
) -> None:
    """Power from numbers alone; --sd is required.

    Example: partwise plan --claims 3 --sd 0.01 --effect 0.02
    """
    from partwise.cli.commands.power_table import plan_numbers as run

    given = {key: value for key, value in options.items() if value is not None}
    run(claims=claims, **asdict(power), **given)


def plan_target(
    *,
    target: Annotated[float, typer.Option("--target", metavar="X", help="The number to reach.")],
    effect: Annotated[
        float | None, typer.Option(help="How much better than the target the true mean is, in the values' unit.")
    ] = None,
    sd: Annotated[float | None, typer.Option(help="SD of single runs. Required.")] = None,
    alpha: Annotated[float, typer.Option(help="Error of 'reached'.")] = 0.01,
    entries: Annotated[int, typer.Option(help="Entries that are judged together.", min=1)] = 1,
    options: dict[str, Any],
    as_json: Json = False,
) -> None:
    """How many runs show that a mean is better than a number, for `verdict --target`.

    Example: partwise plan --target 3.28 --effect 0.0015 --sd 0.0013
    """
    from partwise.cli.commands.plan_target import plan_target as run

    run(target=target, effect=effect, sd=sd, alpha=alpha, entries=entries, as_json=as_json, **options)


def calibration_mode(context: Any, given: set[str], words: list[str]) -> str | None:
    if words and is_experiment_file(context, words[0]):
        return "file"
    return "vary" if "vary" in given else "preset" if words else None


def plan_mode(context: Any, given: set[str], words: list[str]) -> str | None:
    if not words and "target" in given:
        return "target"
    if not words:
        return "numbers" if {"sd", "claims"} & given else None
    return "file" if is_experiment_file(context, words[0]) else "preset"


command_with_modes(
    app,
    "calibrate",
    "Measure seed-to-seed noise with A/A pairs; later plans use it.",
    [
        Mode("preset", "PRESET", calibrate_preset, ("data", "failure"), ALLOW_OVERRIDES),
        Mode("file", "FILE.yaml", calibrate_file, ("failure",), {"allow_extra_args": True}),
        Mode("vary", "--vary init,order", calibrate_sources, ("data", "failure"), ALLOW_OVERRIDES),
    ],
    calibration_mode,
)
command_with_modes(
    app,
    "plan",
    "Estimate the power of 4 to 32 seeds before training; with a preset or an experiment's YAML file, also the time.",
    [
        Mode("preset", "PRESET", plan_preset, ("data", "arms", "common", "looks", "margin", "alpha"), ALLOW_OVERRIDES),
        Mode("file", "FILE.yaml", plan_file, ("common", "looks", "margin", "alpha"), {"allow_extra_args": True}),
        Mode("numbers", "--sd X", plan_numbers, ("looks", "margin", "alpha")),
        Mode("target", "--target X", plan_target, ("looks",)),
    ],
    plan_mode,
)

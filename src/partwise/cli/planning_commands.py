"""Commands before a comparison: calibrate measures noise, and plan computes power and time."""

from typing import Annotated, Any

import typer

from partwise.cli.completion import complete_preset
from partwise.cli.experiment_files import is_experiment_file, refuse_preset_options
from partwise.cli.options import (
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
from partwise.cli.request_command import request_command


@request_command(app, "data", "failure")
def calibrate(
    context: typer.Context,
    preset: Preset,
    overrides: Overrides = None,
    *,
    options: dict[str, Any],
    family: Annotated[
        str | None,
        typer.Option(help="Family of parts to re-initialize in the A/A pairs: ffn, attention, ... Default: ffn."),
    ] = None,
    positive_control: Annotated[
        str | None, typer.Option(help="Also measure a change with a known large effect: its overrides in quotes.")
    ] = None,
    vary: Annotated[
        str | None,
        typer.Option(
            "--vary",
            metavar="init,order",
            help="Split the noise by source instead: train every initialization in every data order.",
        ),
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(help="A/A pairs, or initializations and orders. Default: 8, or 4 with --vary.")
    ] = None,
    name: Name = None,
    workers: Workers = None,
    imports: Import = None,
) -> None:
    """Measure seed-to-seed noise with A/A pairs, of a preset or of an experiment's YAML file; later plans use it."""
    if is_experiment_file(preset):
        from partwise.cli.commands.experiment_noise import calibrate_experiment

        refuse_preset_options(
            {
                "data": options["data"],
                "family": family,
                "positive_control": positive_control,
                "vary": vary,
                "import": imports,
            }
        )
        words = [preset, *collect_overrides(context, overrides)]
        calibrate_experiment(
            words, seeds=8 if seeds is None else seeds, name=name, workers=workers, failure=options["failure"]
        )
        return
    load_imports(imports)
    from partwise.cli.commands.calibrate import calibrate_preset, calibrate_sources

    changes = collect_overrides(context, overrides)
    if vary is not None:
        calibrate_sources(
            preset,
            changes,
            **options,
            vary=vary,
            family=family,
            positive_control=positive_control,
            seeds=4 if seeds is None else seeds,
            name=name,
            workers=workers,
        )
        return
    calibrate_preset(
        preset,
        changes,
        **options,
        family=family or "ffn",
        positive_control=positive_control,
        seeds=8 if seeds is None else seeds,
        name=name,
        workers=workers,
    )


@request_command(app, "data", "arms", "common", "looks", "margin", "alpha", before={"protocol": "looks"})
def plan(
    context: typer.Context,
    preset: Annotated[
        str | None,
        typer.Argument(help="A preset or a YAML file; without one, --sd is needed.", autocompletion=complete_preset),
    ] = None,
    overrides: SecondArm = None,
    *,
    options: dict[str, Any],
    protocol: Annotated[
        bool,
        typer.Option("--protocol", metavar=FLAG, help="With interim looks, as `compare --protocol`."),
    ] = False,
    effect: Annotated[
        float | None, typer.Option(help="True difference to compute the power for, in the metric's unit.")
    ] = None,
    sd: Annotated[
        float | None,
        typer.Option(
            help="SD of a paired difference to assume. Default: from an earlier comparison or calibrate, else a guess."
        ),
    ] = None,
    claims: Annotated[int | None, typer.Option(help="Number of claims, without a preset. Default: 1.", min=1)] = None,
    workers: Workers = None,
    machines: Annotated[
        int, typer.Option("--machines", metavar="N", help="Machines like this one that share the trials.", min=1)
    ] = 1,
    imports: Import = None,
    as_json: Json = False,
) -> None:
    """Estimate the power of 4 to 32 seeds before training; with a preset or an experiment's YAML file, also the time."""
    from partwise.config import ConfigError

    if preset is None:
        from partwise.ablation.request import flag_named
        from partwise.cli.commands.power_table import plan_numbers

        numbers = {key: options.pop(key) for key in ("margin", "alpha", "looks")}
        numbers = {key: value for key, value in numbers.items() if value is not None}
        if given := [key for key, value in options.items() if value]:
            raise ConfigError(f"plan {flag_named(given[0])} needs a preset, as in `partwise plan mingpt ffn=swiglu`")
        plan_numbers(claims=claims or 1, sd=sd, effect=effect, protocol=protocol, as_json=as_json, **numbers)
        return
    if claims:
        raise ConfigError(f"--claims {claims}: a preset's changes are its claims; leave out --claims or the preset")
    change = collect_overrides(context, overrides)
    settings: dict[str, Any] = {
        "protocol": protocol,
        "sd": sd,
        "effect": effect,
        "workers": workers,
        "machines": machines,
        "as_json": as_json,
    }
    if is_experiment_file(preset):
        from partwise.cli.commands.experiment_noise import plan_experiment

        refuse_preset_options({"import": imports, "arm": options.pop("arms"), "data": options.pop("data")})
        plan_experiment([preset, *change], options, **settings)
        return
    load_imports(imports)
    from partwise.cli.commands.plan import plan_preset

    plan_preset({"preset": preset, "change": change, **options}, **settings)

"""Commands for comparisons: compare, work, demo, calibrate and plan."""

from typing import Annotated, Any

import typer

from partwise.cli.command_comparisons import is_command_comparison, refuse_preset_options
from partwise.cli.completion import complete_preset
from partwise.cli.options import (
    FLAG,
    Import,
    Json,
    Name,
    Overrides,
    Preset,
    Workers,
    app,
    collect_overrides,
    load_imports,
)
from partwise.cli.request_command import request_command

ANY: Any = {"rich_help_panel": "Any command"}
PIPELINES: Any = {"rich_help_panel": "Pipelines"}


def place(text: str) -> Any:
    """Raises ConfigError for an unknown place."""
    from partwise.comparison.experiment import check_place

    return check_place(text)


@request_command(app, before={"protocol": "looks"})
def compare(
    context: typer.Context,
    preset: Preset,
    overrides: Overrides = None,
    *,
    options: dict[str, Any],
    protocol: Annotated[
        bool,
        typer.Option(
            "--protocol",
            metavar=FLAG,
            help="Plan interim looks at a quarter, half and all of the seeds; stop early.",
        ),
    ] = False,
    grid: Annotated[
        list[str] | None,
        typer.Option(help="Run one comparison per value of a setting, such as n_layers=2,4. Repeatable."),
    ] = None,
    replicate: Annotated[
        bool, typer.Option("--replicate", metavar=FLAG, help="Rerun the winner on fresh seeds.")
    ] = False,
    name: Name = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", metavar=FLAG, help="Only estimate the time and the minimum detectable effect."),
    ] = False,
    sd: Annotated[float | None, typer.Option(help="SD of a paired difference to assume in --dry-run.")] = None,
    workers: Workers = None,
    seeds_per_process: Annotated[
        int | None,
        typer.Option(
            help="Seeds of an arm to train per process with torch.vmap. Default: 8 for small models on CUDA, else 1.",
            min=1,
        ),
    ] = None,
    processes_per_run: Annotated[
        int, typer.Option(help="Processes that train each run together, as `train --processes`.", metavar="N", min=1)
    ] = 1,
    imports: Import = None,
    on: Annotated[
        str,
        typer.Option(metavar="PLACE", help="local, workers (`partwise work`), ray or ray://HOST:PORT.", **PIPELINES),
    ] = "local",
    as_json: Annotated[
        bool,
        typer.Option("--json", metavar=FLAG, help="Print the results as JSON, everything else on stderr.", **PIPELINES),
    ] = False,
    require: Annotated[
        list[str] | None,
        typer.Option(
            metavar="REQUIREMENT",
            help="'ARM better' or 'ARM not-worse': exit with 0 if met, 1 if not, 3 if undecided. Repeatable.",
            **PIPELINES,
        ),
    ] = None,
    refs: Annotated[
        bool,
        typer.Option(
            "--refs", metavar=FLAG, help="Compare commits: branches, tags or hashes, the baseline first.", **ANY
        ),
    ] = False,
    command: Annotated[
        str | None,
        typer.Option(
            metavar="COMMAND", help="With --refs: what to run, such as 'python train.py --seed={seed}'.", **ANY
        ),
    ] = None,
    setup: Annotated[
        str | None, typer.Option(metavar="COMMAND", help="With --refs: what prepares each worktree.", **ANY)
    ] = None,
    share: Annotated[
        list[str] | None,
        typer.Option(metavar="PATH", help="With --refs: ignored data to link into each worktree. Repeatable.", **ANY),
    ] = None,
    higher_is_better: Annotated[
        bool,
        typer.Option(
            "--higher-is-better", metavar=FLAG, help="With --refs: higher values of the metric are better.", **ANY
        ),
    ] = False,
    allow_changes: Annotated[
        bool,
        typer.Option(
            "--allow-changes",
            metavar=FLAG,
            help="Continue although code or packages changed since the first trial.",
            **ANY,
        ),
    ] = False,
) -> None:
    """Compare variants of a preset over paired seeds, with confidence intervals and verdicts.

    Or compare any commands: give an experiment's YAML file, or two commits with --refs.
    """
    words = [preset, *collect_overrides(context, overrides)]
    several = processes_per_run if processes_per_run > 1 else None
    own = {
        "seeds_per_process": seeds_per_process,
        "processes_per_run": several,
        "grid": grid,
        "import": imports,
        "sd": sd,
    }
    any_command = {"command": command, "setup": setup, "share": share or []}
    if is_command_comparison(words[0], refs, any_command):
        from partwise.cli.commands.compare_commands import compare_commands

        compare_commands(
            words,
            {**options, **own},
            refs={**any_command, "better": "higher" if higher_is_better else "lower"} if refs else None,
            protocol=protocol,
            name=name,
            dry_run=dry_run,
            workers=workers,
            allow_changes=allow_changes,
            replicate=replicate,
            as_json=as_json,
            require=require or [],
            on=place(on),
        )
        return
    if not dry_run and on == "local":
        from partwise.comparison.runs import EXECUTED_BY
        from partwise.comparison.trials.forkserver import prestart

        prestart(EXECUTED_BY)  # the server imports torch in parallel with this process
    from partwise.cli.commands.compare import compare_variants

    loaded = load_imports(imports)
    compare_variants(
        {"preset": preset, "change": words[1:], **options},
        protocol=protocol,
        grid=grid or [],
        replicate=replicate,
        name=name,
        dry_run=dry_run,
        sd=sd,
        workers=workers,
        seeds_per_process=seeds_per_process,
        processes_per_run=processes_per_run,
        imports=loaded,
        as_json=as_json,
        require=require or [],
        on=place(on),
    )


@app.command()
def work(
    comparison: Annotated[str, typer.Argument(metavar="COMPARISON", help="Name below runs/, or folder.")],
    workers: Annotated[int, typer.Option(metavar="N", help="Runs at a time.", min=1)] = 1,
    imports: Import = None,
) -> None:
    """Run trials of a comparison that was started with --on workers, here or on any machine that sees its folder."""
    load_imports(imports)
    from partwise.cli.commands.work import work_on

    work_on(comparison, workers)


@app.command()
def demo(
    name: Name = "demo",
    first_seed: Annotated[int, typer.Option(help="First seed: other seeds train other models.", min=0)] = 0,
    steps: Annotated[int | None, typer.Option(help="Training steps. Default: 600.", min=1)] = None,
) -> None:
    """Compare three variants of a small GPT in a few minutes: one is better, one equivalent, one worse."""
    from partwise.comparison.runs import EXECUTED_BY
    from partwise.comparison.trials.forkserver import prestart

    prestart(EXECUTED_BY)
    from partwise.cli.commands.demo import run_demo

    run_demo(name or "demo", first_seed, steps)


@request_command(app, "data", "failure")
def calibrate(
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
    vary: Annotated[
        str | None,
        typer.Option(metavar="init,order", help="Split the noise instead: every initialization in every data order."),
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(help="A/A pairs, or initializations and orders. Default: 8, or 4 with --vary.")
    ] = None,
    name: Name = None,
    workers: Workers = None,
    imports: Import = None,
) -> None:
    """Measure seed-to-seed noise with A/A pairs, of a preset or of an experiment's YAML file; later plans use it."""
    if is_command_comparison(preset):
        from partwise.cli.commands.command_noise import calibrate_experiment

        refuse_preset_options(
            {"data": options["data"], "positive_control": positive_control, "vary": vary, "import": imports}
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
        family=family,
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
    overrides: Overrides = None,
    *,
    options: dict[str, Any],
    protocol: Annotated[
        bool,
        typer.Option("--protocol", metavar=FLAG, help="With interim looks, as `compare --protocol`."),
    ] = False,
    effect: Annotated[float | None, typer.Option(help="True difference to compute the power for, in nats.")] = None,
    sd: Annotated[
        float | None, typer.Option(help="SD of a paired difference to assume. Default: as measured before.")
    ] = None,
    claims: Annotated[int | None, typer.Option(help="Number of claims, without a preset. Default: 1.", min=1)] = None,
    workers: Workers = None,
    machines: Annotated[
        int, typer.Option(metavar="N", help="Machines like this one that share the trials.", min=1)
    ] = 1,
    imports: Import = None,
    as_json: Json = False,
) -> None:
    """Estimate statistical power for 4 to 32 seeds before training, and time, with a preset or an experiment's YAML file."""
    from partwise.config import ConfigError

    if preset is None:
        from partwise.cli.commands.power_table import plan_numbers

        numbers = {key: options.pop(key) for key in ("margin", "alpha", "looks")}
        numbers = {key: value for key, value in numbers.items() if value is not None}
        if given := [key for key, value in options.items() if value]:
            raise ConfigError(f"plan --{given[0]} needs a preset, as in `partwise plan mingpt ffn=swiglu`")
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
    if is_command_comparison(preset):
        from partwise.cli.commands.command_noise import plan_experiment

        refuse_preset_options({"import": imports, "arm": options.pop("arms"), "data": options.pop("data")})
        plan_experiment([preset, *change], options, **settings)
        return
    load_imports(imports)
    from partwise.cli.commands.plan import plan_preset

    plan_preset({"preset": preset, "change": change, **options}, **settings)

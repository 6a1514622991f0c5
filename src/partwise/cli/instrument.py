"""Commands of the instrument: compare, calibrate, plan, judge, and published claims."""

import gc
from pathlib import Path
from typing import Annotated

import typer

from partwise.cli.words import OPEN, Data, Import, Name, Overrides, Preset, app, load_imports, study_app, words_of


@app.command(context_settings=OPEN)
def compare(
    context: typer.Context,
    preset: Preset,
    overrides: Overrides = None,
    data: Data = None,
    arm: Annotated[list[str] | None, typer.Option(help="One more arm: its overrides in quotes. Repeatable.")] = None,
    ladder: Annotated[
        bool, typer.Option("--ladder", help="Each arm on top of those before it, and compared with the last of them.")
    ] = False,
    interaction: Annotated[
        list[str] | None, typer.Option(help="Give it twice: two changes, each alone and both together.")
    ] = None,
    common: Annotated[list[str] | None, typer.Option(help="An override for every arm. Repeatable.")] = None,
    seeds: Annotated[int | None, typer.Option(help="Paired seeds per arm: 5, or with --protocol 16.", min=1)] = None,
    first_seed: Annotated[int, typer.Option(help="The first of them.", min=0)] = 0,
    protocol: Annotated[
        bool, typer.Option("--protocol", help="Fix looks and stopping rule beforehand; judge as the seeds come.")
    ] = False,
    looks: Annotated[
        str | None, typer.Option(help="Numbers of seeds at which to judge, as 4,8,16: a protocol.")
    ] = None,
    variance: Annotated[str, typer.Option(help="pair, or residual: over all arms together.")] = "pair",
    metric: Annotated[
        str, typer.Option(help="loss; on arithmetic also exact, or characters: the share of right answers.")
    ] = "loss",
    margin: Annotated[float, typer.Option(help="A difference too small to matter, in nats.")] = 0.005,
    alpha: Annotated[float, typer.Option(help="The probability of a false claim, at most.")] = 0.05,
    control_null: Annotated[
        str | None, typer.Option(help="A control: a family, such as ffn, whose initial values are drawn again.")
    ] = None,
    control_planted: Annotated[
        str | None, typer.Option(help="A control: overrides with an effect that must be seen.")
    ] = None,
    tune: Annotated[str | None, typer.Option(help="A number and its values: train.lr=1e-4,3e-4,1e-3.")] = None,
    tune_seeds: Annotated[int, typer.Option(help="Seeds per value, which the test does not use.", min=1)] = 2,
    match: Annotated[str | None, typer.Option(help="Held equal: tokens, parameters, flops or seconds.")] = None,
    grid: Annotated[
        list[str] | None,
        typer.Option(help="Values of a setting, as n_layers=2,4; one comparison for each. Repeatable."),
    ] = None,
    confirm: Annotated[bool, typer.Option("--confirm", help="Run what won again, on fresh seeds.")] = False,
    name: Name = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say how long it takes and what it could show.")] = False,
    sd: Annotated[float | None, typer.Option(help="The seed SD to assume in --dry-run.")] = None,
    workers: Annotated[int | None, typer.Option(help="Runs at once; one per core where not given.", min=1)] = None,
    together: Annotated[
        int | None,
        typer.Option(help="Seeds of an arm trained as one program: 8 for small models on CUDA, else 1.", min=1),
    ] = None,
    imports: Import = None,
) -> None:
    """Compare a preset with its changed self over paired seeds, and say what the change bought."""
    if not dry_run:
        from partwise.comparison.forkserver import start_early

        start_early()  # it imports what takes long while this process does
    from partwise.commands.comparing import compare_variants

    loaded = load_imports(imports)
    compare_variants(
        {
            "preset": preset,
            "change": words_of(context, overrides),
            "data": data,
            "arms": arm,
            "ladder": ladder,
            "interaction": interaction,
            "common": common,
            "seeds": seeds,
            "first_seed": first_seed,
            "looks": looks,
            "variance": variance,
            "metric": metric,
            "margin": margin,
            "alpha": alpha,
            "control_null": control_null,
            "control_planted": control_planted,
            "tune": tune,
            "tune_seeds": tune_seeds,
            "match": match,
        },
        protocol=protocol,
        grid=grid or [],
        confirm=confirm,
        name=name,
        dry_run=dry_run,
        sd=sd,
        workers=workers,
        together=together,
        imports=loaded,
    )


@app.command(context_settings=OPEN)
def calibrate(
    context: typer.Context,
    preset: Preset,
    overrides: Overrides = None,
    data: Data = None,
    part: Annotated[
        str, typer.Option(help="The family whose initial values are drawn again: ffn, attention, ...")
    ] = "ffn",
    planted: Annotated[str | None, typer.Option(help="Also measure a change that must be seen.")] = None,
    seeds: Annotated[int, typer.Option(help="Null pairs.")] = 8,
    name: Name = None,
    imports: Import = None,
) -> None:
    """Measure how far seeds lie apart where nothing was changed; later comparisons use it."""
    load_imports(imports)
    from partwise.commands.planning import calibrate_preset

    words = words_of(context, overrides)
    calibrate_preset(preset, words, data=data, part=part, planted=planted, seeds=seeds, name=name)


@app.command(context_settings=OPEN)
def plan(
    context: typer.Context,
    preset: Preset,
    overrides: Overrides = None,
    data: Data = None,
    arm: Annotated[list[str] | None, typer.Option(help="One more arm: its overrides in quotes. Repeatable.")] = None,
    common: Annotated[list[str] | None, typer.Option(help="An override for every arm. Repeatable.")] = None,
    margin: Annotated[float, typer.Option(help="A difference too small to matter, in nats.")] = 0.005,
    effect: Annotated[float | None, typer.Option(help="A difference that you hope to see, in nats.")] = None,
    sd: Annotated[float | None, typer.Option(help="The seed SD to assume; else what was calibrated.")] = None,
    workers: Annotated[int | None, typer.Option(help="Runs at once; one per core where not given.", min=1)] = None,
    imports: Import = None,
) -> None:
    """Say what 4 to 32 seeds would take here and could show, before anything runs."""
    load_imports(imports)
    from partwise.commands.planning import plan_seeds

    given = {"preset": preset, "change": words_of(context, overrides), "data": data, "arms": arm, "common": common}
    plan_seeds(given | {"margin": margin}, sd=sd, effect=effect, workers=workers)


@app.command()
def verdict(
    file: Annotated[Path, typer.Argument(help="A CSV file with the columns seed, arm and value.")],
    margin: Annotated[float, typer.Option(help="A difference too small to matter.")] = 0.005,
    higher: Annotated[bool, typer.Option("--higher", help="Higher values are better.")] = False,
    baseline: Annotated[str | None, typer.Option(help="The arm to compare with; the file's first otherwise.")] = None,
    look: Annotated[int, typer.Option(help="Which look at these growing data this is.")] = 1,
    metric: Annotated[str, typer.Option(help="What the values are, for the sentence.")] = "value",
    known_sd: Annotated[
        float | None, typer.Option("--known-sd", help="The SD of a single run, where it is known: a normal interval.")
    ] = None,
) -> None:
    """Judge anybody's own numbers: the same table, interval and verdict."""
    settings = {"margin": margin, "higher": higher, "baseline": baseline, "look": look, "metric": metric}
    gc.disable()  # what so short a command leaves is not worth a search, which would take a fifth of its time
    try:
        from partwise.commands.judging import judge_file

        judge_file(file, **settings, known_sd=known_sd)
    finally:
        gc.enable()


@study_app.command("run")
def run_study(
    study: Annotated[str, typer.Argument(help="A study's name in studies/, or its YAML file.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say how long it takes.")] = False,
) -> None:
    """Run every comparison of a study; interrupted, the same command continues."""
    from partwise.commands.comparing import run_study as run

    run(study, dry_run)


@study_app.command("list")
def list_studies() -> None:
    """Every study below studies/, and what it found so far."""
    from partwise.commands.comparing import list_studies as run

    run()


@study_app.command("table")
def study_table(
    out: Annotated[Path | None, typer.Option(help="Write it to this file; else it is printed.")] = None,
) -> None:
    """The table of claims: published, ours with an interval, and the answer."""
    from partwise.commands.comparing import show_claims

    show_claims(out)

"""Commands for comparisons: compare, work and demo."""

from typing import Annotated, Any

import typer

from partwise.cli.command_comparisons import is_command_comparison
from partwise.cli.options import (
    FLAG,
    Import,
    Name,
    Preset,
    SecondArm,
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
    from partwise.comparison.trials.places import check_place

    return check_place(text)


@request_command(app, before={"protocol": "looks"})
def compare(
    context: typer.Context,
    preset: Preset,
    overrides: SecondArm = None,
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
        int,
        typer.Option(
            "--processes-per-run",
            help="Processes that train each run together, as `train --processes`.",
            metavar="N",
            min=1,
        ),
    ] = 1,
    imports: Import = None,
    on: Annotated[
        str,
        typer.Option(
            "--on",
            metavar="PLACE",
            help="Where trials run: local, workers (`partwise work`), ray or ray://HOST:PORT.",
            **PIPELINES,
        ),
    ] = "local",
    as_json: Annotated[
        bool,
        typer.Option("--json", metavar=FLAG, help="Print the results as JSON, everything else on stderr.", **PIPELINES),
    ] = False,
    require: Annotated[
        list[str] | None,
        typer.Option(
            "--require",
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
            "--command",
            metavar="COMMAND",
            help="With --refs: what to run, such as 'python train.py --seed={seed}'.",
            **ANY,
        ),
    ] = None,
    setup: Annotated[
        str | None, typer.Option("--setup", metavar="COMMAND", help="With --refs: what prepares each worktree.", **ANY)
    ] = None,
    share: Annotated[
        list[str] | None,
        typer.Option(
            "--share", metavar="PATH", help="With --refs: ignored data to link into each worktree. Repeatable.", **ANY
        ),
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
    retry_failed: Annotated[
        bool,
        typer.Option(
            "--retry-failed",
            metavar=FLAG,
            help="Repeat trials of all arms that the machine ended: by a signal, or on a full disk.",
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
            retry_failed=retry_failed,
            replicate=replicate,
            as_json=as_json,
            require=require or [],
            on=place(on),
        )
        return
    if retry_failed:
        from partwise.config import ConfigError

        raise ConfigError(
            "--retry-failed is for commands: runs of a preset that were ended continue with the same command"
        )
    from partwise.torch_extra import require_torch

    require_torch("this command")
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
    workers: Annotated[int, typer.Option("--workers", metavar="N", help="Concurrent trials.", min=1)] = 1,
    imports: Import = None,
) -> None:
    """Run trials of a comparison that was started with --on workers, here or on any machine that sees its folder."""
    sources = load_imports(imports)
    from partwise.cli.commands.work import work_on

    work_on(comparison, workers, sources)


@app.command()
def demo(
    name: Name = "demo",
    first_seed: Annotated[int, typer.Option(help="First seed: other seeds train other models.", min=0)] = 0,
    steps: Annotated[int | None, typer.Option(help="Training steps. Default: 600.", min=1)] = None,
) -> None:
    """Compare three variants of a small GPT in a few minutes: one is better, one equivalent, one worse."""
    from partwise.comparison.runs import EXECUTED_BY
    from partwise.comparison.trials.forkserver import prestart
    from partwise.torch_extra import require_torch

    require_torch("this command")
    prestart(EXECUTED_BY)
    from partwise.cli.commands.demo import run_demo

    run_demo(name or "demo", first_seed, steps)

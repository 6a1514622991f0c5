"""The command for searches: try."""

from typing import Annotated, Any

import typer

from partwise.cli.options import FLAG, Json, app

SETTINGS: Any = {"rich_help_panel": "Settings of the search, given once"}


@app.command("try")
def try_candidate(
    search: Annotated[str, typer.Option("--search", metavar="NAME", help="The search: its folder below runs/.")],
    candidate: Annotated[
        str | None,
        typer.Argument(
            metavar="CANDIDATE", help="A commit, a patch file, or a command with {seed}. Without it: show the search."
        ),
    ] = None,
    description: Annotated[
        str | None, typer.Option("--description", metavar="TEXT", help="What the candidate changes, on one line.")
    ] = None,
    again: Annotated[
        bool, typer.Option("--again", metavar=FLAG, help="Try it once more, although it has an answer.")
    ] = False,
    abandon: Annotated[
        bool, typer.Option("--abandon", metavar=FLAG, help="End the unfinished try as undecided, first.")
    ] = False,
    allow_changes: Annotated[
        bool,
        typer.Option(
            "--allow-changes",
            metavar=FLAG,
            help="Continue with other packages or on another machine: repeats the best.",
        ),
    ] = False,
    as_json: Json = False,
    start: Annotated[
        str | None, typer.Option("--start", metavar="COMMIT", help="The first best. Default: HEAD.", **SETTINGS)
    ] = None,
    command: Annotated[
        str | None,
        typer.Option(
            "--command", metavar="COMMAND", help="What to run, such as 'python train.py --seed={seed}'.", **SETTINGS
        ),
    ] = None,
    metric: Annotated[
        str | None,
        typer.Option(
            "--metric",
            metavar="METRIC",
            help="A pattern of its output, such as 'val_bpb (\\S+)', or FILE:KEY.",
            **SETTINGS,
        ),
    ] = None,
    minutes: Annotated[
        float | None,
        typer.Option(
            help="The time that the program gives itself per run. A run is ended, and has failed, after 3 times as much.",
            **SETTINGS,
        ),
    ] = None,
    higher_is_better: Annotated[
        bool, typer.Option("--higher-is-better", metavar=FLAG, help="Higher values are better.", **SETTINGS)
    ] = False,
    alpha: Annotated[
        float | None,
        typer.Option(help="Share of false ones among the kept, on average. Default: 0.05.", **SETTINGS),
    ] = None,
    fixed: Annotated[
        list[str] | None,
        typer.Option(
            "--fixed", metavar="PATH", help="A file or folder that no candidate changes. Repeatable.", **SETTINGS
        ),
    ] = None,
    evaluate: Annotated[
        str | None,
        typer.Option(
            "--evaluate",
            metavar="COMMAND",
            help="Measures {folder} afterwards, in a checkout of its own, with a fixed file.",
            **SETTINGS,
        ),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Runs at a time, each pinned to cores of its own. Default: 1, with the machine to itself.",
            **SETTINGS,
        ),
    ] = None,
    setup: Annotated[
        str | None, typer.Option("--setup", metavar="COMMAND", help="What prepares each checkout.", **SETTINGS)
    ] = None,
    share: Annotated[
        list[str] | None,
        typer.Option(
            "--share", metavar="PATH", help="Ignored data to link into each checkout. Repeatable.", **SETTINGS
        ),
    ] = None,
) -> None:
    """Try a change against the best so far: keep, discard or undecided, with few false keeps however long you search.

    Exits with 0 for keep, 1 for discard, 3 for undecided. A command that was stopped continues when it is given again.

    Example: partwise try HEAD --search speed --command 'python train.py --seed={seed}' --metric 'val_bpb (\\S+)' --minutes 5
    """
    from partwise.cli.commands.try_candidate import run_try

    settings = {
        "start": start,
        "command": command,
        "minutes": minutes,
        "alpha": alpha,
        "fixed": fixed or None,
        "evaluate": evaluate,
        "setup": setup,
        "share": share or None,
        "workers": workers,
    }
    run_try(
        search,
        candidate,
        settings,
        metric,
        higher_is_better=higher_is_better,
        description=description,
        again=again,
        abandon=abandon,
        allow_changes=allow_changes,
        as_json=as_json,
    )

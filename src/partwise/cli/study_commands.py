"""Commands for studies: run, list, table, judge, time."""

from pathlib import Path
from typing import Annotated

import typer

from partwise.cli.options import FLAG, Workers, study_app


@study_app.command("run")
def run_studies(
    studies: Annotated[
        list[str] | None, typer.Argument(metavar="[STUDY...]", help="Names of studies, or YAML files of your own.")
    ] = None,
    protocol: Annotated[
        str | None, typer.Option("--protocol", metavar="NAME", help="Run every study with this protocol.")
    ] = None,
    comparison: Annotated[
        list[str] | None,
        typer.Option(
            "--comparison",
            metavar="KEY",
            help="Run only this comparison of a study, and keep the others' results. Repeatable.",
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", metavar=FLAG, help="Only estimate the time.")] = False,
    workers: Workers = None,
) -> None:
    """Run every comparison of one or more studies. Run the same command again to resume."""
    from partwise.cli.commands.study import run_studies as run

    run(studies or [], protocol, comparison or [], dry_run, workers)


@study_app.command("list")
def list_studies() -> None:
    """List the studies with their results so far."""
    from partwise.cli.commands.study import list_studies as run

    run()


@study_app.command("table")
def study_table(
    out: Annotated[Path | None, typer.Option(help="Output file. Default: print.")] = None,
) -> None:
    """Print a table of published claims, our results with intervals, and the answers."""
    from partwise.cli.commands.study import show_claims

    show_claims(out)


@study_app.command("judge")
def judge_studies(
    studies: Annotated[list[str], typer.Argument(metavar="STUDY...", help="Names of studies.")],
) -> None:
    """Judge stored results again by the rules of this version, without training, and print what changed."""
    from partwise.cli.commands.study import judge_studies as run

    run(studies)


@study_app.command("time")
def time_studies(
    studies: Annotated[list[str], typer.Argument(metavar="STUDY...", help="Names of studies.")],
) -> None:
    """Time training steps of the arms in turn on this machine, and recompute the seconds saved."""
    from partwise.cli.commands.study import time_studies as run

    run(studies)

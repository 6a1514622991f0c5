"""Commands for studies: run, list, table."""

from pathlib import Path
from typing import Annotated

import typer

from partwise.cli.options import FLAG, study_app


@study_app.command("run")
def run_study(
    study: Annotated[str, typer.Argument(help="Name of a study, or a YAML file of your own.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", metavar=FLAG, help="Only estimate the time.")] = False,
) -> None:
    """Run every comparison of a study. Run the same command again to resume."""
    from partwise.cli.commands.compare import run_study as run

    run(study, dry_run)


@study_app.command("list")
def list_studies() -> None:
    """List the studies with their results so far."""
    from partwise.cli.commands.compare import list_studies as run

    run()


@study_app.command("table")
def study_table(
    out: Annotated[Path | None, typer.Option(help="Output file. Default: print.")] = None,
) -> None:
    """Print a table of published claims, our results with intervals, and the answers."""
    from partwise.cli.commands.compare import show_claims

    show_claims(out)

"""Commands for what runs and comparisons leave behind: their list, the ledger of a project, and certificates."""

from pathlib import Path
from typing import Annotated

import typer

from partwise.cli.options import FLAG, Import, app, ledger_app, load_imports

LedgerFile = Annotated[
    Path | None, typer.Option("--file", help="The ledger. Default: runs/ledger.sqlite in the nearest folder with .git.")
]


@ledger_app.callback(invoke_without_command=True)
def show_ledger(context: typer.Context, file: LedgerFile = None) -> None:
    """List every comparison of this project with its outcome, whether or not it found anything."""
    if context.invoked_subcommand is None:
        from partwise.cli.commands.ledger import show_ledger as run

        run(file)


@ledger_app.command("export")
def export_ledger(
    out: Annotated[
        Path | None,
        typer.Argument(help="Output file: CSV if it ends in .csv, else JSON lines. Default: print JSON lines."),
    ] = None,
    file: LedgerFile = None,
) -> None:
    """Write all records as JSON lines or CSV."""
    from partwise.cli.commands.ledger import export_ledger as run

    run(file, out)


@ledger_app.command("verify")
def verify_ledger(file: LedgerFile = None) -> None:
    """Check the chain of hashes; exit with 1 and name the first record that was changed."""
    from partwise.cli.commands.ledger import verify_ledger as run

    run(file)


@app.command()
def verify(
    file: Annotated[Path, typer.Argument(help="The certificate.json of a comparison, or its folder.")],
    rerun: Annotated[
        int, typer.Option(help="Also repeat this many trials, drawn at random, and compare their values.", min=0)
    ] = 0,
    imports: Import = None,
) -> None:
    """Check a certificate: judge its values anew; exit with 1 if a verdict does not hold."""
    from partwise.cli.commands.verify import verify_certificate as run

    run(file, rerun, load_imports(imports))


@app.command("runs")
def list_runs(
    folder: Annotated[Path, typer.Argument(help="Folder to search.")] = Path("runs"),
    sort: Annotated[str, typer.Option(help="age (newest first), name, state, size, loss or verdict.")] = "age",
    text: Annotated[str | None, typer.Option("--filter", metavar="TEXT", help="Only entries with this text.")] = None,
    as_json: Annotated[bool, typer.Option("--json", metavar=FLAG, help="Print JSON.")] = False,
) -> None:
    """List every run and comparison below a folder: size, state, loss, verdict and age."""
    from partwise.cli.commands.runs import show_runs

    show_runs(folder, sort, text, as_json)


@app.command()
def report(
    target: Annotated[str, typer.Argument(metavar="RUN_OR_COMPARISON", help="Its name under runs/, or its folder.")],
    imports: Import = None,
) -> None:
    """Write the page of a run or a comparison, report.html in its folder, and print its path."""
    from partwise.cli.commands.report import report as run

    load_imports(imports)
    run(target)

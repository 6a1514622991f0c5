"""Commands for what runs and comparisons leave behind: verdicts on values, lists, the ledger of a project, certificates."""

import gc
from pathlib import Path
from typing import Annotated

import typer

from partwise.cli.options import FLAG, Figures, Import, Json, app, ledger_app, load_imports

LedgerFile = Annotated[
    Path | None, typer.Option("--file", help="The ledger. Default: runs/ledger.sqlite in the nearest folder with .git.")
]


@app.command()
def verdict(
    file: Annotated[
        Path, typer.Argument(help="CSV, .jsonl or .parquet with seed, arm and value; TensorBoard folder; W&B CSV.")
    ],
    margin: Annotated[
        float | None,
        typer.Option(
            help="Largest difference that does not matter, in the values' unit. Required, except with --target or --rule."
        ),
    ] = None,
    target: Annotated[
        float | None, typer.Option(help="Judge every entry against this number; one arm is enough, and no seeds.")
    ] = None,
    search: Annotated[
        bool,
        typer.Option(
            "--search",
            metavar=FLAG,
            help="The file is the results.tsv of a search: how many of its keeps would chance explain?",
        ),
    ] = False,
    any_time: Annotated[
        bool,
        typer.Option("--any-time", metavar=FLAG, help="A verdict that you may ask for after every new run."),
    ] = False,
    rule: Annotated[
        str | None,
        typer.Option("--rule", metavar="NAME", help="The target of a contest: modded-nanogpt, parameter-golf, ..."),
    ] = None,
    record: Annotated[float | None, typer.Option(help="--rule parameter-golf: the mean of the last record.")] = None,
    alpha: Annotated[
        float | None,
        typer.Option(
            help="--target: error of 'reached', and of 'missed'. Default: 0.01. --any-time without it: 0.05 over both."
        ),
    ] = None,
    looks: Annotated[
        str | None, typer.Option("--looks", metavar="N,N,...", help="--target: planned looks, in runs, such as 3,6.")
    ] = None,
    time: Annotated[
        str | None,
        typer.Option(
            "--time",
            metavar="COLUMN",
            help="--target: the column of times; empty or inf if a run never arrived. Judges the median.",
        ),
    ] = None,
    sd_source: Annotated[
        str | None, typer.Option("--sd-source", metavar="TEXT", help="--target, --search: where --known-sd comes from.")
    ] = None,
    higher_is_better: Annotated[
        bool, typer.Option("--higher-is-better", metavar=FLAG, help="Higher values are better.")
    ] = False,
    baseline: Annotated[str | None, typer.Option(help="Baseline arm. Default: the first in the file.")] = None,
    judged: Annotated[
        int | None,
        typer.Option(
            help="Number of seeds in an earlier verdict: only those are judged; the later ones are exploratory."
        ),
    ] = None,
    failure: Annotated[float | None, typer.Option(help="Value beyond which a run failed.")] = None,
    unpaired: Annotated[
        bool, typer.Option("--unpaired", metavar=FLAG, help="Do not pair the runs by their seed.")
    ] = False,
    metric: Annotated[str, typer.Option(help="Name of the metric.")] = "value",
    known_sd: Annotated[
        float | None, typer.Option("--known-sd", help="Known SD of one run: use a normal interval.")
    ] = None,
    columns: Annotated[
        str | None,
        typer.Option("--columns", metavar="NAME=COLUMN,...", help="The file's own names: arm=group,value=val_loss."),
    ] = None,
    run_names: Annotated[
        str | None,
        typer.Option(
            "--run-names",
            metavar="PATTERN",
            help="TensorBoard, W&B: how runs are named, such as {arm}-seed{seed}. Default: {arm}-{seed}.",
        ),
    ] = None,
    take: Annotated[
        str | None, typer.Option(help="TensorBoard, W&B: last, min, max, or a step. Default: last.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Judge existing results: differences, confidence intervals and verdicts.

    With --target: whether each entry reaches a number that was fixed in advance. With --search: what chance would have kept.

    Judge once: a file that grows and is judged again at 4, 8, 16 and 32 seeds has a false difference in 15% of cases. Give
    --judged from the second time on, plan the looks (compare --looks), or ask with --any-time.
    """
    options = {name: value for name, value in locals().items() if name != "file"}
    gc.disable()  # collecting would take a fifth of the time of so short a command
    try:
        from partwise.cli.commands.verdict_forms import judge

        judge(file, options)
    finally:
        gc.enable()


@ledger_app.callback(invoke_without_command=True)
def show_ledger(context: typer.Context, file: LedgerFile = None, as_json: Json = False) -> None:
    """List every comparison of this project with its outcome, whether or not it found anything."""
    if context.invoked_subcommand is None:
        from partwise.cli.commands.ledger import show_ledger as run

        run(file, as_json)


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


@ledger_app.command("recheck")
def recheck_ledger(file: LedgerFile = None) -> None:
    """List the verdicts that the newest method of judging would change; nothing is overwritten."""
    from partwise.cli.commands.ledger import recheck_ledger as run

    run(file)


@app.command()
def verify(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE...", help="The certificate.json of comparisons, or their folders.")
    ],
    rerun: Annotated[
        int,
        typer.Option(help="Also repeat this many trials of each, drawn at random, and compare their values.", min=0),
    ] = 0,
    check_parts: Annotated[
        bool,
        typer.Option("--check-parts", metavar=FLAG, help="Also repeat the checks of your own parts; give --import."),
    ] = False,
    imports: Import = None,
    as_json: Json = False,
) -> None:
    """Check certificates: judge their values again; exit with 1 if a verdict does not hold, with 2 for an unreadable file."""
    from partwise.cli.commands.verify import verify_certificates as run

    run(files, rerun, load_imports(imports), check_parts, as_json)


@app.command()
def look(
    comparison: Annotated[str, typer.Argument(metavar="COMPARISON", help="Name below runs/, or folder.")],
    as_json: Json = False,
) -> None:
    """Show the arms of a running comparison with their losses; the ledger records the look."""
    from partwise.cli.commands.look import look as run

    run(comparison, as_json)


@app.command("runs")
def list_runs(
    folder: Annotated[Path, typer.Argument(help="Folder to search.")] = Path("runs"),
    sort: Annotated[str, typer.Option(help="age (newest first), name, state, size, loss or verdict.")] = "age",
    text: Annotated[str | None, typer.Option("--filter", metavar="TEXT", help="Only entries with this text.")] = None,
    as_json: Json = False,
) -> None:
    """List every run, comparison and search below a folder: size, state, loss, verdict and age."""
    from partwise.cli.commands.runs import show_runs

    show_runs(folder, sort, text, as_json)


@app.command()
def report(
    target: Annotated[str, typer.Argument(metavar="RUN_OR_COMPARISON", help="Its name under runs/, or its folder.")],
    figures: Figures = None,
    imports: Import = None,
) -> None:
    """Write the page of a run or a comparison, report.html in its folder, and print its path."""
    from partwise.cli.commands.report import report as run

    load_imports(imports)
    run(target, figures)

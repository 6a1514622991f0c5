"""`ledger`: list, export and verify the ledger of this project, without importing torch."""

from dataclasses import asdict
from pathlib import Path

import typer

from partwise.cli.terminal import console, print_error, print_json, table
from partwise.comparison.certificate.recheck import recheck
from partwise.comparison.ledger.chain import ChainEntry, DamagedLedgerError, Ledger, first_broken
from partwise.comparison.ledger.listing import count, list_comparisons, to_csv, to_json_lines
from partwise.comparison.ledger.project import project_ledger
from partwise.comparison.stats.methods import newest_method
from partwise.config import ConfigError
from partwise.drafts import write_output
from partwise.messages import quantity


def find_ledger(file: Path | None) -> Ledger:
    ledger = Ledger(file) if file else project_ledger()
    if not ledger.path.exists():
        raise ConfigError(f"{ledger.path}: no such file; `partwise compare` creates the ledger of a project")
    return ledger


def show_ledger(file: Path | None, as_json: bool = False) -> None:
    """Print every comparison with its outcome, and counts."""
    ledger = find_ledger(file)
    records = read_ledger(ledger)
    if as_json:
        rows = [asdict(row) for row in list_comparisons(records)]
        print_json({"file": str(ledger.path), "comparisons": rows, "counts": count(records)})
        return
    columns = ["record", "started", "comparison", "seeds", "level", "outcome"]
    console.print(table(str(ledger.path), columns, [row.cells() for row in list_comparisons(records)]))
    console.print(", ".join(f"{key}: {value}" for key, value in count(records).items()), markup=False)


def export_ledger(file: Path | None, out: Path | None) -> None:
    """Write all records as CSV if `out` ends in .csv, else as JSON lines; without `out`, print JSON lines."""
    records = read_ledger(find_ledger(file))
    if out is None:
        typer.echo(to_json_lines(records), nl=False)
        return
    text = to_csv(records) if out.suffix == ".csv" else to_json_lines(records)
    write_output(out, text)
    console.print(f"wrote {quantity(len(records), 'record')} to {out}", markup=False)


def verify_ledger(file: Path | None) -> None:
    """Check the chain and print what holds. Exits with 1 at the first broken record."""
    ledger = find_ledger(file)
    try:
        records = ledger.read(checked=False)
    except DamagedLedgerError as error:
        raise ConfigError(str(error)) from None
    if broken := first_broken(records):
        print_error(f"{ledger.path} was changed: record {broken[0]}: {broken[1]}")
        raise typer.Exit(1)
    last = records[-1].hash if records else "none"
    console.print(
        f"{ledger.path}: {quantity(len(records), 'record')}, the hash chain is intact; hash of the last record: {last}",
        markup=False,
    )
    console.print(
        "this cannot detect that the last records or the whole file were deleted; keep the last hash elsewhere to detect it"
    )


def recheck_ledger(file: Path | None) -> None:
    """Print the verdicts that the newest method would change. Nothing is overwritten."""
    ledger = find_ledger(file)
    found = recheck(read_ledger(ledger), ledger.path.parent.parent)
    if found.changed:
        columns = ["record", "comparison", "difference", "method", "verdict", f"method {newest_method()}"]
        console.print(table(str(ledger.path), columns, [each.cells() for each in found.changed]))
    for line in found.missing:
        console.print(f"not judged again: {line}", markup=False)
    console.print(
        f"{quantity(found.verdicts, 'verdict')} judged again by method {newest_method()}: it would change "
        f"{len(found.changed) or 'none'}; nothing was overwritten",
        markup=False,
    )


def read_ledger(ledger: Ledger) -> list[ChainEntry]:
    """The records of a whole chain. Raises ConfigError."""
    try:
        return ledger.read()
    except DamagedLedgerError as error:
        raise ConfigError(f"{error}") from None

"""`verdict --search`: audit the results.tsv of a program that searched, without importing torch."""

import math
from pathlib import Path

import typer

from partwise.cli.terminal import console, print_json
from partwise.comparison.search.audit import Noise, audit
from partwise.comparison.search.audit_text import document, headline, notes, table
from partwise.comparison.search.results_tsv import read_results
from partwise.comparison.stats.value_files import parse_columns
from partwise.comparison.stats.value_verdicts import align
from partwise.config import ConfigError
from partwise.messages import quantity
from partwise.plots.text_table import TextTable


def audit_search(
    file: Path,
    *,
    known_sd: float | None,
    sd_source: str | None,
    higher_is_better: bool,
    columns: str | None,
    as_json: bool,
) -> None:
    """Print what a search kept beside what chance would keep, as text or as JSON. Raises ConfigError."""
    named = parse_columns(columns) if columns else {}
    if others := named.keys() - {"value"}:
        raise ConfigError(f"--columns {min(others)}={named[min(others)]}: with --search only value=COLUMN")
    results = read_results(file, named.get("value"))
    noise = _given(known_sd, sd_source)
    try:
        found = audit(results.rows, not higher_is_better, noise)
    except ConfigError as error:
        raise ConfigError(f"{file}: {error}") from None
    read = f"Read {file}: {quantity(len(results.rows), 'line')}; values in {results.value_name}."
    if as_json:
        print_json(document(found, read, results.notes))
        return
    details = [*notes(found), *results.notes]
    if not console.is_terminal:
        parts = [read, "\n".join(headline(found))]
        parts += [align(table(found))] if found.kept else []
        parts += ["\n".join(["Details", *details])] if details else []
        typer.echo("\n\n".join(parts))
        return
    console.print(f"{read}\n", markup=False)
    for line in headline(found):
        console.print(line, style="bold", markup=False)
    if found.kept:
        first, *rows = table(found)
        console.print()
        console.print(TextTable(first, rows))
    if details:
        console.print("\nDetails", style="bold", markup=False)
    for line in details:
        console.print(line, markup=False)


def _given(known_sd: float | None, source: str | None) -> Noise | None:
    if known_sd is None:
        if source is not None:
            raise ConfigError(f"--sd-source {source!r}: give the SD itself as --known-sd")
        return None
    if not (math.isfinite(known_sd) and known_sd > 0):
        raise ConfigError(f"--known-sd {known_sd:g}: expected the SD of single runs, a positive number")
    if not (source or "").strip():
        raise ConfigError(
            f"--known-sd {known_sd:g}: say where it comes from, as in --sd-source '10 runs of the baseline'"
        )
    return Noise(sd=known_sd, df=None, source=source or "")

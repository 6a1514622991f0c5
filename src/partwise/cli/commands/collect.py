"""`collect`: the hand-ins of a class, read and shown; executed only if asked."""

import glob
from collections.abc import Sequence
from pathlib import Path

import typer

from partwise.classroom.assignment import Assignment
from partwise.classroom.baseline import Baseline
from partwise.classroom.collection import Collection, collect
from partwise.classroom.page import write_page
from partwise.classroom.summary import HEAD, UNDETECTED, class_sentences, lists, row
from partwise.cli.terminal import console, print_error, print_json, table
from partwise.config import ConfigError
from partwise.plots.blocks import without_empty_columns


def collect_class(
    hand_ins: Sequence[Path],
    course: Path,
    baseline: Sequence[Path],
    page: Path | None,
    run_parts: bool,
    rerun: int,
    limit: float,
    as_json: bool,
) -> None:
    """Print the table of a class, its objections and what reading cannot show. Exits with 1 for an objection, 2 if nothing
    could be read. Raises ConfigError."""
    assignment = Assignment.read(course)
    found = collect(expand(hand_ins), assignment, Baseline.read(baseline, assignment) if baseline else None)
    if run_parts or rerun:
        from partwise.cli.commands.hand_in_runs import execute

        execute(found, run_parts, rerun, limit)
    for name, reason in found.refused.items():
        print_error(f"{name}: {reason}")
    if page is not None:
        write_page(found, page)
    if as_json:
        print_json(found.to_dict())
    else:
        show(found)
        if page is not None:
            console.print(f"page: {page}", markup=False)
    if not found.entries:
        raise typer.Exit(2)
    if found.refused or any(entry.objections for entry in found.entries):
        raise typer.Exit(1)


def expand(hand_ins: Sequence[Path]) -> list[Path]:
    """The hand-ins; a pattern that the shell left as it is, as on Windows, becomes the files that match."""
    found = list[Path]()
    for path in hand_ins:
        pattern = str(path)
        matches = sorted(glob.glob(pattern)) if glob.has_magic(pattern) and not path.exists() else [pattern]
        if not matches:
            raise ConfigError(f"{pattern}: no such file; give the hand-ins, such as handed/*")
        found += map(Path, matches)
    return found


def show(found: Collection) -> None:
    """Print table and sentences."""
    if found.entries:
        head, rows = without_empty_columns(HEAD, [row(entry) for entry in found.entries], "")
        console.print(table("", head, rows))
    for line in [*class_sentences(found), *found.notes]:
        console.print(line, markup=False)
    for title, lines in lists(found):
        console.print(f"\n{title}", style="bold")
        for line in lines:
            console.print(line, markup=False)
    console.print(f"\n{UNDETECTED}", markup=False)

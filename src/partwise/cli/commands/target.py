"""`verdict --target`: judge runs against a number, without importing torch."""

from collections.abc import Sequence
from pathlib import Path

import typer

from partwise.cli.commands.power_table import parse_numbers
from partwise.cli.terminal import console, print_json
from partwise.comparison.stats.value_files import parse_columns
from partwise.comparison.stats.value_verdicts import align
from partwise.comparison.targets.contests import Rule, find_rule
from partwise.comparison.targets.run_files import read_runs
from partwise.comparison.targets.target import DEFAULT_ALPHA, Entry, Target, judge_entries
from partwise.comparison.targets.target_text import document, headline, notes, table
from partwise.config import ConfigError
from partwise.plots.text_table import TextTable

MARKS = {"reached": ("✓", "green"), "missed": ("✕", "red"), "undecided": ("?", "yellow")}


def judge_target(
    file: Path,
    *,
    target: float | None,
    rule: str | None,
    record: float | None,
    alpha: float | None,
    looks: str | None,
    time: str | None,
    known_sd: float | None,
    sd_source: str | None,
    higher_is_better: bool,
    columns: str | None,
    as_json: bool,
) -> None:
    """Print whether each entry of a file reaches the target, as text or as JSON. Raises ConfigError."""
    preset = find_rule(rule) if rule is not None else None
    if preset is None and record is not None:
        raise ConfigError(f"--record {record:g}: only with a --rule that compares with the last record; give --target")
    planned = parse_numbers("--looks", looks, "numbers of runs, such as 3,6") if looks is not None else ()
    if preset is not None:
        direction = {"--higher-is-better": True if higher_is_better else None}
        for flag, value in {
            "--target": target,
            "--alpha": alpha,
            "--known-sd": known_sd,
            "--time": time,
            "--sd-source": sd_source,
            **direction,
        }.items():
            if value is not None:
                shown = flag if value is True else f"{flag} {value}"
                raise ConfigError(f"{shown}: --rule {rule} sets it; leave out one")
        against = preset.target(record, planned)
    else:
        assert target is not None
        level = DEFAULT_ALPHA if alpha is None else alpha
        against = Target(
            target, level, not higher_is_better, planned, known_sd, sd_source or "", times=time is not None
        )
    runs = read_runs(file, parse_columns(columns) if columns else None, time)
    entries = judge_entries(runs.values, against)
    if as_json:
        print_json(document(entries, against, runs.read, preset.to_dict() if preset else None))
    else:
        show(entries, against, runs.read, preset)


def show(entries: Sequence[Entry], target: Target, read: str, rule: Rule | None) -> None:
    """Print outcomes, table and details, on a terminal wrapped between words."""
    heads = [(MARKS[entry.outcome], headline(entry, target)) for entry in entries]
    details = [*(rule.sentences() if rule else ()), *notes(entries, target)]
    if not console.is_terminal:
        text = "\n".join(head for _, head in heads)
        typer.echo("\n\n".join([read, text, align(table(entries, target)), "\n".join(["Details", *details])]))
        return
    console.print(f"{read}\n", markup=False)
    for (mark, color), head in heads:
        console.print(f"{mark} {head}", style=f"bold {color}", markup=False)
    first, *rows = table(entries, target)
    console.print()
    console.print(TextTable(first, rows))
    console.print("\nDetails", style="bold", markup=False)
    for line in details:
        console.print(line, markup=False)

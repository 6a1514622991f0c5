"""`inspect`: an inspection of a preset or a run."""

import re
from dataclasses import replace
from importlib import import_module
from pathlib import Path

from partwise.cli.commands.report import save_figures
from partwise.cli.terminal import console, print_json, table
from partwise.config import ConfigError, did_you_mean, digest
from partwise.inspection.inspections import INSPECTIONS
from partwise.inspection.subject import check_seq_len, find_subject
from partwise.plots.page import Page, files_of_page, write_page
from partwise.plots.paired_page import pair_pages
from partwise.run_names import default_run_name, explain_write_errors


def inspect_target(
    target: str,
    what: str,
    words: list[str],
    data: str | None,
    seq_len: int | None,
    text: str | None,
    processes: int,
    against: str | None = None,
    figures: Path | None = None,
    as_json: bool = False,
) -> None:
    """Run one inspection of a preset or a run, or of two `against` each other; print its table and write its page.

    Overrides and options hold for both.
    """
    if what not in INSPECTIONS:
        raise ConfigError(f"unknown inspection {what!r}{did_you_mean(what, INSPECTIONS)}")
    if processes > 1 and what != "memory":
        raise ConfigError(f"--processes {processes}: only `inspect {target} memory` divides a step between processes")
    subjects = [
        replace(find_subject(name, words, data, seq_len, text), processes=processes)
        for name in (target, against)
        if name is not None
    ]
    subject = subjects[0]
    if what != "length":  # which looks beyond the context
        for each in subjects:
            check_seq_len(each)
    if against is not None and subjects[1].name == subject.name and subjects[1].run == subject.run:
        raise ConfigError(f"--against {against}: is the same model as {target}; give another preset or run")
    inspect = import_module(f"partwise.inspection.{INSPECTIONS[what].module}").inspect
    pages: list[Page] = [inspect(each) for each in subjects]
    page = pages[0] if against is None else pair_pages((subject.name, subjects[1].name), (pages[0], pages[1]))
    name = " against ".join(each.name for each in subjects)
    console.print(table(f"{name} on {subject.config.data.label}: {page.title}", page.columns, page.rows))
    console.print(page.about, style="dim", markup=False)
    options = {
        "data": data,
        "seq-len": seq_len,
        "text": text,
        "processes": processes if processes > 1 else None,
        "against": None if against is None else subjects[1].name,
    }
    changes = [*words, *(f"{name}={value}" for name, value in options.items() if value is not None)]
    path = subject.folder / f"inspect-{what}-{subject.name}{page_suffix(changes)}.html"
    with explain_write_errors(path):
        write_page(path, name, page)
    if figures is not None:
        save_figures(figures, files_of_page(page))
    console.print(f"page: {path}", markup=False)
    if as_json:
        shown = {"title": page.title, "about": page.about, "columns": page.columns, "rows": page.rows}
        print_json({"page": str(path), **shown})


def page_suffix(changes: list[str]) -> str:
    """The suffix of a page's name after its subject, different for different overrides and options."""
    if not changes:
        return ""
    plain = all(re.fullmatch(r"[A-Za-z0-9._=+-]+", change) for change in changes)
    return f"_{default_run_name(changes)}" + ("" if plain else f"~{digest(changes)[:8]}")

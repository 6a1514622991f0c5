"""`report`: the page of a run or a comparison, written from its files."""

from collections.abc import Mapping
from pathlib import Path

from partwise.ablation.run_list import find_comparison, list_runs
from partwise.cli.terminal import console
from partwise.comparison.report import write_report
from partwise.comparison.results import Results
from partwise.config import ConfigError, did_you_mean
from partwise.plots.blocks import Section
from partwise.plots.page import files_of_sections, write_figures
from partwise.run_names import explain_write_errors


def report(name: str, figures: Path | None = None) -> None:
    """Write the page and print its path; also each figure into the folder `figures`. Raises ConfigError."""
    folder = find_comparison(name)
    path, sections = report_run(name) if folder is None else report_comparison(folder)
    if figures is not None:
        save_figures(figures, files_of_sections(sections))
    console.print(f"report: {path}", markup=False, soft_wrap=True)


def save_figures(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write the files of figures and print how many."""
    with explain_write_errors(folder):
        write_figures(folder, files)
    console.print(f"figures: {len(files)} files in {folder}", markup=False)


def report_comparison(folder: Path) -> tuple[Path, list[Section]]:
    """Write the report from `results.json`, which needs no torch."""
    results = folder / "results.json"
    if not results.exists():
        raise ConfigError(f"{folder} has no results yet: run the command of the comparison again to finish it")
    with explain_write_errors(folder / "report.html"):
        return folder / "report.html", write_report(Results.from_json(results), folder)


def report_run(name: str) -> tuple[Path, list[Section]]:
    if not any((folder / "run.json").exists() for folder in (Path("runs") / name, Path(name))):
        known = (
            [entry.name for entry in list_runs(Path("runs")) if entry.kind != "search"] if Path("runs").is_dir() else []
        )
        raise ConfigError(f"there is no run or comparison {name!r}{did_you_mean(name, known)}")
    from partwise.train.run_metadata import open_run
    from partwise.train.run_page import StoredRun, write_page_of

    with console.status("writing the page"):
        run = StoredRun(*open_run(name))
        return write_page_of(run), run.sections

"""`report`: the page of a run or a comparison, written from its files."""

from pathlib import Path

from partwise.ablation.run_list import find_comparison, list_runs
from partwise.cli.terminal import console
from partwise.comparison.report import write_report
from partwise.comparison.results import Results
from partwise.config import ConfigError, did_you_mean
from partwise.run_names import explain_write_errors


def report(name: str) -> None:
    """Write the page and print its path. Raises ConfigError."""
    folder = find_comparison(name)
    path = report_run(name) if folder is None else report_comparison(folder)
    console.print(f"report: {path}", markup=False, soft_wrap=True)


def report_comparison(folder: Path) -> Path:
    """Write the report from `results.json`, which needs no torch."""
    results = folder / "results.json"
    if not results.exists():
        raise ConfigError(f"{folder} has no results yet: run the command of the comparison again to finish it")
    with explain_write_errors(folder / "report.html"):
        write_report(Results.from_json(results), folder)
    return folder / "report.html"


def report_run(name: str) -> Path:
    if not any((folder / "run.json").exists() for folder in (Path("runs") / name, Path(name))):
        known = [entry.name for entry in list_runs(Path("runs"))] if Path("runs").is_dir() else []
        raise ConfigError(f"there is no run or comparison {name!r}{did_you_mean(name, known)}")
    from partwise.train.run_page import write_run_page

    with console.status("writing the page"):
        return write_run_page(name)

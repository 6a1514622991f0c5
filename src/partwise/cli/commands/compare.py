"""`compare` and `study`."""

from pathlib import Path
from typing import Any

from partwise.cli.commands.compare_output import (
    Output,
    announce,
    compare_over_grid,
    replicate_winner,
    run_comparison,
    say_stopped,
    start_progress,
)
from partwise.cli.commands.power_table import parse_looks, parse_numbers, power_sentences
from partwise.cli.terminal import console, format_duration, table
from partwise.comparison.design.request import Request
from partwise.comparison.noise_store import expected_noise, ignored_calibrations
from partwise.comparison.report import summary
from partwise.comparison.runs.comparison import RunComparison, make_comparison, make_grid
from partwise.comparison.stats.power import default_looks
from partwise.config import ConfigError
from partwise.studies.claims import find_outcomes, overall
from partwise.studies.forest import draw_claims
from partwise.studies.page import PICTURE, markdown
from partwise.studies.study import StudyResults, all_studies, find_study
from partwise.studies.trends import TRENDS, draw_trends

PROTOCOL_SEEDS = 16


def compare_variants(
    options: dict[str, Any],
    *,
    protocol: bool,
    grid: list[str],
    replicate: bool,
    name: str | None,
    dry_run: bool,
    sd: float | None,
    workers: int | None,
    seeds_per_process: int | None,
    processes_per_run: int,
    imports: tuple[str, ...],
    as_json: bool = False,
    require: list[str] | None = None,
    on: str = "local",
) -> None:
    """Run a comparison and print its summary, or with `dry_run` print an estimate of its time and power."""
    output = Output(as_json, require or [])
    request = make_request(options, protocol)
    if grid:
        output.refuse_grid()
        processes: dict[str, Any] = {"workers": workers, "seeds_per_process": seeds_per_process, "on": on}
        processes["processes_per_run"] = processes_per_run
        run_over_grid(request, grid, name, dry_run=dry_run, sd=sd, imports=imports, **processes)
        return
    comparison = make_comparison(request, name, imports, workers, seeds_per_process, on, processes_per_run)
    if dry_run:
        show_estimate(comparison, sd)
        return
    output.check(comparison)
    run_comparison(comparison)
    if replicate:
        replicate_winner(comparison)
    output.end(comparison, comparison.results)


def run_over_grid(
    request: Request, grid: list[str], name: str | None, *, dry_run: bool, sd: float | None, **settings: Any
) -> None:
    """Run one comparison per grid setting, each with its own verdict."""
    cells = list(make_grid(request, grid, name, **settings))
    if dry_run:
        for _, comparison in cells:
            show_estimate(comparison, sd)
        return
    compare_over_grid(cells, grid, name or request.name())


def make_request(options: dict[str, Any], protocol: bool) -> Request:
    """The request that the command's options describe. Raises ConfigError."""
    values = {key: value for key, value in options.items() if value is not None}
    if "looks" in values:
        if "seeds" in values:
            raise ConfigError(
                f"--seeds {values['seeds']} --looks {values['looks']}: give only one; the last look sets the seeds"
            )
        values["looks"] = list(parse_looks(values["looks"]))
    elif protocol:
        values["looks"] = list(default_looks(values.get("seeds", PROTOCOL_SEEDS)))
    if "horizons" in values:
        expected = "numbers of steps, such as 500,2000,8000"
        values["horizons"] = list(parse_numbers("--horizons", values["horizons"], expected))
    return Request.from_dict(values)


def show_estimate(comparison: RunComparison, sd: float | None) -> None:
    plan = comparison.plan
    announce(comparison)
    estimate = comparison.estimate()
    at_most = "at most " if len(plan.looks) > 1 else ""
    duration = format_duration(estimate.minutes * 60)
    console.print(
        f"{at_most}about {duration} for {estimate.runs} runs, {estimate.workers} at a time, extrapolated from a "
        "short timing run"
        + (
            f", ignoring the speedup from {estimate.seeds_per_process} seeds per process"
            if estimate.seeds_per_process > 1
            else f", each in one process instead of {estimate.processes_per_run}"
            if estimate.processes_per_run > 1
            else ""
        )
    )
    noise = expected_noise(plan, comparison.prepare().hash, sd)
    if plan.seeds < 2:
        console.print(
            "no effect is detectable: a single seed gives no interval; --seeds must be at least 2, preferably 5"
        )
        return
    if ignored := ignored_calibrations():
        console.print(ignored, markup=False)
    for sentence in power_sentences(plan, noise):
        console.print(sentence, markup=False)


def run_study(name: str, dry_run: bool) -> None:
    """Run every comparison of a study, or with `dry_run` print estimates."""
    study = find_study(name)
    if dry_run:
        for _, comparison in study.plan():
            show_estimate(comparison, None)
        return

    try:
        path = study.run(start_progress)
    except KeyboardInterrupt as error:
        say_stopped(error, f"To resume:\n  partwise study run {name}")
        raise
    for results in StudyResults.from_json(path).comparisons.values():
        console.print(summary(results))
    console.print(f"results: {path}")


def list_studies() -> None:
    studies = all_studies()
    found = find_outcomes(studies)
    rows = [(study.name, " ".join(study.claim.split()), overall(found[study.name])) for study in studies]
    console.print(table("", ["study", "claim", "result"], rows))
    console.print("`partwise study run NAME` runs a study; `partwise study table` shows all figures")


def show_claims(out: Path | None) -> None:
    studies = all_studies()
    text = markdown(studies)
    if out is None:
        console.print(text, markup=False)
        return
    files = {out: text, out.parent / PICTURE: draw_claims(studies), out.parent / TRENDS: draw_trends(studies)}
    for path, content in files.items():
        if not content:
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
        console.print(f"wrote {path}", markup=False)

"""`study`: run, list, judge, time, table."""

from pathlib import Path

from rich.text import Text

from partwise import quoting
from partwise.ablation.run_workload import ArmTime
from partwise.cli.commands.compare_output import say_stopped, start_progress
from partwise.cli.commands.compare_preset import show_estimate
from partwise.cli.terminal import console, format_duration
from partwise.comparison.report import summary
from partwise.comparison.report.horizon_section import in_words
from partwise.config import ConfigError, digest
from partwise.drafts import write_output
from partwise.run_names import explain_write_errors
from partwise.studies.claims import find_outcomes, overall
from partwise.studies.claims_page import PICTURE, markdown
from partwise.studies.forest import draw_claims
from partwise.studies.judging import judge_study
from partwise.studies.study import Study, StudyResults, all_studies, find_study
from partwise.studies.timing import seconds_saved, time_study
from partwise.studies.trends import TRENDS, draw_trends
from partwise.wrapping import wrap


def run_studies(
    names: list[str], protocol: str | None, only: list[str], dry_run: bool, workers: int | None = None
) -> None:
    """Run the comparisons of some studies, or of all with a protocol; with `dry_run` print estimates."""
    studies = [find_study(name) for name in names]
    if protocol:
        studies += [study for study in all_studies() if study.protocol == protocol]
    if not studies:
        known = sorted({study.protocol for study in all_studies() if study.protocol})
        hint = f"no study has the protocol {protocol!r}" if protocol else "name a study, or --protocol NAME"
        raise ConfigError(f"{hint}; protocols: {', '.join(known)}")
    if only and len(studies) > 1:
        raise ConfigError(f"--comparison {only[0]}: {len(studies)} studies; name the one that it belongs to")
    if dry_run:
        estimate_studies(studies, only, workers)
        return
    for study in studies:
        try:
            path = study.run(start_progress, only, workers)
        except KeyboardInterrupt as error:
            words = [*names, *(["--protocol", protocol] if protocol else []), *(f"--comparison={key}" for key in only)]
            words += ["--workers", str(workers)] if workers else []
            say_stopped(error, f"To resume:\n  {quoting.join(['partwise', 'study', 'run', *words])}")
            raise
        for key, results in StudyResults.from_json(path).comparisons.items():
            if not only or key in only:
                console.print(summary(results))
        console.print(f"results: {path}")


def estimate_studies(studies: list[Study], only: list[str], workers: int | None) -> None:
    """Print the estimates of all comparisons, or `only` some; of all together, runs that they share count once."""
    times = dict[tuple[str, str, bool], ArmTime]()
    for study in studies:
        for key, comparison in study.plan(only, workers):
            estimate, tuned = show_estimate(comparison, None), comparison.tune is not None
            for arm in comparison.plan.arms:
                own = study.protocol or f"{study.name}, {key}"
                times[own, digest(arm.config.to_dict()), tuned] = estimate.arms[arm.name]
    if len(studies) > 1:
        total, left = (sum(each) for each in zip(*((time.minutes, time.left) for time in times.values()), strict=True))
        rest = f"; {format_duration(60 * left)} of it is left" if left < total else ""
        duration = format_duration(60 * total)
        console.print(f"together about {duration}, with the runs that these studies share counted once{rest}")


def list_studies() -> None:
    studies = all_studies()
    found = find_outcomes(studies)
    width = max(len(study.name) for study in studies)
    for study in sorted(studies, key=lambda study: not found[study.name]):  # those that were run first
        console.print(Text.assemble((f"{study.name:<{width}}  ", "bold"), overall(study, found[study.name])))
        for line in wrap(" ".join(study.claim.split()), console.width - 2):
            console.print(f"  {line}", markup=False, highlight=False)
    console.print("`partwise study run NAME` runs a study; `partwise study table` shows all figures")


def judge_studies(names: list[str]) -> None:
    """Write the results of studies with today's verdicts into the working folder, and print each verdict that changed."""
    for study in [find_study(name) for name in names]:
        judged = judge_study(study)
        before = StudyResults.from_json(study.results) if study.results else judged
        if judged == before:
            console.print(f"{study.name}: nothing changes", markup=False)
            continue
        for key, results in judged.comparisons.items():
            for old, new in zip(before.comparisons[key].effects, results.effects, strict=True):
                change = f"{old.verdict} -> " if old.verdict != new.verdict else "still "
                console.print(f"{study.name}, {key}, {new.arm}: {change}{new.verdict}", markup=False)
        study.write(judged)
        console.print(f"results: {study.own_results}", markup=False)


def time_studies(names: list[str]) -> None:
    """Write the results with the throughput of this machine into the working folder, and print the ratios of seconds."""
    for study in [find_study(name) for name in names]:
        with console.status(f"timing the arms of {study.name}"):
            timed = time_study(study)
        for key, results in timed.comparisons.items():
            for arm, ratio in seconds_saved(results).items():
                console.print(f"{study.name}, {key}, {arm}: {in_words(ratio, 'seconds')}", markup=False)
        study.write(timed)
        console.print(f"results: {study.own_results}", markup=False)


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
        with explain_write_errors(path.parent):
            path.parent.mkdir(parents=True, exist_ok=True)
        write_output(path, content)
        console.print(f"wrote {path}", markup=False)

"""`try`: a candidate of a search against the best, without importing torch."""

from collections.abc import Mapping, Sequence
from typing import Any

import typer

from partwise.any_code.open_search import open_search, state_of
from partwise.any_code.search import MAX_DESCRIPTION, OpenSearch
from partwise.cli.commands.compare_experiment import parse_metric
from partwise.cli.terminal import console, print_json, table
from partwise.comparison.gate import MET, NOT_MET, UNDECIDED
from partwise.comparison.results import TrialResult
from partwise.comparison.search.answer import SearchState, Tried
from partwise.config import ConfigError
from partwise.config.yaml import show
from partwise.messages import format_duration, quantity

STATUS = {"keep": MET, "discard": NOT_MET, "undecided": UNDECIDED}
MARKS = {"keep": ("✓", "green"), "discard": ("✕", "red"), "undecided": ("?", "yellow")}


def at_a_time(cores: Sequence[Sequence[int]]) -> str:
    """How runs share this machine."""
    if not cores:
        return "runs go one at a time: a time budget is fair only if nothing else uses this machine"
    listed = "; ".join(map(ranges, cores))
    return (
        f"{len(cores)} runs go at a time, each on cores of its own ({listed}): a time budget is fair only if nothing else "
        "uses these"
    )


def ranges(numbers: Sequence[int]) -> str:
    """Ascending numbers as Linux lists CPUs: 0-3,8."""
    firsts = [number for number in numbers if number - 1 not in numbers]
    lasts = [number for number in numbers if number + 1 not in numbers]
    pairs = zip(firsts, lasts, strict=True)
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in pairs)


def run_try(
    search: str,
    candidate: str | None,
    settings: Mapping[str, Any],
    metric: str | None,
    *,
    higher_is_better: bool,
    description: str | None,
    again: bool,
    abandon: bool,
    allow_changes: bool,
    as_json: bool,
) -> None:
    """Try a candidate, or create or show a search. Raises ConfigError; exits with the status of the decision."""
    check_description(description)
    if candidate is None and (description is not None or again):
        raise ConfigError("--description and --again belong to a candidate: give a commit, a patch file or a command")
    measured = None
    if metric is not None:
        measured = {**parse_metric(metric), "better": "higher" if higher_is_better else "lower"}
    elif higher_is_better:
        raise ConfigError("--higher-is-better belongs to --metric: give that too")
    given = any(value is not None for value in settings.values()) or measured is not None
    if candidate is None and not (given or abandon or allow_changes):
        end(state_of(search), as_json)
        return
    with open_search(search, settings, measured, allow_changes=allow_changes, tell=tell, on_run=show_run) as opened:
        answer = ask(opened, candidate, description or "", again, abandon)
        state = opened.folder.state(answer)
    end(state, as_json)
    if candidate is not None and answer is not None:
        raise typer.Exit(STATUS[answer.decision])


def ask(opened: OpenSearch, candidate: str | None, description: str, again: bool, abandon: bool) -> Tried | None:
    answer = opened.abandon() if abandon else None
    if candidate is None:
        if answer is None:
            tell(at_a_time(opened.runs.places.cores))
            opened.repeat_best()
        return answer
    tell(at_a_time(opened.runs.places.cores))
    return opened.answer(candidate, description, again)


def check_description(text: str | None) -> None:
    """Raise ConfigError for a description that a table could not hold."""
    if text is None:
        return
    if not text.isprintable() or not text.strip():
        raise ConfigError(f"--description {show(text)}: give one line of text, without tabs")
    if len(text) > MAX_DESCRIPTION:
        raise ConfigError(f"--description: {len(text)} characters; give at most {MAX_DESCRIPTION}")


def tell(line: str) -> None:
    console.print(line, markup=False)


def show_run(what: str, outcome: TrialResult) -> None:
    """One line per run, also of one that had run before."""
    value = f"failed: {outcome.reason}" if outcome.value is None else f"{outcome.value:.6g}"
    memory = "" if outcome.peak_memory is None else f", {format_memory(outcome.peak_memory)}"
    tell(f"  {what}, seed {outcome.seed}: {value}  ({format_seconds(outcome.seconds or 0.0)}{memory})")


def format_seconds(seconds: float) -> str:
    return format_duration(seconds) if seconds >= 60 else f"{seconds:.1f} s"


def format_memory(size: int) -> str:
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{size / 2**20:.0f} MiB"


def end(state: SearchState, as_json: bool) -> None:
    if as_json:
        print_json(state.to_dict())
    elif state.answer:
        show_answer(state, state.answer)
    else:
        show_state(state)


def show_answer(state: SearchState, answer: Tried) -> None:
    mark, color = MARKS[answer.decision]
    console.print(f"{mark} {answer.decision}: {answer.description}", style=f"bold {color}", markup=False)
    tell(f"  {answer.reason}")
    if answer.estimate is not None:
        against = f"try {answer.against}" if answer.against else "the start"
        tell(
            f"  {state.metric} {answer.estimate:+.4g} against {against}, "
            f"95% interval {answer.low:+.4g} to {answer.high:+.4g}, {quantity(len(answer.values), 'run')}"
        )
    if answer.decision == "keep":
        tell(f"  the best is now {answer.commit[:10]}" + (f": `{answer.command}`" if answer.kind == "command" else ""))


def show_state(state: SearchState) -> None:
    best = state.best
    called = f"try {best.number}" if best.number else "the start"
    tell(f"search {state.search}: {state.metric}, {'lower' if state.lower_is_better else 'higher'} is better")
    tell(f"best: {called}, {best.commit[:10]} ({best.description}), `{best.command}`")
    if best.mean is not None and best.sd is not None:
        tell(f"  mean {best.mean:.6g}, SD {best.sd:.2g}, {quantity(len(best.values), 'run')}")
    kept = sum(each.decision == "keep" for each in state.tries)
    tell(
        f"{quantity(len(state.tries), 'candidate')} tried, {kept} kept; {quantity(state.runs, 'run')} in all; "
        f"of the kept, at most {state.alpha:.0%} are false on average"
    )
    if state.tries:
        rows = [
            [
                each.number,
                each.decision,
                each.commit[:10],
                each.description,
                "" if each.estimate is None else f"{each.estimate:+.4g}",
                len(each.values),
            ]
            for each in state.tries
        ]
        console.print(table("", ["try", "decision", "commit", "description", "difference", "runs"], rows))

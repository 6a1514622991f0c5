"""Any-time verdicts as sentences, a table and JSON values."""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from partwise.comparison.stats.any_time import fewest_values
from partwise.comparison.stats.any_time_verdicts import METHOD, AnyTimeRow, Question
from partwise.comparison.stats.number_format import choose_decimals, format_number, format_p, format_percent


def headline(row: AnyTimeRow, question: Question) -> str:
    """The outcome of a row, and what it follows from."""
    start = f"{row.name}: {row.outcome}."
    things = _things(row)
    if row.failed:
        return (
            f"{start} {row.failed} of {things} failed, so there is no mean to judge; without them it would look better."
        )
    if row.e_better is None or row.e_worse is None or row.mean is None:
        reason = f"The values of {things} do not vary" if row.n > 1 else f"{things} is too few"
        return f"{start} {reason}, so there is no test."
    digits = _digits(row, question)
    what = f"The mean of {things} is {format_number(row.mean, digits)}"
    if row.against is not None:
        what = f"The mean difference from {row.against} over {things} is {format_number(row.mean, digits)}"
    if row.outcome == "equivalent":
        assert question.margin is not None
        return f"{start} {what}, and its interval is within the margin of {question.margin:g}."
    if row.outcome == "undecided":
        sides = ("better", "worse") if question.target is None else ("reached", "missed")
        ps = [_p(p, question) for p in (row.p_better, row.p_worse)]
        return f"{start} {what}; neither {sides[0]} (p {ps[0]}) nor {sides[1]} (p {ps[1]}) is shown yet."
    p = row.p_better if row.outcome in ("better", "reached") else row.p_worse
    return f"{start} {what} (p {_p(p, question)})."


def table(rows: Sequence[AnyTimeRow], question: Question) -> list[list[str]]:
    """One line per row, with the head first."""
    sides = ("better", "worse") if question.target is None else ("reached", "missed")
    against = rows[0].against
    name, count = ("entry", "runs") if against is None else (f"difference from {against}", "pairs")
    lines = [[name, count, "mean", "SD", "interval", f"p {sides[0]}", f"p {sides[1]}", "outcome"]]
    for row in rows:
        digits = _digits(row, question)
        mean, sd = ("-" if each is None else format_number(each, digits) for each in (row.mean, row.sd))
        interval = "-"
        if row.low is not None and row.high is not None:
            level = format_percent(1 - row.confidence, complement=True)
            interval = f"{format_number(row.low, digits)} to {format_number(row.high, digits)} ({level})"
        ps = [_p(p, question) for p in (row.p_better, row.p_worse)]
        lines.append([row.name, str(row.n), mean, sd, interval, *ps, row.outcome])
    return lines


def notes(rows: Sequence[AnyTimeRow], question: Question) -> Iterator[str]:
    """What the numbers hold for, and what is missing."""
    side = format_percent(question.side_alpha)
    sides = ("better", "worse") if question.target is None else ("reached", "missed")
    yield (
        f"Any-time t tests: ask after every new run, and stop when you like. The error of {sides[0]} is at most {side} "
        f"over all times that you ask, and that of {sides[1]} too; the interval holds at all of them. For normal values."
    )
    if len(rows) > 1:
        yield f"{len(rows)} rows: Holm's method keeps each error over all of them; p is adjusted for it."
    fewest = fewest_values(question.side_alpha / len(rows))
    few = [row.name for row in rows if row.n < fewest and not row.failed]
    if few:
        yield f"{', '.join(few)}: fewer than {fewest} {_noun(rows[0])}s can show nothing at this error."
    for row in rows:
        if row.left_out:
            yield f"{row.name}: {_count(row.left_out, 'run')} left out, as the other arm lacks the seed."


def document(rows: Sequence[AnyTimeRow], question: Question, read: str | None) -> dict[str, Any]:
    """JSON values, as `partwise verdict --any-time --json` prints them."""
    return {
        "question": "any-time",
        "method": METHOD,
        "asked": dataclasses.asdict(question),
        "rows": [{**dataclasses.asdict(row), "values": list(row.values)} for row in rows],
        "notes": list(notes(rows, question)),
        "read": read,
    }


def _noun(row: AnyTimeRow) -> str:
    return "run" if row.against is None else "pair"


def _things(row: AnyTimeRow) -> str:
    return _count(row.n, _noun(row))


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _digits(row: AnyTimeRow, question: Question) -> int:
    shown = [each for each in (row.low, row.high, row.mean) if each is not None]
    half = (row.high - row.low) / 2 if row.low is not None and row.high is not None else row.sd or 0.0
    return choose_decimals(half, shown, question.target or question.margin or 0.0)


def _p(p: float | None, question: Question) -> str:
    return "-" if p is None else format_p(p, question.side_alpha)

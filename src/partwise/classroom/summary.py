"""The class in rows and sentences, for the terminal and the page."""

from collections.abc import Callable

from partwise.classroom.check_result import RUN, Check
from partwise.classroom.collection import Collection, Entry, verdict_counts
from partwise.comparison.report.cells import decimal_places
from partwise.comparison.stats.effect import Effect
from partwise.comparison.stats.number_format import format_number, format_p, format_percent
from partwise.messages import quantity
from partwise.plots.cells import NONE

HEAD = [
    "hand-in",
    "no.",
    "change",
    "difference",
    "interval",
    "n",
    "p",
    "verdict",
    "Holm p",
    "Holm verdict",
    "objections",
]
NO_VERDICT = "no verdict"

UNDETECTED = (
    "Reading shows what does not agree. It cannot show that values come from training: if a certificate, its results "
    "and its ledger were all edited to agree, only --rerun finds it. Nor does it show runs whose ledger was deleted before "
    "a new start in an empty folder, or who wrote a part. A part is code: read it."
)


def row(entry: Entry) -> list[str]:
    """The cells of HEAD."""
    effect, together = entry.effect, entry.together
    number = NONE if entry.number is None else str(entry.number)
    cells = [entry.name, number, entry.change]
    if effect is None or effect.mean is None:
        cells += [NONE, NONE, NONE, NONE, verdict(effect)]
    else:
        digits = decimal_places(effect)
        cells += [
            format_number(effect.mean, digits),
            interval(effect, digits),
            str(effect.n),
            p_value(effect),
            verdict(effect),
        ]
    cells += [p_value(together), verdict(together) if together else NONE]
    return [*cells, str(len(entry.objections)) if entry.objections else ""]


def interval(effect: Effect, digits: int) -> str:
    if effect.low is None or effect.high is None:
        return NONE
    return f"{format_number(effect.low, digits)} to {format_number(effect.high, digits)}"


def p_value(effect: Effect | None) -> str:
    return NONE if effect is None or effect.p_adjusted is None else format_p(effect.p_adjusted, effect.total_alpha)


def verdict(effect: Effect | None) -> str:
    return (effect.verdict if effect else None) or NO_VERDICT


def lists(collection: Collection) -> list[tuple[str, list[str]]]:
    """The checks that a teacher reads, under their titles: a line for each."""
    entries = collection.entries
    titled: list[tuple[str, Callable[[Check], bool]]] = [
        ("Objections", lambda check: check.outcome == "objection"),
        ("Executed", lambda check: check.what == RUN and check.outcome == "holds"),
        ("Not handed in, or not compared", lambda check: check.outcome == "missing"),
        ("Noted, and no fault", lambda check: check.outcome == "told"),
    ]
    found = [
        (
            title,
            [
                f"{entry.name}: {check.what}: {check.text}"
                for entry in entries
                for check in entry.checks
                if wanted(check)
            ],
        )
        for title, wanted in titled
    ]
    return [(title, lines) for title, lines in found if lines]


def class_sentences(collection: Collection) -> list[str]:
    """How many hand-ins there are, what was found, and how many false verdicts to expect."""
    n, alpha = len(collection.judged), collection.assignment.alpha
    objected = [entry for entry in collection.entries if entry.objections]
    found = verdict_counts(collection.judged)
    different = found.get("better", 0) + found.get("worse", 0)
    together = verdict_counts(collection.judged, together=True)
    mean, unusual, probability = collection.expected_false()
    sentences = [
        f"{quantity(len(collection.entries), 'hand-in')} read, {len(objected)} with an objection, "
        f"{len(collection.refused)} not readable."
    ]
    if n:
        sentences += [
            f"Better or worse alone: {different} of {n} without an objection. If no change did anything, "
            f"{mean:.1f} would be by chance, and {unusual} or more in {format_percent(round(probability, 3))} of classes.",
            f"Judged together by Holm's method: {together.get('better', 0) + together.get('worse', 0)}. The probability that "
            f"any of these is false is at most {format_percent(alpha)}.",
        ]
        if found.get("equivalent"):
            sentences.append(
                f"Equivalent alone: {found['equivalent']}. If every true difference were exactly the margin, at most "
                f"{mean:.1f} would be expected, by chance."
            )
    return sentences

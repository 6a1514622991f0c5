"""What the ledger that was handed in says: that it is whole, has this result, and how often the student asked before."""

from collections.abc import Iterator, Mapping
from typing import Any

from partwise.classroom.check_result import Check, Outcome
from partwise.classroom.hand_ins import HandIn, shown
from partwise.comparison.ledger.chain import ChainEntry
from partwise.comparison.ledger.questions import starts_and_results
from partwise.messages import quantity, times

Stated = tuple[Outcome, str]


def ledger_checks(hand_in: HandIn) -> Iterator[Check]:
    """The checks of the ledger, in order; what follows from a ledger that is missing or broken is left out."""
    for outcome, text in statements(hand_in):
        yield Check("ledger", outcome, text)


def statements(hand_in: HandIn) -> Iterator[Stated]:
    stated, records = hand_in.certificate.ledger, hand_in.ledger
    if hand_in.ledger_fault:
        yield "objection", hand_in.ledger_fault
        return
    if records is None:
        if stated is None:
            yield "objection", "none was handed in, and the certificate names no record of one"
        else:
            yield "missing", "none was handed in"
        return
    if stated is None:
        yield "objection", "the certificate names no record of it: it was written without a ledger"
        return
    record = next((each for each in records if each.number == stated.number), None)
    if record is None or record.hash != stated.hash:
        yield "objection", f"it has no record {stated.number} with the certificate's hash: it is another ledger"
        return
    yield from content_checks(hand_in, record.content, records)


def content_checks(hand_in: HandIn, result: Mapping[str, Any], records: list[ChainEntry]) -> Iterator[Stated]:
    """The record of the result, its start, and the starts before it."""
    certificate = hand_in.certificate
    starts, results = starts_and_results(records)
    start = starts.get(result.get("started", 0))
    if result.get("kind") != "result" or start is None or start.get("plan") != certificate.plan_hash:
        yield "objection", "its record is of another plan"
        return
    if result.get("values", certificate.judged_values) != certificate.judged_values:
        yield "objection", "it was written for other values: the certificate has other hashes"
        return
    if start.get("late"):
        yield "objection", "the comparison had trials before this ledger had its start: an earlier ledger is gone"
        return
    yield "holds", f"unbroken, {len(records)} records, this result among them"
    yield from asked_before(start, result["started"], starts, results)


def asked_before(
    start: Mapping[str, Any], number: int, starts: Mapping[int, Mapping[str, Any]], results: Mapping[int, Any]
) -> Iterator[Stated]:
    """How often the same question, and other changes of the same baseline, were asked before."""
    earlier = {key: each for key, each in starts.items() if key < number}
    questions = set(dict(start["questions"]).values())
    same = [key for key, each in earlier.items() if questions & set(dict(each["questions"]).values())]
    baseline = baseline_of(start)
    others = [key for key, each in earlier.items() if key not in same and baseline and baseline_of(each) == baseline]
    if same:
        finished = sum(key in results for key in same)
        yield "told", f"the same question was asked {times(len(same))} before ({finished} with a result)"
    if others:
        names = ", ".join(dict.fromkeys(shown(arm, 30) for key in others for arm in dict(earlier[key]["questions"])))
        yield "told", f"{quantity(len(others), 'comparison')} of other changes before: {shown(names, 120)}"


def baseline_of(start: Mapping[str, Any]) -> Any:
    """The configuration of the first arm of a start's plan; None if it has none."""
    identity = start.get("identity")
    arms = identity.get("arms") if isinstance(identity, Mapping) else None
    return arms[0].get("config") if isinstance(arms, list) and arms and isinstance(arms[0], Mapping) else None

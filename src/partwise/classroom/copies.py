"""What two hand-ins share that two students cannot share by chance."""

import hashlib
from collections.abc import Callable, Hashable, Mapping, Sequence

from partwise.classroom.assignment import Assignment
from partwise.classroom.check_result import Check
from partwise.classroom.hand_in_checks import student_of
from partwise.classroom.hand_ins import HandIn, shown

DISTINCT = 3
"""Fewer different values of an arm can be those of another student by chance."""

Key = Callable[[HandIn], list[Hashable]]


def check_copies(hand_ins: Sequence[HandIn], assignment: Assignment) -> Mapping[str, list[Check]]:
    """By the name of a hand-in, what it shares with others. Which of them is the original, nothing tells."""
    found: dict[str, list[Check]] = {each.name: [] for each in hand_ins}
    shares: list[tuple[str, Key]] = [
        ("the certificate", lambda each: [hashlib.sha256(each.content).hexdigest()]),
        ("a record of its ledger", lambda each: [each.certificate.ledger.hash] if each.certificate.ledger else []),
        ("its number", lambda each: [student_of(each.certificate, assignment)]),
        ("all values of an arm", values_of),
    ]
    for what, key in shares:
        for name, others in sharers(hand_ins, key).items():
            if not any(check.what == "copy" for check in found[name]):  # a copy shares everything: the first is said
                found[name].append(Check("copy", "objection", f"it shares {what} with {listed(others)}"))
    for name, others in sharers(hand_ins, sources_of).items():
        found[name].append(Check("copy", "told", f"its part is the same file as that of {listed(others)}"))
    return found


def values_of(hand_in: HandIn) -> list[Hashable]:
    """The values of each arm in the order of its seeds, which are others for each number; of accuracies, a few may be equal
    by chance."""
    arms = [tuple(runs[seed] for seed in sorted(runs)) for runs in hand_in.certificate.values.values()]
    return [values for values in arms if len({*values} - {None}) >= DISTINCT]


def sources_of(hand_in: HandIn) -> list[Hashable]:
    return [each for each in hand_in.certificate.code.imports.values() if each]


def sharers(hand_ins: Sequence[HandIn], key: Key) -> dict[str, list[str]]:
    """By the name of a hand-in, the others that have one of its keys; those that share none are left out."""
    names: dict[Hashable, dict[str, None]] = {}
    for each in hand_ins:
        for one in key(each):
            if one is not None:
                names.setdefault(one, {})[each.name] = None
    found: dict[str, dict[str, None]] = {}
    for group in names.values():
        for name in group if len(group) > 1 else ():
            found.setdefault(name, {}).update(dict.fromkeys(other for other in group if other != name))
    return {name: list(others) for name, others in found.items()}


def listed(names: Sequence[str]) -> str:
    rest = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(shown(name, 40) for name in names[:3]) + rest

"""What reading one hand-in can show: whether it is the assigned comparison, and whether its parts agree."""

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from partwise.classroom.assignment import Assignment, fixed_part
from partwise.classroom.baseline import Baseline
from partwise.classroom.check_result import Check, Outcome
from partwise.classroom.hand_ins import HandIn, shown
from partwise.classroom.ledger_checks import ledger_checks
from partwise.comparison.certificate.agreement import check_results
from partwise.comparison.certificate.certificate import Certificate
from partwise.comparison.certificate.verification import verify
from partwise.config import ConfigError
from partwise.config.overrides import difference

LEAK = "no position sees later ones"
"""The name of the check in `results.json`."""


def check_hand_in(hand_in: HandIn, assignment: Assignment) -> list[Check]:
    """All checks of one hand-in by itself, in the order of the page."""
    certificate = hand_in.certificate
    checks = [
        guarded("certificate", lambda: certificate_check(certificate)),
        guarded("plan", lambda: plan_check(certificate, assignment)),
        guarded("baseline", lambda: configuration_check(certificate, assignment)),
        guarded("data", lambda: data_check(certificate, assignment)),
        guarded("initialization", lambda: initialization_check(certificate, assignment)),
        guarded("one change", lambda: change_check(certificate, assignment)),
        guarded("seeds", lambda: seeds_check(certificate, assignment)),
        guarded("results", lambda: results_check(hand_in)),
    ]
    return [*checks, *all_guarded("part", part_checks, hand_in), *all_guarded("ledger", ledger_checks, hand_in)]


UNREADABLE = (ConfigError, TypeError, KeyError, AttributeError, ValueError, OverflowError)
"""What values of unexpected types raise: a certificate and a ledger may hold anything."""


def all_guarded(what: str, make: Callable[[HandIn], Iterator[Check]], hand_in: HandIn) -> list[Check]:
    """The checks, and an objection in place of those after what cannot be read."""
    checks = list[Check]()
    try:
        checks.extend(make(hand_in))
    except UNREADABLE as error:
        checks.append(Check(what, "objection", unreadable(error)))
    return checks


def unreadable(error: Exception) -> str:
    reason = str(error) if isinstance(error, ConfigError) else f"{type(error).__name__}: {error}"
    return shown(f"it cannot be checked: {reason}", 300)


def guarded(what: str, make: Callable[[], tuple[Outcome, str]]) -> Check:
    """The check; what cannot be read of a certificate is an objection."""
    try:
        outcome, text = make()
    except UNREADABLE as error:
        outcome, text = "objection", unreadable(error)
    return Check(what, outcome, shown(text, 300))


def certificate_check(certificate: Certificate) -> tuple[Outcome, str]:
    checks = verify(certificate)
    if fault := next((check for check in checks if check.fault), None):
        return "objection", f"{fault.statement}: no, {fault.fault}"
    if certificate.changes:
        return "objection", "trials were repeated with other values after the verdict"
    return "holds", f"its hashes hold, and all {len(checks)} statements follow from its values"


def plan_check(certificate: Certificate, assignment: Assignment) -> tuple[Outcome, str]:
    """The rules of the plan; its baseline and its change have checks of their own."""
    assigned, found = (
        {key: value for key, value in plan.items() if key != "baseline"}
        for plan in (assignment.plan, fixed_part(certificate.plan))
    )
    if rows := difference(assigned, found):
        return "objection", "; ".join(other(*row) for row in rows[:3])
    arms = {arm["name"]: arm["config"] for arm in planned_arms(certificate)}
    if arms != certificate.arms or set(certificate.values) != set(arms):
        return "objection", "its arms are others than those of its plan"
    return "holds", f"as assigned, hash {assignment.plan_hash[:12]}"


def other(key: str, assigned: Any, found: Any) -> str:
    return f"{key} was assigned as {shown(assigned, 40)}, and is {shown(found, 40)}"


def planned_arms(certificate: Certificate) -> list[Mapping[str, Any]]:
    arms: Any = certificate.plan["arms"]
    return list(arms)


def configuration_check(certificate: Certificate, assignment: Assignment) -> tuple[Outcome, str]:
    assigned: Any = assignment.plan["baseline"]
    found = fixed_part(certificate.plan)["baseline"]
    if rows := difference(assigned["config"], found["config"]):
        return "objection", "another baseline: " + "; ".join(other(*row) for row in rows[:3])
    return "holds", "the configuration is that of the assignment"


def data_check(certificate: Certificate, assignment: Assignment) -> tuple[Outcome, str]:
    if certificate.data != assignment.data_hash:
        return "objection", f"other data: hash {shown(certificate.data, 12)}, not {assignment.data_hash[:12]}"
    return "holds", f"hash {assignment.data_hash[:12]}"


def initialization_check(certificate: Certificate, assignment: Assignment) -> tuple[Outcome, str]:
    """Initial weights follow from configuration, seed and code: the code is what is left to compare."""
    code = certificate.code
    if code.sources == assignment.sources:
        return "holds", f"the code that draws the weights, hash {code.sources[:12]}"
    if code.version != assignment.version:
        return "told", f"partwise {shown(code.version, 20)}, not {assignment.version}: initial weights may differ"
    return "objection", f"partwise {assignment.version} with other source files: hash {shown(code.sources, 12)}"


def changed_arm(certificate: Certificate) -> Mapping[str, Any] | None:
    """The arm that is not the baseline, if there is one alone."""
    others = planned_arms(certificate)[1:]
    return others[0] if len(others) == 1 else None


def change_check(certificate: Certificate, assignment: Assignment) -> tuple[Outcome, str]:
    arm = changed_arm(certificate)
    if arm is None:
        return "objection", f"{len(planned_arms(certificate)) - 1} arms beside the baseline, and one was assigned"
    rows = difference(planned_arms(certificate)[0]["config"], arm["config"])
    families = list(dict.fromkeys(path.partition(".")[0] for path, _, _ in rows))
    if len(families) != 1:
        return "objection", f"{len(families)} changes: {shown(', '.join(families)) or 'none'}"
    if families[0] not in assignment.families:
        return "objection", f"it changes {shown(families[0])}, and {' or '.join(assignment.families)} was assigned"
    return "holds", f"{families[0]} alone"


def student_of(certificate: Certificate, assignment: Assignment) -> int | None:
    """The number of the student whose seeds these are."""
    first = certificate.plan.get("first_seed", 0)
    return assignment.student_of(first) if type(first) is int else None


def seeds_check(certificate: Certificate, assignment: Assignment) -> tuple[Outcome, str]:
    number = student_of(certificate, assignment)
    first = certificate.plan.get("first_seed", 0)
    if number is None:
        return "objection", f"its seeds from {shown(first, 20)} are those of no number"
    seeds = assignment.seeds_of(number)
    for arm, runs in certificate.values.items():
        if sorted(runs) != list(seeds):
            return "objection", f"{shown(arm)} has the seeds {shown(sorted(runs), 40)}, not {seeds[0]} to {seeds[-1]}"
    return "holds", f"number {number}: {seeds[0]} to {seeds[-1]}"


def values_check(certificate: Certificate, baseline: Baseline | None, students: int) -> Check:
    """Whether the mean of the baseline's values is where another mean of the same runs is expected."""
    return guarded("values", lambda: compare_values(certificate, baseline, students))


def compare_values(certificate: Certificate, baseline: Baseline | None, students: int) -> tuple[Outcome, str]:
    if baseline is None:
        return "missing", "the baseline's values were not compared: give collect your own comparison by --baseline"
    values = list(certificate.numbers[certificate.baseline].values())
    if not all(map(math.isfinite, values)):
        return "told", "a run of the baseline failed, so its mean is unknown"
    low, high = baseline.interval(len(values), students)
    mean = math.fsum(values) / len(values)
    text = f"the baseline's mean is {mean:.4f}, expected {low:.4f} to {high:.4f}"
    elsewhere = baseline.differences(certificate)
    if elsewhere:
        return "told", f"{text}; {'; '.join(elsewhere)}"
    return ("holds" if low <= mean <= high else "objection"), text


def results_check(hand_in: HandIn) -> tuple[Outcome, str]:
    if hand_in.results_fault:
        return "objection", hand_in.results_fault
    if hand_in.results is None:
        return "missing", "no results.json"
    if fault := check_results(hand_in.certificate, hand_in.results):
        return "objection", f"results.json and the certificate differ: {fault}"
    return "holds", "results.json has the same values and verdicts"


def part_checks(hand_in: HandIn) -> Iterator[Check]:
    """The files of the student's own parts, and the check that results.json states for them."""
    certificate = hand_in.certificate
    for name, sha256 in certificate.code.imports.items():
        yield Check("part", *file_check(hand_in, name, sha256))
    if certificate.code.imports or certificate.imports:
        yield Check("claimed check", *leak_check(hand_in))


def file_check(hand_in: HandIn, name: str, sha256: str | None) -> tuple[Outcome, str]:
    content = hand_in.sources.get(name)
    if content is None:
        return "missing", f"{shown(name)} was not handed in"
    if hashlib.sha256(content).hexdigest() != sha256:
        return "objection", f"{shown(name)} is not the file that ran: its hash is another"
    return "holds", f"{shown(name)} is the file that ran"


def leak_check(hand_in: HandIn) -> tuple[Outcome, str]:
    """What results.json states of the check that no position sees the tokens that it predicts."""
    arm = changed_arm(hand_in.certificate)
    found = hand_in.results.arm(arm["name"]) if hand_in.results and arm else None
    stated = [each for each in found.findings if each.check == LEAK] if found else []
    if any(each.outcome == "leak" for each in stated):
        return "objection", "results.json states that it sees the tokens that it predicts"
    if not any(each.outcome == "passed" and each.seed is not None for each in stated):
        return "missing", f"no statement that {LEAK}, after training"
    return "holds", f"results.json states that {LEAK}, before training and after: --run-parts repeats that"

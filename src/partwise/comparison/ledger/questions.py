"""What a comparison asked, so that the same question is recognized whatever seeds, margin or training length it had."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from partwise.comparison.ledger.chain import Record
from partwise.comparison.results import RepeatedQuestion
from partwise.config import digest

if TYPE_CHECKING:
    from partwise.comparison.design.plan import Plan
    from partwise.comparison.stats.effect import Effect
    from partwise.comparison.stats.protocol import Claim

NO_VERDICT, UNFINISHED = "no verdict", "unfinished"


def question_key(plan: "Plan", claim: "Claim") -> str:
    """Identifies preset or command, data, metric and both arms' changes; not `--common`, seeds, margin or alpha."""
    changes: dict[str, Any] = {arm.name: sorted(arm.overrides) for arm in plan.arms}
    for name, summands in plan.additive_predictions.items():
        changes[name] = {"additive": sorted(changes[summand] for summand in summands)}
    baseline = plan.arms[0]
    config = baseline.config.to_stored()
    asked = {"preset": baseline.name, "data": config.get("data"), "metric": plan.rules.metric}
    asked |= {key: config[key] for key in ("command", "function") if key in config}  # of the kinds that have no preset
    return digest({**asked, "arm": changes[claim.arm], "against": changes[claim.against]})


def question_keys(plan: "Plan") -> dict["Claim", str]:
    """The key of every claim; controls ask nothing."""
    return {claim: question_key(plan, claim) for claim in plan.claims if claim.role == "claim"}


def verdict_rows(plan: "Plan", effects: Iterable["Effect"]) -> list[dict[str, Any]]:
    """The outcome of every claim and control, as a record stores it."""
    keys = {claim[:2]: key for claim, key in question_keys(plan).items()}
    roles = {claim[:2]: claim.role for claim in plan.claims}
    rows = []
    for effect in effects:
        ends = (effect.arm, effect.against)
        values = effect.to_dict()
        row = {key: values[key] for key in ("arm", "against", "verdict", "n", "mean", "low", "high")}
        rows.append({**row, "role": roles[ends], "question": keys.get(ends)})
    return rows


def asked_before(plan: "Plan", records: Sequence[Record], started: int | None = None) -> list[RepeatedQuestion]:
    """For every claim of the plan, the earlier comparisons that asked the same; `started` is the plan's own record."""
    starts, results = starts_and_results(records)
    earlier = {number: content for number, content in starts.items() if started is None or number < started}
    found = []
    for claim, key in question_keys(plan).items():
        outcomes: dict[str, int] = {}
        names = []
        for number, content in earlier.items():
            if key in content.get("questions", {}).values():
                outcome = outcome_of(key, results.get(number))
                outcomes[outcome] = outcomes.get(outcome, 0) + 1
                names.append(str(content.get("name")))
        found.append(
            RepeatedQuestion(
                arm=claim.arm, against=claim.against, times=len(names), outcomes=outcomes, names=tuple(names)
            )
        )
    return found


def starts_and_results(records: Sequence[Record]) -> tuple[dict[int, dict[str, Any]], dict[int, dict[str, Any]]]:
    """By the number of its start's record: the start of every comparison, and the first result, which stands."""
    contents = {record.number: record.content for record in records}
    starts = {number: content for number, content in contents.items() if content["kind"] == "started"}
    results: dict[int, dict[str, Any]] = {}
    for content in contents.values():
        if content["kind"] == "result":
            results.setdefault(content["started"], content)
    return starts, results


def outcome_of(key: str, result: Mapping[str, Any] | None) -> str:
    """The verdict on a question in a comparison's result."""
    if result is None:
        return UNFINISHED
    verdicts = [row["verdict"] for row in result["verdicts"] if row["question"] == key]
    return verdicts[0] or NO_VERDICT if verdicts else NO_VERDICT

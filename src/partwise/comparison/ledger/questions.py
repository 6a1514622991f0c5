"""The question of a comparison, recognized again with other seeds, another margin or another training length."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from partwise.comparison.ledger.chain import ChainEntry
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


def asked_before(plan: "Plan", records: Sequence[ChainEntry], started: int | None = None) -> list[RepeatedQuestion]:
    """For every claim of the plan, the earlier comparisons that asked the same, or judged the same arms on the same seeds.

    `started` is the number of the plan's own record; without it, no seeds are compared.
    """
    starts, results = starts_and_results(records)
    earlier = {number: content for number, content in starts.items() if started is None or number < started}
    asked = {number: _questions(content, results.get(number)) for number, content in earlier.items()}
    seen = _seeds_seen(records)
    own = starts.get(started) if started is not None else None
    found = []
    for claim, key in question_keys(plan).items():
        outcomes: dict[str, int] = {}
        names = []
        same_seeds = {}
        for number, content in earlier.items():
            if key in asked[number]:
                outcome = outcome_of(key, results.get(number))
                outcomes[outcome] = outcomes.get(outcome, 0) + 1
                names.append(str(content.get("name")))
            if own and _same_arms(claim, own, content, key in asked[number]):
                first = int(content.get("identity", {}).get("first_seed", 0))
                shared = max(first, plan.first_seed), min(first + seen.get(number, 0), plan.first_seed + plan.seeds) - 1
                if shared[0] <= shared[1]:
                    same_seeds[str(content["folder"])] = shared
        found.append(
            RepeatedQuestion(
                arm=claim.arm,
                against=claim.against,
                times=len(names),
                outcomes=outcomes,
                names=tuple(names),
                same_seeds=same_seeds,
            )
        )
    return found


def _questions(start: Mapping[str, Any], result: Mapping[str, Any] | None) -> set[str]:
    """The keys of the questions of a comparison: those of its plan, and those of the values that tuning chose."""
    rows = result["verdicts"] if result else []
    return {*start.get("questions", {}).values(), *(row["question"] for row in rows if row.get("question"))}


def _seeds_seen(records: Sequence[ChainEntry]) -> dict[int, int]:
    """By the number of its start's record, how many seeds of a comparison were judged, or estimated after the verdict."""
    seen: dict[int, int] = {}
    for content in (record.content for record in records if record.content["kind"] in ("look", "result")):
        seen[content["started"]] = max(seen.get(content["started"], 0), int(content["seeds"]))
    return seen


def _same_arms(claim: "Claim", own: Mapping[str, Any], earlier: Mapping[str, Any], asked: bool) -> bool:
    """Whether an earlier comparison had both arms of a claim with the same data and metric, under any names.

    The arms that tuning chose are no part of a plan: they are the same if the question was `asked` under equal settings.
    """
    plans = [content.get("identity", {}) for content in (own, earlier)]
    facts = [
        (content.get("data"), plan.get("metric"), plan.get("horizons"))
        for content, plan in zip((own, earlier), plans, strict=True)
    ]
    if facts[0] != facts[1]:
        return False
    configs, earlier_configs = ({arm["name"]: arm["config"] for arm in plan.get("arms", [])} for plan in plans)
    if claim.arm in configs and claim.against in configs:
        return all(configs[name] in earlier_configs.values() for name in (claim.arm, claim.against))
    return asked and own.get("common") == earlier.get("common")


def starts_and_results(records: Sequence[ChainEntry]) -> tuple[dict[int, dict[str, Any]], dict[int, dict[str, Any]]]:
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

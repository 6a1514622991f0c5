"""The outcomes of all claims, judged in their families, and the setting that each covers."""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from partwise.comparison.design.plan import listed
from partwise.comparison.results import (
    ArmResult,
    ClaimResult,
    ComputeSaved,
    Results,
    StepEffect,
    Task,
    Tuning,
    tuned_name,
)
from partwise.comparison.stats.effect import Effect
from partwise.comparison.stats.methods import find_method
from partwise.comparison.stats.protocol import Claim
from partwise.config.overrides import flatten
from partwise.data import parse_data_option
from partwise.studies.study import OUTCOMES, Study, StudyResults, is_direct, outcome

NOT_RUN, NO_PREDICTION = "not run yet", "no prediction"


@dataclass(frozen=True)
class ClaimOutcome:
    """The outcome of one claim: the comparison's key, the effect, the prediction and the outcome, '' without a prediction."""

    key: str
    effect: Effect
    expected: str | None
    """The prediction: better, worse, equivalent or diverges; None without one."""
    outcome: str
    short_name: str
    """The arm's name, without the value that tuning chose for it."""
    results: Results
    """The results of its comparison."""
    over_horizons: tuple[StepEffect, ...] = ()
    """The difference at the end of runs of each length, each with the interval of its comparison alone."""
    change: StepEffect | None = None
    """The change of the difference from the shortest runs to the longest."""
    compute_saved: ComputeSaved | None = None


def distinct_names(findings: Sequence[ClaimOutcome]) -> list[str]:
    """The short name of each claim of a study, after its comparison's key if others have the same name."""
    names = [each.short_name for each in findings]
    return [
        f"{each.key}, {each.short_name}" if names.count(each.short_name) > 1 else each.short_name for each in findings
    ]


def find_outcomes(studies: Sequence[Study]) -> dict[str, list[ClaimOutcome]]:
    """The outcome of every claim that was tested, by the name of its study.

    Claims of studies with one protocol are judged together, with those not yet tested as hypotheses that are not rejected: a
    first result is judged no more leniently than the last.
    """
    tested = [(study, *claim) for study in studies for claim in tested_claims(study)]
    decided = {index: claim.effect for index, (*_, claim) in enumerate(tested)}
    for protocol in {study.protocol for study in studies if study.protocol}:
        family = [index for index, (study, *_) in enumerate(tested) if study.protocol == protocol]
        if family:
            untested = sum(map(untested_hypotheses, [study for study in studies if study.protocol == protocol]))
            rules = tested[family[0]][2].protocol
            decide = find_method(rules.method).decide
            effects = decide([tested[index][3].effect for index in family], rules.alpha, untested)
            decided |= dict(zip(family, effects, strict=True))
    found: dict[str, list[ClaimOutcome]] = {study.name: [] for study in studies}
    for index, (study, key, results, claim) in enumerate(tested):
        entry, effect = study.entries.get(key), decided[index]
        expected = entry.expected(effect.arm) if entry and is_direct(effect, results) else None
        seen, name = outcome(expected, effect), untuned_name(effect.arm, results.tuning).removeprefix("+ ")
        over_steps = (claim.effect_over_horizons, claim.change_over_horizons, claim.compute_saved)
        found[study.name].append(ClaimOutcome(key, effect, expected, seen, name, results, *over_steps))
    return found


def untested_hypotheses(study: Study) -> int:
    """The number of hypotheses that the claims not yet tested will add to their family.

    Tuning adds the claim at the best values to that at the defaults, unless only tuned arms are judged.
    """
    requests = [study.entries[key].request for key, *_ in untested_claims(study)]
    return sum(2 if request.tune and not request.tuned_only else 1 for request in requests)


def untested_claims(study: Study) -> Iterator[tuple[str, Claim, str | None, int]]:
    """Each claim that has not been tested, after the key of its comparison, with its prediction and the number of seeds."""
    tested = {
        (key, name)
        for key, results, claim in tested_claims(study)
        for name in (claim.effect.arm, untuned_name(claim.effect.arm, results.tuning))
    }
    for key, plan in study.plans.items():
        for claim in plan.claims:
            if claim.role == "claim" and (key, claim.arm) not in tested:
                summed = claim.against in plan.additive_predictions
                yield key, claim, None if summed else study.entries[key].expected(claim.arm), plan.seeds


def untuned_name(arm: str, tuning: Tuning | None) -> str:
    """The name of an arm without the value that tuning chose for it."""
    chosen = {tuned_name(row.arm, tuning.key, row.best): row.arm for row in tuning.arms} if tuning else {}
    return chosen.get(arm, arm)


def tested_claims(study: Study) -> Iterator[tuple[str, Results, ClaimResult]]:
    """The key and the results of each comparison that has been run, with each of its claims."""
    comparisons = StudyResults.from_json(study.results).comparisons if study.results else {}
    for key, results in comparisons.items():
        for claim in results.claims:
            if claim.role == "claim":
                yield key, results, claim


def overall(study: Study, findings: Sequence[ClaimOutcome]) -> str:
    """The outcomes for all arms with a prediction, counted, and the number of claims that were not run yet."""
    if not findings:
        return NOT_RUN
    untested = len(list(untested_claims(study)))
    outcomes = [finding.outcome for finding in findings if finding.outcome]
    kinds = [kind for kind in OUTCOMES if kind in outcomes]
    counted = [kind if len(kinds) == 1 else f"{outcomes.count(kind)} of {len(outcomes)} {kind}" for kind in kinds]
    missing = [f"{untested} of {len(findings) + untested} claims {NOT_RUN}"] if untested else []
    return ", ".join([*(counted or [NO_PREDICTION]), *missing])


def corpus_of(task: Task, requested: str | None) -> str:
    """The corpus that was trained on; the file of a corpus that is read from one, if the request still names it."""
    stored = task.name or task.data
    flat = dict(flatten({"data": parse_data_option(requested)})) if requested else {}
    part = flat.get(("data",), flat.get(("data", "part")))
    return requested if requested and part == stored else stored


def scope(study: Study) -> str:
    """The setting that the outcome covers: that of the comparisons that were run, or of all if none was.

    A broader claim needs at least two corpora and two numbers of steps.
    """
    stored = StudyResults.from_json(study.results).comparisons if study.results else {}
    corpora, steps = set[str](), set[int]()
    for key in [key for key in study.entries if key in stored] or study.entries:
        request, task = study.entries[key].request, stored[key].task if key in stored else None
        if task is not None:
            lengths = {point.step for claim in stored[key].claims for point in claim.effect_over_horizons}
            corpora.add(corpus_of(task, request.data))
            steps |= lengths or {task.steps or 0}
        else:
            config = study.plans[key].arms[0].config
            corpora.add(request.data or config.data.name)
            steps |= set(request.horizons or [config.train.steps])
    setting = f"{listed(sorted(corpora))}, {listed([f'{number:,}' for number in sorted(steps)])} steps"
    return setting if len(corpora) > 1 and len(steps) > 1 else f"{setting} only"


def shared_baselines(studies: Sequence[Study], found: Mapping[str, Sequence[ClaimOutcome]]) -> list[list[str]]:
    """The comparisons that share runs of their baseline, in groups.

    They do if the values of all seeds are equal after some number of steps. Those of a model that always fails or is always
    right say nothing.
    """
    values: dict[str, set[Hashable]] = {}
    for study in studies:
        for finding in found[study.name]:
            name = study.name if len(study.entries) == 1 else f"{study.name} ({finding.key})"
            values[name] = end_values(finding.results.arms[0])
    groups: list[list[str]] = []
    for name in sorted(values):
        sharing = [group for group in groups if any(values[name] & values[other] for other in group)]
        groups = [group for group in groups if group not in sharing]
        groups.append([*(each for group in sharing for each in group), name])
    return [group for group in groups if len(group) > 1]


def end_values(arm: ArmResult) -> set[Hashable]:
    """Each number of steps with the values of all seeds, unless all are equal or a run failed."""
    by_steps: dict[int | None, dict[int, float | None]] = {}
    for trial in arm.trials:
        for steps, value in trial.horizons or ((None, trial.validation_loss),):
            by_steps.setdefault(steps, {})[trial.seed] = value
    return {
        (steps, *values.items())
        for steps, values in by_steps.items()
        if len(distinct := set(values.values())) > 1 and None not in distinct
    }

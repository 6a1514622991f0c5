"""Judge the stored results of a study by the rules of this version, without training."""

from partwise.comparison.judging import effect_over_training, judge_results
from partwise.comparison.results import ClaimResult, Results, TunedArm, Tuning, tuned_name
from partwise.comparison.stats.effect import Effect
from partwise.comparison.stats.methods import find_method
from partwise.comparison.stats.protocol import Claim
from partwise.config import ConfigError
from partwise.studies.study import Study, StudyResults


def judge_study(study: Study) -> StudyResults:
    """The stored results with every claim judged from its values. Raises ConfigError if there are none, or not all values."""
    stored = study.read()
    comparisons = {key: judge_comparison(study, key, results) for key, results in stored.comparisons.items()}
    return stored.model_copy(update={"comparisons": comparisons})


def judge_comparison(study: Study, key: str, results: Results) -> Results:
    """The stored results of one comparison with every claim judged, and what became of the study's predictions."""
    judged = judge_again(results)
    if results.study and key in study.entries:
        answers = tuple(study.entries[key].answers(judged))
        judged = judged.model_copy(update={"study": results.study.model_copy(update={"answers": answers})})
    return judged


def judge_again(results: Results) -> Results:
    """The results with every claim judged from the values of its trials and the losses of its tuning.

    What follows from curves that were not stored is kept. Raises ConfigError for a claim about a sum of effects.
    """
    if results.provenance.value_changes:  # the first verdict stands; its values are not stored here
        return results
    if summed := next((effect for effect in results.effects if results.arm(effect.against) is None), None):
        raise ConfigError(
            f"{summed.arm} against {summed.against}: a sum of effects cannot be judged from stored results"
        )
    method = results.protocol.method
    claims = [stored_claim(claim, results.tuning, method) for claim in results.claims]
    judged_seeds = next((claim.effect.n for claim in results.claims if claim.exploratory), None)
    powers = [control.power for control in results.controls if control.power is not None]
    judged = judge_results(results, claims, {}, judged_seeds, powers[0] if powers else None)
    found = tuple(with_curves(new, old) for new, old in zip(judged.claims, results.claims, strict=True))
    own = find_method(method).warnings(results.effects)
    others = tuple(each for each in results.warnings if each not in own)  # such as that of a ledger
    return judged.model_copy(update={"claims": found, "warnings": (*judged.warnings, *others)})


def with_curves(new: ClaimResult, old: ClaimResult) -> ClaimResult:
    """A claim with the differences over training of the stored one, judged if those of each seed are stored."""
    stored = old.differences_over_training
    points = tuple(effect_over_training(stored, new.effect)) if stored else old.effect_over_training
    return new.model_copy(update={"differences_over_training": stored, "effect_over_training": points})


def stored_claim(claim: ClaimResult, tuning: Tuning | None, method: int) -> Claim:
    """The claim that a stored effect judges, with the noise of the choice of both arms' values if tuning chose them."""
    effect, noise = claim.effect, None
    if tuning is not None and is_tuned(effect):
        arm, against = (find_row(name, tuning) for name in (effect.arm, effect.against))
        noise = find_method(method).tuning_noise(
            arm.losses, against.losses, effect.not_bracketed, tuning.held_out or effect.lower_is_better
        )
    return Claim(effect.arm, effect.against, claim.role, noise)


def is_tuned(effect: Effect) -> bool:
    return effect.tuning_error is not None or bool(effect.not_bracketed)


def find_row(name: str, tuning: Tuning) -> TunedArm:
    """The tuning of an arm at its best value. Raises ConfigError if there is none."""
    for row in tuning.arms:
        if name in (row.arm, tuned_name(row.arm, tuning.key, row.best)):
            return row
    raise ConfigError(f"{name}: the stored results do not have the losses of its tuning: run the comparison again")

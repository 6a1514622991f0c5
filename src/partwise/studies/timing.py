"""Time training steps of a study's arms in turn, for the seconds that they save."""

from partwise.ablation.run_workload import origin_of, timed_on
from partwise.comparison.results import ArmResult, Ratio, Results
from partwise.config import ConfigError
from partwise.studies.judging import judge_comparison
from partwise.studies.study import Study, StudyResults


def time_study(study: Study) -> StudyResults:
    """The stored results with the throughput of every arm measured in turn on this machine, and what follows from it.

    The runs themselves may have been made at different times, or on several machines. Raises ConfigError if there are no
    results, or if the arms are no longer those of the study.
    """
    stored = study.read()
    timed = dict(stored.comparisons)
    known = [key for key in timed if key in study.entries]
    if not known:
        raise ConfigError(f"{study.name}: its comparisons have changed since its results: run it again")
    for key, comparison in study.plan(known):
        setup = comparison.workload.choose_setup(comparison.plan, timed=True)
        rates: dict[str, float | None] = setup["throughput"]
        results = stored.comparisons[key]
        try:
            arms = tuple(with_throughput(arm, rates[origin_of(arm.name, rates)]) for arm in results.arms)
        except KeyError:
            raise ConfigError(f"{study.name}, {key}: its arms have changed since its results: run it again") from None
        timed[key] = judge_comparison(
            study, key, results.model_copy(update={"arms": arms, "timed_on": timed_on(setup)})
        )
    return stored.model_copy(update={"comparisons": timed})


def with_throughput(arm: ArmResult, rate: float | None) -> ArmResult:
    budget = arm.budget
    if budget is not None:
        seconds = budget.tokens / rate if rate and budget.tokens else None
        budget = budget.model_copy(update={"seconds": seconds})
    return arm.model_copy(update={"tokens_per_second": rate, "budget": budget})


def seconds_saved(results: Results) -> dict[str, Ratio]:
    """The seconds saved by each arm with a computed saving of steps."""
    saved = {claim.effect.arm: claim.compute_saved for claim in results.claims}
    return {arm: each.ratios["seconds"] for arm, each in saved.items() if each and "seconds" in each.ratios}

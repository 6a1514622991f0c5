"""The statistics of a comparison, one row per quantity with an explanation."""

from collections.abc import Callable, Iterator

from partwise.comparison.report.cells import confidence, decimal_places, number
from partwise.comparison.results import ClaimResult, Results
from partwise.comparison.stats.effect import Effect
from partwise.comparison.stats.number_format import choose_decimals, format_p, format_percent
from partwise.plots.cells import NONE

Row = tuple[str, str, list[str]]
"""A quantity, its explanation, and its value for each comparison."""


def statistics_rows(results: Results) -> Iterator[Row]:
    """Every quantity that at least one claim has."""
    for label, hint, write in quantities(results):
        cells = [write(claim) for claim in results.claims]
        if any(cell != NONE for cell in cells):
            yield label, hint, cells


def quantities(results: Results) -> Iterator[tuple[str, str, Callable[[ClaimResult], str]]]:
    def sized(value: Callable[[Effect], float | None]) -> Callable[[ClaimResult], str]:
        return lambda claim: number(value(claim.effect), decimal_places(claim.effect))

    protocol, wrong = results.protocol, format_percent(results.protocol.alpha)
    one_sided = any(claim.effect.equivalence_low is not None for claim in results.claims)
    interval = "equivalence interval, or else the t interval," if one_sided else "interval"
    excludes = "the t interval" if one_sided else "it"
    yield (
        "verdict",
        f"Equivalent: the {interval} lies within ±margin. Better or worse: {excludes} excludes 0. Undecided: neither.",
        lambda claim: claim.effect.verdict or "no verdict",
    )
    yield (
        "n",
        "Seeds that both arms were trained on; without common seeds, the runs of each arm.",
        lambda claim: _sample(claim.effect),
    )
    yield "mean difference", "The average over the seeds.", sized(lambda effect: effect.mean)
    yield (
        "t interval",
        "Mean ± t · SD / √n at the confidence of the test that the verdict follows from, over all looks.",
        lambda claim: _interval(claim.effect),
    )
    if one_sided:
        yield (
            "equivalence interval",
            "The interval of two one-sided tests at alpha each, so at a confidence of 1 - 2 alpha.",
            lambda claim: _equivalence_interval(claim.effect),
        )
    yield (
        "margin",
        "Fixed before the runs: a smaller difference counts as equivalent.",
        lambda claim: f"±{protocol.margin:g}",
    )
    yield (
        "p",
        "The probability of a difference at least this large, in either direction, if the arms were equal.",
        lambda claim: write_p(claim.effect.p, claim.effect.total_alpha),
    )
    yield (
        "p, sign flips",
        "The same without assuming normality: the fraction of sign changes of the differences with a mean at least as large.",
        lambda claim: write_p(claim.effect.p_sign_flip, claim.effect.total_alpha),
    )
    yield (
        "failed runs",
        "Runs of the arm and of its baseline that failed: no mean then, but the failure rates compared.",
        lambda claim: _failures(claim.effect),
    )
    yield (
        "p, failure rates compared",
        "Fisher's exact test that both arms fail equally often.",
        lambda claim: write_p(claim.effect.p_failures, claim.effect.total_alpha),
    )
    if protocol.looks:
        yield (
            "p over the looks",
            "p adjusted for the looks: the smallest alpha over all looks at which this look rejects.",
            lambda claim: write_p(claim.effect.p_looks, claim.effect.total_alpha),
        )
    if any(claim.effect.n_comparisons > 1 for claim in results.claims):
        yield (
            "p adjusted",
            "p adjusted for the number of comparisons as well (Holm): the probability of any false claim stays below alpha.",
            lambda claim: write_p(claim.effect.p_adjusted, claim.effect.total_alpha),
        )
    yield (
        "p of equivalence",
        "Adjusted for looks and comparisons: of a difference of at least the margin. Equivalent if it is at most alpha.",
        lambda claim: write_p(claim.effect.p_equivalence_adjusted, claim.effect.total_alpha),
    )
    yield (
        "paired correlation",
        "Between the arms' values at equal seeds. Near 1, pairing removes most of the seed noise; near 0, none.",
        lambda claim: NONE if claim.effect.correlation is None else f"{claim.effect.correlation:.2f}",
    )
    yield (
        "seed SD, arm",
        "The standard deviation over seeds of the same configuration.",
        sized(lambda effect: effect.sd_arm),
    )
    yield (
        "seed SD, baseline",
        "The standard deviation over seeds of the baseline.",
        sized(lambda effect: effect.sd_against),
    )
    yield "SD of differences", "The standard deviation over the pairs.", sized(lambda effect: effect.sd_difference)
    yield (
        "skewness of differences",
        "0 if they are symmetric. The t interval covers less than stated if they are strongly skewed.",
        lambda claim: NONE if claim.effect.skewness is None else f"{claim.effect.skewness:.2f}",
    )
    if planned := protocol.looks:
        hint = "Median-unbiased under early stopping: the true difference with which half of all comparisons stop at a mean "
        hint += "as large as this one (Emerson & Fleming 1990)."
        yield "adjusted for stopping", hint, sized(lambda effect: effect.adjusted_mean)
        hint = "A look is an interim analysis at a given number of seeds. "
        hint += f"Planned at {', '.join(map(str, planned))}: after n seeds, {wrong} x n / {planned[-1]} is spent."
        yield "looks", hint, lambda claim: _looks(claim.effect)
    yield (
        "minimum detectable effect",
        "The true difference that this many seeds with this SD would detect in 4 of 5 comparisons (80% power).",
        lambda claim: number(claim.minimum_detectable_effect),
    )
    yield (
        "seeds to decide",
        "The total number of seeds that would likely decide an undecided comparison.",
        lambda claim: _seeds_to_decide(claim.effect),
    )


def write_p(p: float | None, alpha: float = 0.05) -> str:
    return NONE if p is None else format_p(p, alpha)


def _sample(effect: Effect) -> str:
    if effect.slope is not None:
        return f"{effect.n_arm}, with {effect.n_against} of {effect.against} as covariate"
    if not effect.paired:
        return f"{effect.n_arm} and {effect.n_against}, not paired"
    return f"{effect.n} pair{'' if effect.n == 1 else 's'}"


def _interval(effect: Effect) -> str:
    if effect.low is None or effect.high is None:
        return NONE
    digits = decimal_places(effect)
    return f"{number(effect.low, digits)} to {number(effect.high, digits)} ({confidence(effect)})"


def _equivalence_interval(effect: Effect) -> str:
    low, high = effect.equivalence_low, effect.equivalence_high
    if low is None or high is None:
        return NONE
    digits = choose_decimals((high - low) / 2, (low, high), effect.margin)
    return f"{number(low, digits)} to {number(high, digits)} ({format_percent(2 * effect.alpha, complement=True)})"


def _failures(effect: Effect) -> str:
    if not effect.failed:
        return NONE
    return f"{effect.failed_arm} of {effect.n_arm}, {effect.failed_against} of {effect.n_against}"


def _looks(effect: Effect) -> str:
    spent = format_percent(effect.total_alpha * effect.looks[effect.look - 1] / effect.looks[-1])
    return f"look {effect.look} of {len(effect.looks)}: {spent} spent by then; the interval is at {_nominal(effect)}"


def _nominal(effect: Effect) -> str:
    return f"a nominal {format_percent(effect.nominal_alpha, complement=True)}"


def _seeds_to_decide(effect: Effect) -> str:
    seeds = effect.seeds_to_decide
    if seeds is None:
        return NONE
    return f"about {seeds}" if seeds <= 1000 else "more than 1000"

"""A verdict as one sentence."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

from partwise.comparison.stats.effect import MAX_SEEDS_TO_DECIDE, Effect
from partwise.comparison.stats.number_format import choose_decimals, format_number, format_p, format_percent


def with_sentence(effect: Effect, **changes: Any) -> Effect:
    """The effect with `changes` applied and its sentence rewritten."""
    changed = effect.replace(**changes)
    return changed.replace(sentence=f"{write_sentence(changed)}{_notes(changed)}")


def write_sentence(effect: Effect) -> str:
    """The verdict with its interval, sample and, if undecided, the next step."""
    e, unit = effect, f" {effect.unit}" if effect.unit else ""
    if e.not_bracketed:
        return f"no verdict: {e.not_bracketed}."
    if e.failed:
        return _failures(e)
    if e.rounding_unit is not None:
        return (
            f"undecided: the {e.metric} of {e.arm} and {e.against} is equal at every seed, but the values are rounded to "
            f"multiples of {e.rounding_unit:g}{unit}, more than the margin of {e.margin:g}, so a difference of the margin "
            "may be hidden: print more digits, or measure an accuracy on more examples."
        )
    if e.n > 1 and e.standard_error is None:
        return (
            f"undecided: the differences do not vary at all ({e.arm} minus {e.against} is "
            f"{format_number(e.mean or 0.0, 4)}{unit} at every seed), so the spread between seeds is unknown."
        )
    if e.mean is None or e.low is None or e.high is None:
        too_few = "a single pair of runs" if e.paired else "an arm with a single run"
        return (
            f"undecided: {too_few} gives no interval ({e.arm} minus {e.against} is {format_number(e.mean or 0.0, 4)}{unit}); "
            "run at least 2 seeds per arm, preferably 5."
        )
    bounds_shown = [each for each in (e.low, e.high, e.equivalence_low, e.equivalence_high) if each is not None]
    digits = choose_decimals((e.high - e.low) / 2, bounds_shown, e.margin)
    mean, low, high = (format_number(value, digits) for value in (e.mean, e.low, e.high))
    sample = _sample(e)
    interval = f"{format_percent(e.alpha, complement=True)} interval"
    zero_width = "; the differences do not vary at all, so the interval has zero width" if e.low == e.high else ""
    if e.verdict in ("better", "worse"):
        size, *bounds = (text.removeprefix("-") for text in ((mean, low, high) if e.mean > 0 else (mean, high, low)))
        within = ""
        if -e.margin <= e.low and e.high <= e.margin:  # at the level of this test, not at that of the equivalence test
            p = format_p(e.p_equivalence_adjusted or 1.0, e.total_alpha)
            within = f"; it may be smaller than the margin of {e.margin:g}: equivalence has an adjusted p of {p}"
        return (
            f"{e.arm} is {e.verdict} than {e.against}: its {e.metric} is {'higher' if e.mean > 0 else 'lower'} by {size}"
            f"{unit} ({interval} {bounds[0]} to {bounds[1]}, {sample}){within}{zero_width}."
        )
    if e.verdict == "equivalent":
        within, which = "", "the interval"
        if e.equivalence_low is not None and e.equivalence_high is not None:
            level = format_percent(2 * e.alpha, complement=True)
            ends = (format_number(value, digits) for value in (e.equivalence_low, e.equivalence_high))
            within, which = f": the {level} interval, {' to '.join(ends)}, lies within the margin", f"the {interval}"
        excludes = f", although {which} excludes zero" if e.low > 0 or e.high < 0 else ""
        return (
            f"equivalent: the {e.metric} of {e.arm} and {e.against} differs by no more than the margin of {e.margin:g}"
            f"{unit}{within} ({e.arm} minus {e.against}: {mean}, {interval} {low} to {high}, {sample}){excludes}"
            f"{zero_width}. {undetected_failures(e)}"
        )
    if e.looks and e.look < len(e.looks):
        return (
            f"undecided so far: the {interval} of {e.arm} minus {e.against} is {low} to {high}{unit} ({sample}); the next "
            f"look is at {e.looks[e.look]} seeds."
        )
    return (
        f"undecided: the {interval} of {e.arm} minus {e.against}, {low} to {high}{unit} ({sample}), includes zero and "
        f"exceeds the margin of {e.margin:g}; {_seeds_to_decide(e)} would likely decide in a new comparison."
    )


def headline(effect: Effect) -> list[str]:
    """The verdict in two lines: direction and size; interval, sample and p. Without an estimate, the sentence alone."""
    e, unit = effect, f" {effect.unit}" if effect.unit else ""
    comparisons = {"better": "is better than", "worse": "is worse than", "equivalent": "is equivalent to"}
    arms = f"{e.arm} {comparisons.get(e.verdict or '', 'against')} {e.against}"
    p = format_p(1.0 if e.p_adjusted is None else e.p_adjusted, e.total_alpha)
    p = f"{'adjusted ' if _is_adjusted(e) else ''}p {_equals(p)}"
    if e.failed and e.p_failures is not None:
        so_far = " so far" if e.look < len(e.looks) else ""
        what = {"worse": "it fails more often", "better": "it fails less often"}.get(
            e.verdict or "", f"no verdict{so_far}"
        )
        counts = f"{e.failed_arm} of {e.n_arm} runs failed, {e.failed_against} of {e.n_against} of {e.against}"
        return [f"{arms}: {what}", f"{counts}; {p}"]
    if e.verdict is None or e.mean is None or e.low is None or e.high is None:
        return [e.sentence]
    low, high, alpha = e.low, e.high, e.alpha
    if e.equivalence_low is not None and e.equivalence_high is not None:  # the interval that decided
        low, high, alpha = e.equivalence_low, e.equivalence_high, 2 * e.alpha
    digits = choose_decimals((high - low) / 2, (low, high), e.margin)
    mean, low_text, high_text = (format_number(value, digits) for value in (e.mean, low, high))
    sample = f"({format_percent(alpha, complement=True)} interval, {_sample(e)})"
    if e.verdict in ("better", "worse"):
        ends = (low_text, high_text) if e.mean > 0 else (high_text, low_text)
        size, near, far = (text.removeprefix("-") for text in (mean, *ends))
        small = "; may be smaller than the margin" if -e.margin <= e.low and e.high <= e.margin else ""
        direction = "higher" if e.mean > 0 else "lower"
        return [f"{arms}: {direction} by {size}{unit}", f"{near} to {far} {sample}, {p}{small}"]
    interval = f"difference {mean}, {low_text} to {high_text} {sample}"
    if e.verdict == "equivalent":
        return [f"{arms}: within {e.margin:g}{unit}", interval]
    if e.look < len(e.looks):
        return [f"{arms}: undecided so far", f"{interval}; next look at {e.looks[e.look]} seeds"]
    return [f"{arms}: undecided", f"{interval}; {_seeds_to_decide(e)} would likely decide"]


def details(effects: Sequence[Effect]) -> Iterator[str]:
    """The sentences that say more than `headline` does."""
    return (effect.sentence for effect in effects if headline(effect) != [effect.sentence])


def _seeds_to_decide(e: Effect) -> str:
    seeds = f"about {e.seeds_to_decide}"
    if e.seeds_to_decide is None or e.seeds_to_decide > MAX_SEEDS_TO_DECIDE:
        seeds = f"more than {max(MAX_SEEDS_TO_DECIDE, e.n)}"
    return f"{seeds} {'seeds' if e.paired else 'seeds per arm'}"


def undetected_failures(effect: Effect) -> str:
    """The highest failure rate at which a run of neither arm would have failed with a probability of 5%, as a sentence."""
    n = min(effect.n_arm, effect.n_against)
    runs = "1 run per arm does" if n == 1 else f"{n} runs per arm do"
    return f"No run failed, but {runs} not rule out failure rates up to {_upper_limit(n)}."


def explanations(effects: Sequence[Effect]) -> Iterator[str]:
    """What the columns of a table of verdicts mean, and why its claims are undecided: one sentence each."""
    counted = max((effect.n_comparisons for effect in effects), default=1)
    if any(len(effect.looks) > 1 for effect in effects) or counted > 1:
        what = [f"the {counted} comparisons (Holm)"] * (counted > 1)
        what += ["the looks"] * any(len(effect.looks) > 1 for effect in effects)
        yield (
            f"p adjusted: adjusted for {' and '.join(what)}; arms differ if it is at most alpha. Each interval has the "
            "confidence of the test that its verdict follows from"
            f"{'; all intervals together hold the true differences less often' if counted > 1 else ''}."
        )
    if any(effect.verdict == "undecided" for effect in effects):
        yield "Undecided: the interval includes zero and exceeds the margin, so neither difference nor equivalence is shown."
    if any(_missing_runs(effect) for effect in effects):
        yield "If a run is missing because it failed, the difference is biased: give the run the value nan instead."
    if any(effect.failed for effect in effects):
        yield "Failed runs have no mean: failure rates compared by Fisher's exact test."
    elif effects and not any(effect.verdict == "equivalent" for effect in effects):  # whose sentence says it
        yield undetected_failures(min(effects, key=lambda effect: min(effect.n_arm, effect.n_against)))


def seed_count(arm: str, n: int, effects: Sequence[Effect]) -> str:
    """The number of runs of an arm: `8`, or `8 (5 judged)` if its verdicts are from fewer."""
    own = [
        effect.n_arm if arm == effect.arm else effect.n_against
        for effect in effects
        if arm in (effect.arm, effect.against)
    ]
    judged = max(own, default=n)
    return str(n) if judged >= n else f"{n} ({judged} judged)"


SEEDS_ADDED = "because seeds were added after the first one"


def exploratory_sentence(effect: Effect, reason: str = SEEDS_ADDED) -> str:
    """The estimate over other values than those of the verdict, without a verdict for this `reason`."""
    over = f"exploratory, over {_sample(effect)}"
    if effect.mean is None or effect.low is None or effect.high is None:
        return f"{over}: no estimate of {effect.arm} minus {effect.against}, and no verdict.{_missing_runs(effect)}"
    digits = choose_decimals((effect.high - effect.low) / 2, (effect.low, effect.high), effect.margin)
    mean, low, high = (format_number(value, digits) for value in (effect.mean, effect.low, effect.high))
    interval = f"{format_percent(effect.alpha, complement=True)} interval {low} to {high}"
    return f"{over}: {effect.arm} minus {effect.against} is {mean} ({interval}); no verdict, {reason}.{_missing_runs(effect)}"


def _upper_limit(n: int) -> str:
    """The 95% upper limit of the failure rate of `n` runs without a failure, as a percentage."""
    return f"{100 * (1 - 0.05 ** (1 / n)):.0f}%"


def _failures(e: Effect) -> str:
    counts = (
        f"{_runs(e.failed_arm, e.n_arm)} of {e.arm} and {_runs(e.failed_against, e.n_against)} of {e.against} failed"
    )
    if e.p_failures is None:
        return f"no verdict: {counts}; a sum of effects has no failure rate, and averaging the other seeds would hide that."
    p = format_p(1.0 if e.p_adjusted is None else e.p_adjusted, e.total_alpha)
    test = f"failure rates compared by Fisher's exact test: {'adjusted ' if _is_adjusted(e) else ''}p {_equals(p)}"
    if e.verdict in ("better", "worse"):
        own, base = f"{e.failed_arm} of {e.n_arm} runs", f"{e.failed_against} of {e.n_against}"
        often = "more" if e.verdict == "worse" else "less"
        return f"{e.arm} is {e.verdict} than {e.against}: it fails {often} often, {own} against {base} ({test})."
    more = f"; the next look is at {e.looks[e.look]} seeds" if e.look < len(e.looks) else ""
    so_far = " so far" if more else ""
    return f"no verdict{so_far}: {counts} ({test}); averaging the others would hide that{more}."


def _is_adjusted(effect: Effect) -> bool:
    return effect.n_comparisons > 1 or len(effect.looks) > 1


def _equals(p: str) -> str:
    return p.replace("<", "< ") if p.startswith("<") else f"= {p}"


def _notes(e: Effect) -> str:
    """Which runs were not judged, and what the estimate and the interval were adjusted for."""
    notes = _missing_runs(e)
    stopped = e.look < len(e.looks)  # the mean of a claim that ran to its last look is hardly biased
    if stopped and e.adjusted_mean is not None and e.low is not None and e.high is not None:
        digits = choose_decimals((e.high - e.low) / 2, (e.low, e.high), e.margin)
        notes += f" Adjusted for stopping, the difference is {format_number(e.adjusted_mean, digits)}."
    if e.tuning_error:
        notes += " The interval includes the noise of tuning."
    return notes


def _missing_runs(e: Effect) -> str:
    """The runs whose seed the other arm lacks, or by how many runs unpaired arms differ; '' if none is missing."""
    if e.failed or e.not_bracketed:  # all runs count towards the failure rates
        return ""
    if not e.paired:
        planned = e.n_arm * e.baseline_runs  # of the baseline
        if e.n_against < planned:
            fewer, n = e.against, planned - e.n_against
        else:
            fewer, n = e.arm, math.ceil(e.n_against / e.baseline_runs) - e.n_arm
        other = "planned" if e.baseline_runs > 1 else e.arm if fewer == e.against else e.against
        return f" {fewer} has {n} run{'s' * (n > 1)} fewer than {other}." if n else ""
    if not e.left_out:
        return ""
    parts = [
        f"{n} run{'s' * (n > 1)} of {arm} (no such seed in {other})"
        for arm, n, other in ((e.arm, e.n_arm - e.n, e.against), (e.against, e.n_against - e.n, e.arm))
        if n
    ]
    few = 2 * 2 * e.n < e.n_arm + e.n_against
    return f" Left out: {' and '.join(parts)}{'; verdict --unpaired uses all' if few else ''}."


def _sample(e: Effect) -> str:
    sample = f"{e.n} paired seeds" if e.paired else f"{e.n_arm} and {e.n_against} unpaired runs"
    if e.slope is not None:
        sample = f"{e.n} seeds, {e.n_against} of {e.against} as covariate"
    return f"{sample}, look {e.look} of {len(e.looks)}" if len(e.looks) > 1 else sample


def _runs(failed: int, n: int) -> str:
    return f"{failed} of {n} run{'s' if n > 1 else ''}"

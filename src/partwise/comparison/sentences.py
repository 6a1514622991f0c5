"""A verdict in one exact sentence."""

import dataclasses
from typing import Any

from partwise.comparison.digits import decimals, percent, show, show_p
from partwise.comparison.effect import MANY_SEEDS, Effect


def told(effect: Effect, **changes: Any) -> Effect:
    """The effect with those fields changed, and the sentence that then says it."""
    changed = dataclasses.replace(effect, **changes)
    return dataclasses.replace(changed, sentence=write_sentence(changed))


def write_sentence(effect: Effect) -> str:
    """The verdict in words."""
    e, unit = effect, f" {effect.unit}" if effect.unit else ""
    if e.diverged_arm or e.diverged_against:
        return (
            f"no verdict: {_runs(e.diverged_arm, e.n_arm)} of {e.arm} and {_runs(e.diverged_against, e.n_against)} of "
            f"{e.against} diverged, and a mean over the others would hide it."
        )
    if e.n > 1 and e.low is None:
        return (
            f"undecided: the runs do not vary at all ({e.arm} minus {e.against} is {show(e.mean or 0.0, 4)}{unit} at every "
            f"seed), so nothing tells how far others would lie."
        )
    if e.mean is None or e.low is None or e.high is None:
        few = "one pair of runs has" if e.paired else "a single run of an arm has"
        return (
            f"undecided: {few} no interval ({e.arm} minus {e.against} is {show(e.mean or 0.0, 4)}{unit}"
            f"{_left_out(e)}); run at least 2 seeds of each arm, better 5."
        )
    places = decimals((e.high - e.low) / 2, (e.low, e.high), e.margin)
    mean, low, high = (show(value, places) for value in (e.mean, e.low, e.high))
    sample = f"{e.n} paired seeds" if e.paired else f"{e.n_arm} and {e.n_against} unpaired runs"
    if len(e.looks) > 1:
        sample += f", look {e.look} of {len(e.looks)}"
    elif e.look > 1:
        sample += f", look {e.look}"
    sample += _left_out(e)
    interval = f"{percent(e.total_alpha if e.looks else e.alpha, complement=True)} interval"
    flat = "; the differences do not vary at all, so the interval has no width" if e.low == e.high else ""
    if e.verdict in ("better", "worse"):
        by, *ends = (text.removeprefix("-") for text in ((mean, low, high) if e.mean > 0 else (mean, high, low)))
        return (
            f"{e.arm} is {e.verdict} than {e.against}: its {e.metric} is {'higher' if e.mean > 0 else 'lower'} by {by}"
            f"{unit} ({interval} {ends[0]} to {ends[1]}, {sample}){flat}."
        )
    if e.verdict == "equivalent":
        excludes = ", although the interval excludes 0" if e.low > 0 or e.high < 0 else ""
        return (
            f"equivalent: the {e.metric} of {e.arm} and {e.against} differs by no more than the margin of {e.margin:g}"
            f"{unit} ({e.arm} minus {e.against}: {mean}, {interval} {low} to {high}, {sample}){excludes}{flat}."
        )
    if e.looks and e.look < len(e.looks):
        return (
            f"undecided so far: the {interval} of {e.arm} minus {e.against} is {low} to {high}{unit} ({sample}); the next "
            f"look is at {e.looks[e.look]} seeds."
        )
    if e.low > 0 or e.high < 0:
        return (
            f"undecided: the {interval} of {e.arm} minus {e.against}, from {low} to {high}{unit} ({sample}), excludes 0, "
            f"but one of {e.comparisons} comparisons does so by chance too easily: p is {show_p(e.p_adjusted or 1.0, 0.05)} "
            f"adjusted for their number. Confirm it on fresh seeds."
        )
    seeds = f"about {e.seeds_to_decide}"
    if e.seeds_to_decide is None or e.seeds_to_decide > MANY_SEEDS:
        seeds = f"more than {max(MANY_SEEDS, e.n)}"
    return (
        f"undecided: the {interval} of {e.arm} minus {e.against}, from {low} to {high}{unit} ({sample}), holds both "
        f"zero and more than the margin of {e.margin:g}; {seeds} {'seeds' if e.paired else 'seeds per arm'} in all "
        f"would likely decide{', in a new comparison' if e.looks else ''}."
    )


def _runs(diverged: int, n: int) -> str:
    return f"{diverged} of {n} run{'s' if n > 1 else ''}"


def _left_out(effect: Effect) -> str:
    k = effect.left_out
    return f", {k} run{'s' if k > 1 else ''} left out for want of a partner with the same seed" if k else ""

"""A verdict as one sentence."""

import dataclasses
from typing import Any

from partwise.comparison.stats.effect import MAX_SEEDS_TO_DECIDE, Effect
from partwise.comparison.stats.number_format import choose_decimals, format_number, format_p, format_percent


def with_sentence(effect: Effect, **changes: Any) -> Effect:
    """The effect with `changes` applied and its sentence rewritten."""
    changed = dataclasses.replace(effect, **changes)
    return dataclasses.replace(changed, sentence=write_sentence(changed))


def write_sentence(effect: Effect) -> str:
    """The verdict with its interval, sample and, if undecided, the next step."""
    e, unit = effect, f" {effect.unit}" if effect.unit else ""
    if e.diverged_arm or e.diverged_against:
        return (
            f"no verdict: {_runs(e.diverged_arm, e.n_arm)} of {e.arm} and {_runs(e.diverged_against, e.n_against)} of "
            f"{e.against} diverged; averaging the others would hide that."
        )
    if e.n > 1 and e.low is None:
        return (
            f"undecided: the runs do not vary at all ({e.arm} minus {e.against} is {format_number(e.mean or 0.0, 4)}{unit} "
            f"at every seed), so the spread between seeds is unknown."
        )
    if e.mean is None or e.low is None or e.high is None:
        too_few = "a single pair of runs" if e.paired else "an arm with a single run"
        return (
            f"undecided: {too_few} gives no interval ({e.arm} minus {e.against} is {format_number(e.mean or 0.0, 4)}{unit}"
            f"{_left_out(e)}); run at least 2 seeds per arm, preferably 5."
        )
    digits = choose_decimals((e.high - e.low) / 2, (e.low, e.high), e.margin)
    mean, low, high = (format_number(value, digits) for value in (e.mean, e.low, e.high))
    sample = f"{e.n} paired seeds" if e.paired else f"{e.n_arm} and {e.n_against} unpaired runs"
    if len(e.looks) > 1:
        sample += f", look {e.look} of {len(e.looks)}"
    elif e.look > 1:
        sample += f", look {e.look}"
    sample += _left_out(e)
    interval = f"{format_percent(e.total_alpha if e.looks else e.alpha, complement=True)} interval"
    zero_width = "; the differences do not vary at all, so the interval has zero width" if e.low == e.high else ""
    if e.verdict in ("better", "worse"):
        size, *bounds = (text.removeprefix("-") for text in ((mean, low, high) if e.mean > 0 else (mean, high, low)))
        return (
            f"{e.arm} is {e.verdict} than {e.against}: its {e.metric} is {'higher' if e.mean > 0 else 'lower'} by {size}"
            f"{unit} ({interval} {bounds[0]} to {bounds[1]}, {sample}){zero_width}."
        )
    if e.verdict == "equivalent":
        excludes = ", although the interval excludes zero" if e.low > 0 or e.high < 0 else ""
        return (
            f"equivalent: the {e.metric} of {e.arm} and {e.against} differs by no more than the margin of {e.margin:g}"
            f"{unit} ({e.arm} minus {e.against}: {mean}, {interval} {low} to {high}, {sample}){excludes}{zero_width}."
        )
    if e.looks and e.look < len(e.looks):
        return (
            f"undecided so far: the {interval} of {e.arm} minus {e.against} is {low} to {high}{unit} ({sample}); the next "
            f"look is at {e.looks[e.look]} seeds."
        )
    if e.low > 0 or e.high < 0:
        return (
            f"undecided: the {interval} of {e.arm} minus {e.against}, {low} to {high}{unit} ({sample}), excludes zero, "
            f"but with {e.n_comparisons} comparisons that is too likely by chance: the adjusted p is "
            f"{format_p(e.p_adjusted or 1.0, 0.05)}. Replicate it on fresh seeds."
        )
    seeds = f"about {e.seeds_to_decide}"
    if e.seeds_to_decide is None or e.seeds_to_decide > MAX_SEEDS_TO_DECIDE:
        seeds = f"more than {max(MAX_SEEDS_TO_DECIDE, e.n)}"
    return (
        f"undecided: the {interval} of {e.arm} minus {e.against}, {low} to {high}{unit} ({sample}), includes zero and "
        f"exceeds the margin of {e.margin:g}; {seeds} {'seeds' if e.paired else 'seeds per arm'} in total would likely "
        f"decide{', in a new comparison' if e.looks else ''}."
    )


def _runs(diverged: int, n: int) -> str:
    return f"{diverged} of {n} run{'s' if n > 1 else ''}"


def _left_out(effect: Effect) -> str:
    n = effect.left_out
    runs, their = ("runs", "their") if n > 1 else ("run", "its")
    return f", {n} {runs} left out because the other arm lacks {their} seed" if n else ""

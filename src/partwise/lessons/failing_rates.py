"""The check of lesson 8's exercise, which knows how many of the stored runs failed at each rate."""

import re

from partwise.lessons.answers import per_seed, read_answer
from partwise.lessons.lesson import find_lesson

FAILING = {0.002: "low", 0.004: "middle", 0.006: "high"}
"""Each rate of lesson 8 for post-norm, and the quantity that is its share of failed runs."""


def failed_runs() -> dict[float, tuple[int, int]]:
    """How many of the stored runs with post-norm failed at each rate, and how many there are."""
    lesson = find_lesson(8)
    answer = read_answer(lesson)
    found = {rate: per_seed(lesson.head.quantities[name], answer.measured).values() for rate, name in FAILING.items()}
    return {rate: (round(sum(failed)), len(failed)) for rate, failed in found.items()}


def check_failing_rates(text: str) -> str | None:
    rates = [float(number) for number in re.findall(r"\d*\.?\d+(?:e-?\d+)?", text.lower())]
    if len(rates) != 2:
        return "Answer with two rates, such as 0.002,0.004."
    if unknown := [rate for rate in rates if rate not in FAILING]:
        return f"Post-norm did not run at {unknown[0]:g}: choose from {', '.join(f'{rate:g}' for rate in FAILING)}."
    low, high = rates
    if low >= high:
        return "Give the lower rate first: above it, runs begin to fail."
    counts = failed_runs()
    (failed_low, runs), (failed_high, _) = counts[low], counts[high]
    if failed_low > 0:
        return (
            f"At {low:g}, {failed_low} of {runs} stored runs failed. Six runs without a failure do not show that none fails: "
            "go lower."
        )
    if failed_high < 0.9 * runs:
        return (
            f"At {high:g}, {runs - failed_high} of {runs} stored runs learned. Six of six do not show that nine of ten fail: "
            "go higher."
        )
    return None

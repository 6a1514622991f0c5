"""The statistics of a comparison, one row per quantity with an explanation."""

from collections.abc import Callable, Iterator
from typing import Any

from partwise.comparison.report.cells import NONE, confidence, decimal_places, number
from partwise.comparison.stats.number_format import format_p, format_percent

Row = tuple[str, str, list[str]]
"""A quantity, its explanation, and its value for each comparison."""


def statistics_rows(results: dict[str, Any]) -> Iterator[Row]:
    """Every quantity that at least one comparison has."""
    comparisons = results.get("comparisons") or []
    if not comparisons:
        return
    for label, hint, write in quantities(results):
        cells = [write(row) for row in comparisons]
        if any(cell != NONE for cell in cells):
            yield label, hint, cells


def quantities(results: dict[str, Any]) -> Iterator[tuple[str, str, Callable[[dict[str, Any]], str]]]:
    def sized(name: str) -> Callable[[dict[str, Any]], str]:
        return lambda row: number(row.get(name), decimal_places(row, results))

    wrong = format_percent(results["alpha"]) if results.get("alpha") else ""
    yield (
        "verdict",
        "Equivalent: the interval lies within ±margin. Better or worse: it excludes 0. Otherwise undecided.",
        _verdict,
    )
    yield "n", "Seeds that both arms were trained on; without common seeds, the runs of each arm.", _sample
    yield "mean difference", "The average over the seeds.", sized("mean")
    yield (
        "t interval",
        "Mean ± t · SD / √n, widened for the planned looks. It contains the true difference with the stated confidence.",
        lambda row: _interval(row, results),
    )
    yield "margin", "Fixed before the runs: a smaller difference counts as equivalent.", _margin(results)
    yield (
        "p",
        "The probability of a difference at least this large, in either direction, if the arms were equal.",
        _p("p"),
    )
    if results.get("looks"):
        yield (
            "p over the looks",
            "p adjusted for every look so far: the smallest alpha at which any look rejects.",
            _p("p_looks"),
        )
    adjusted = with_holm(results.get("comparisons") or [])
    if len(adjusted) > 1:
        yield (
            "p (Holm)",
            "p adjusted for the number of comparisons as well: the probability of any false claim stays below alpha.",
            lambda row: write_p(adjusted.get((row["arm"], row["against"])), row.get("alpha")),
        )
    yield (
        "paired correlation",
        "Between the arms' values at equal seeds. Near 1, pairing removes most of the seed noise; near 0, none.",
        lambda row: NONE if row.get("correlation") is None else f"{row['correlation']:.2f}",
    )
    yield (
        "seed SD, arm",
        "The standard deviation over seeds of the same configuration.",
        sized("sd_arm"),
    )
    yield "seed SD, baseline", "The standard deviation over seeds of the baseline.", sized("sd_against")
    yield "SD of differences", "The standard deviation over the pairs.", sized("sd_difference")
    if results.get("variance") == "residual":
        yield (
            "SD over all arms",
            "The residual SD of an arm + seed model, on which the interval is based.",
            sized("interval_sd"),
        )
    planned = results.get("looks") or []
    hint = "A look is an interim analysis at a given number of seeds. "
    if planned:
        hint += f"Planned at {', '.join(map(str, planned))}: after n seeds, {wrong} x n / {planned[-1]} is spent."
    else:
        hint += f"The first look spends alpha = {wrong}, " if wrong else "The first look spends alpha, "
        hint += "look k >= 2 spends alpha / 2^k, because peeking at accumulating data inflates the error rate."
    yield "looks", hint, lambda row: _looks(row, results)
    yield (
        "minimum detectable effect",
        "The true difference that this many seeds with this SD would detect in 4 of 5 comparisons (80% power).",
        lambda row: number(row.get("minimum_detectable_effect", results.get("minimum_detectable_effect"))),
    )
    yield (
        "seeds to decide",
        "The total number of seeds that would likely decide an undecided comparison.",
        _seeds_to_decide,
    )


def with_holm(comparisons: list[dict[str, Any]]) -> dict[tuple[str, str], float]:
    """p of every claim adjusted for their number; computed here for results without it."""
    from partwise.comparison.stats.intervals import holm

    claims = [row for row in comparisons if row.get("role", "claim") == "claim" and row.get("p") is not None]
    adjusted = holm([row["p"] for row in claims])
    if all(row.get("p_adjusted") is not None for row in claims):
        adjusted = [row["p_adjusted"] for row in claims]
    return {(row["arm"], row["against"]): p for row, p in zip(claims, adjusted, strict=True)}


def write_p(p: float | None, alpha: float | None = 0.05) -> str:
    return NONE if p is None else format_p(p, 0.05 if alpha is None else alpha)


def _verdict(row: dict[str, Any]) -> str:
    return row.get("verdict") or "no verdict"


def _sample(row: dict[str, Any]) -> str:
    if row.get("n") is None:
        return NONE
    if row.get("paired") is False:
        return f"{row.get('n_arm', row['n'])} and {row.get('n_against', row['n'])}, not paired"
    return f"{row['n']} pair{'' if row['n'] == 1 else 's'}"


def _interval(row: dict[str, Any], results: dict[str, Any]) -> str:
    if row.get("low") is None or row.get("high") is None:
        return NONE
    digits = decimal_places(row, results)
    return f"{number(row['low'], digits)} to {number(row['high'], digits)} ({confidence(row)})"


def _margin(results: dict[str, Any]) -> Callable[[dict[str, Any]], str]:
    return lambda row: NONE if results.get("margin") is None else f"±{results['margin']:g}"


def _p(name: str) -> Callable[[dict[str, Any]], str]:
    return lambda row: write_p(row.get(name), row.get("alpha"))


def _looks(row: dict[str, Any], results: dict[str, Any]) -> str:
    look, spent = row.get("look", results.get("look")), row.get("alpha_spent", results.get("alpha_spent"))
    if look is None or not row.get("alpha"):
        return NONE
    if row.get("looks") and spent is not None:
        limit = format_percent(row["alpha"])
        return f"look {look} of {len(row['looks'])}: rejects below {limit}, {format_percent(spent)} spent by then"
    total = f", {format_percent(spent)} in total" if spent else ""
    return f"look {look}: {format_percent(row['alpha'])} spent now{total}"


def _seeds_to_decide(row: dict[str, Any]) -> str:
    seeds = row.get("seeds_to_decide")
    if seeds is None:
        return NONE
    return f"about {seeds}" if seeds <= 1000 else "more than 1000"

"""Which digits of a model's answers to arithmetic problems are right."""

import re
from collections.abc import Sequence

from partwise.data.arithmetic import ProblemSpec
from partwise.data.problems import solve
from partwise.evaluate.arithmetic import CorrectCount, operation

SIGN = "sign"


def accuracy_by_place(
    problems: Sequence[str], answers: Sequence[str], spec: ProblemSpec
) -> dict[str, dict[str, CorrectCount]]:
    """For each operation, the proportion of right digits by place, from the last decimal on: `0.01`, `0.1`, `1`, `10`; then
    `sign`.

    A place counts for the problems whose true answer has a digit there; decimals that are not written are zeros. An answer
    that is not a number is wrong at every place. More digits than the true answer has are not counted.
    """
    right: dict[str, dict[int, list[bool]]] = {}
    signs: dict[str, list[bool]] = {}
    for problem, answer in zip(problems, answers, strict=True):
        name, truth = operation(problem), units(solve(problem, spec.decimals), spec.decimals)
        text = answer.rstrip("$")
        given = units(text[::-1] if spec.reverse else text, spec.decimals)
        assert truth is not None
        places = right.setdefault(name, {})
        for place in range(max(len(str(abs(truth))), spec.decimals + 1)):
            same = given is not None and digit(given, place) == digit(truth, place)
            places.setdefault(place, []).append(same)
        signs.setdefault(name, []).append(given is not None and (given < 0) == (truth < 0))
    found = {}
    for name, places in sorted(right.items()):
        named = {place_name(place - spec.decimals): places[place] for place in sorted(places)}
        named[SIGN] = signs[name]
        found[name] = {place: CorrectCount(sum(each), len(each)) for place, each in named.items()}
    return found


def units(text: str, decimals: int) -> int | None:
    """A number, perhaps padded with zeros before its sign, in units of the last decimal place; None for anything else."""
    match = re.fullmatch(rf"0*(-?)([0-9]+)(?:\.([0-9]{{1,{decimals}}}))?" if decimals else "0*(-?)([0-9]+)()", text)
    if not match:
        return None
    size = int(match[2] + (match[3] or "").ljust(decimals, "0"))
    return -size if match[1] else size


def digit(number: int, place: int) -> int:
    """The digit of a number in units, `place` from its last."""
    return abs(number) // 10**place % 10


def place_name(exponent: int) -> str:
    """`0.01`, `1` or `1,000` for -2, 0 or 3."""
    return f"{10**exponent:,}" if exponent >= 0 else f"{10.0**exponent:.{-exponent}f}"

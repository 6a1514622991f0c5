"""Arithmetic problems as text: splitting them, and solving them independently of the generator."""

import re
from fractions import Fraction

from partwise.config import ConfigError


def split_problems(text: str) -> list[str]:
    """The problems of a split, each with its two `$`. Raises ConfigError for any other text."""
    problems = re.findall(r"\$[^$]+\$", text)
    if sum(map(len, problems)) != len(text):
        raise ConfigError(f"{text[:40]!r}... is not a sequence of problems such as $(1+1)=2$: give a whole split")
    return problems


def prompt_of(problem: str) -> str:
    """A problem through its first `=`: what a model continues."""
    return problem[: problem.index("=") + 1]


def answer_of(problem: str) -> str:
    """The answer without its steps: from after the last `=` of a problem through its `$`."""
    return problem[problem.rindex("=") + 1 :]


def solve(problem: str, decimals: int = 2) -> str:
    """The answer to a problem such as `$(0000753.78+0000000910)=`, without padding: `1663.78`.

    Computed with rational numbers, unlike in the generator. Raises ConfigError.
    """
    match = re.match(r"\$?\(([0-9.]+)([-+*/])([0-9.]+)\)=", problem)
    if not match or (match[2] == "/" and not Fraction(match[3])):
        raise ConfigError(f"{problem!r} is not a problem: write one such as $(753.78+910)=")
    first, second = Fraction(match[1]), Fraction(match[3])
    if match[2] == "+":
        exact = first + second
    elif match[2] == "-":
        exact = first - second
    elif match[2] == "*":
        exact = first * second
    else:
        exact = first / second
    units = (exact * 10**decimals + Fraction(1, 2)).__floor__()
    integer, remainder = divmod(abs(units), 10**decimals)
    fraction = f"{remainder:0{decimals}d}".rstrip("0") if decimals else ""
    return "-" * (units < 0) + str(integer) + ("." + fraction if fraction else "")

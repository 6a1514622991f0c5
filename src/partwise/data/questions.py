"""Arithmetic problems as text: told apart, and solved in another way than the generator's."""

import re
from fractions import Fraction

from partwise.config import ConfigError


def split_problems(text: str) -> list[str]:
    """The single problems of a split, each with its two `$`. Raises ConfigError where the text is something else."""
    problems = re.findall(r"\$[^$]+\$", text)
    if sum(map(len, problems)) != len(text):
        raise ConfigError(f"{text[:40]!r}... is not a sequence of problems such as $(1+1)=2$: give a whole split")
    return problems


def solve(question: str, decimals: int = 2) -> str:
    """The answer to one question such as `$(0000753.78+0000000910)=`, in its shortest form: `1663.78`.

    A second way to the answer, in rational numbers, that the generator does not use. Raises ConfigError.
    """
    match = re.match(r"\$?\(([0-9.]+)([-+*/])([0-9.]+)\)=", question)
    if not match or (match[2] == "/" and not Fraction(match[3])):
        raise ConfigError(f"{question!r} is not a question: write one such as $(753.78+910)=")
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
    whole, rest = divmod(abs(units), 10**decimals)
    tail = f"{rest:0{decimals}d}".rstrip("0") if decimals else ""
    return "-" * (units < 0) + str(whole) + ("." + tail if tail else "")

"""Lines on standard error, without the control characters that a name or a file may contain; counted nouns; durations."""

import sys
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

CONTROLS = dict.fromkeys(
    [*range(0x20), *range(0x7F, 0xA0), 0x061C, 0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A)]
)
"""C0 and C1 control characters and those that change the direction of a text, which could rewrite what a terminal shows."""
del CONTROLS[ord("\n")], CONTROLS[ord("\t")]


def print_message(text: str) -> None:
    """Print a line on standard error in one write, as processes may print at the same time."""
    sys.stderr.write(f"{text.translate(CONTROLS)}\n")
    sys.stderr.flush()


def attempt(what: str, make: Callable[[], T], otherwise: Callable[[str], T]) -> T:
    """The result of `make`; after an error `otherwise(reason)`, with a warning on standard error.

    For what is only shown, such as a figure or a sample: it never costs the results of a run or a comparison. An interrupt
    passes.
    """
    try:
        return make()
    except Exception as error:
        own = type(error).__module__.partition(".")[0] == __name__.partition(".")[0]  # a ConfigError explains itself
        reason = " ".join(f"{'' if own else f'{type(error).__name__}: '}{error}".split()).removesuffix(".")
    print_message(f"warning: {what} could not be shown: {reason}")
    return otherwise(reason)


def not_shown(reason: str) -> str:
    """The line in place of what could not be shown."""
    return f"Not shown: {reason}."


def quantity(number: int, noun: str) -> str:
    """1 run, 2 runs, 1,000 runs."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def times(number: int) -> str:
    """Once, 2 times, 3 times."""
    return "once" if number == 1 else f"{number:,} times"


def format_duration(seconds: float) -> str:
    """75 -> '1:15', 4000 -> '1:06:40'."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"

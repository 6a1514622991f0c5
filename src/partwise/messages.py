"""Lines on standard error, without the control characters that a name or a damaged file may contain; counted nouns."""

import sys

CONTROLS = dict.fromkeys(
    [*range(0x20), *range(0x7F, 0xA0), 0x061C, 0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A)]
)
"""C0 and C1 control characters and those that change the direction of a text, which could rewrite what a terminal shows."""
del CONTROLS[ord("\n")], CONTROLS[ord("\t")]


def print_message(text: str) -> None:
    """Print a line on standard error in one write, as processes may print at the same time."""
    sys.stderr.write(f"{text.translate(CONTROLS)}\n")
    sys.stderr.flush()


def quantity(number: int, noun: str) -> str:
    """1 run, 2 runs, 1,000 runs."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def times(number: int) -> str:
    """Once, 2 times, 3 times."""
    return "once" if number == 1 else f"{number:,} times"

"""Run every lesson as a reader would, and compare each value with its prediction interval: `make lessons [LESSON=3]`.

Exits with 1 if a value lies outside. Runs are below `runs/`, and are resumed.
"""

import sys
import time

from partwise.cli.commands.compare_output import start_progress
from partwise.lessons.answers import find_value, read_answer
from partwise.lessons.course import LessonRun
from partwise.lessons.lesson import all_lessons


def main(*numbers: str) -> int:
    outside = 0
    for number, lesson in all_lessons().items():
        if numbers and str(number) not in numbers:
            continue
        started = time.monotonic()
        run = LessonRun.plan(lesson)
        measured = run.run(start_progress)
        answer = read_answer(lesson, run.facts()[0])
        print(f"lesson {number}, {time.monotonic() - started:.0f} s; stored: {answer.precision} on {answer.machine}")
        for quantity in lesson.head.quantities.values():
            value, found = find_value(quantity, measured), answer.expected(quantity)
            outside += value not in found
            said = "inside" if value in found else "OUTSIDE"
            print(f"  {quantity.text}: {value:.4f} is {said} {found.low:.4f} to {found.high:.4f}")
    return 1 if outside else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

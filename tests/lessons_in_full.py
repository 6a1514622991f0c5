"""Run lessons as a reader would, and compare each value with its prediction interval: `make lessons [LESSON=3]`.

`--precision float32` runs them as a machine without bfloat16 products does. Exits with 1 if a value lies outside. Runs are
below `runs/`, and are resumed.
"""

import argparse
import math
import time

from partwise.cli.commands.compare_output import start_progress
from partwise.comparison.stats.samples import sd
from partwise.lessons.answers import StoredAnswer, find_value, per_seed, read_answer
from partwise.lessons.course import LessonRun
from partwise.lessons.lesson import Lesson, Quantity, all_lessons


def plan(lesson: Lesson, precision: str | None) -> LessonRun:
    """The reader's run in the precision of this machine, or in another, in a folder of its own."""
    if precision is None:
        return LessonRun.plan(lesson)
    return LessonRun.plan(lesson, common=[f"train.precision={precision}"], name=f"{lesson.name}-{precision}")


def distance(quantity: Quantity, value: float, answer: StoredAnswer) -> str:
    """How far a mean is from that of the stored seeds, in standard errors of their difference; empty for others."""
    stored = list(per_seed(quantity, answer.measured).values())
    expected, spread = answer.expected(quantity), sd(stored)
    if quantity.statistic != "mean" or not spread:
        return ""
    readers = answer.lesson.head.runs[quantity.run].seeds
    return f", {(value - expected.value) / spread / math.sqrt(1 / readers + 1 / len(stored)):+.1f} SE"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("lessons", nargs="*", type=int, metavar="LESSON", help="default: all")
    parser.add_argument("--precision", choices=["float32", "bfloat16"], help="default: that of this machine")
    options = parser.parse_args()
    outside = 0
    for number, lesson in all_lessons().items():
        if options.lessons and number not in options.lessons:
            continue
        started = time.monotonic()
        run = plan(lesson, options.precision)
        measured = run.run(start_progress)
        precision, machine = run.facts()
        answer = read_answer(lesson, precision)
        print(f"lesson {number}, {time.monotonic() - started:.0f} s in {precision} on {machine}", flush=True)
        print(f"  stored: {answer.precision} on {answer.machine}")
        for quantity in lesson.head.quantities.values():
            value, found = find_value(quantity, measured), answer.expected(quantity)
            outside += value not in found
            said = "inside" if value in found else "OUTSIDE"
            span = f"{found.low:.4f} to {found.high:.4f}{distance(quantity, value, answer)}"
            print(f"  {quantity.text}: {value:.4f} is {said} {span}", flush=True)
    return 1 if outside else 0


if __name__ == "__main__":
    raise SystemExit(main())

"""Train a lesson on its 40 stored seeds and store the answer: `python tests/lesson_answers.py 3 [OVERRIDE...]`.

It resumes what it has trained below `runs/`. Overrides apply to all arms: `train.precision=float32` stores the answer for
machines without bfloat16 products.
"""

import sys

from partwise.cli.commands.compare_output import start_progress
from partwise.lessons.answers import write_answer
from partwise.lessons.course import LessonRun
from partwise.lessons.lesson import STORED, find_lesson

SEEDS = 40


def main(number: str, *overrides: str) -> None:
    lesson = find_lesson(int(number))
    name = "-".join([f"stored-{lesson.number:02}", *(word.partition("=")[2] for word in overrides)])
    run = LessonRun.plan(lesson, STORED.start, SEEDS, overrides, name)
    measured = run.run(start_progress)
    write_answer(lesson, *run.facts(), measured)


if __name__ == "__main__":
    main(*sys.argv[1:])

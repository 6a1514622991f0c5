"""The sheet that students get with an assignment, in Markdown."""

from partwise.classroom.assignment import Assignment
from partwise.comparison.stats.number_format import format_percent

SHEET = """\
# What does one change buy?

Change **one** part of `{preset}`, of the family {families}, and find out what it buys. Everything else is the same
for all of you.

## Your run

Your teacher gives you a number K, from 1 to {students}. Your seeds follow from it, and nobody else has them.

1. Write down what you expect: better, worse, or within ±{margin:g} ({unit}) of the baseline.
2. Run your change, with your number, in an empty folder that has `{course}`{data}:

   ```
   partwise compare {course} {example} --student K --name hand-in
   ```

   It runs {seeds} pairs of trainings. For a part of your own, in `my_part.py`, add `--import my_part.py`.
3. Pack what you hand in:

   ```
   python -m zipfile -c K.zip runs/hand-in/certificate.json runs/hand-in/results.json runs/ledger.sqlite
   ```

   With a part of your own, add `my_part.py`.
4. Look at what your teacher will see: `partwise collect K.zip --course {course}`

## Rules

- One change, one number, one hand-in. The ledger counts what you asked before, and that is no fault if you say so.
- The verdict is from {seeds} pairs of runs at an error of {alpha}, with a margin of ±{margin:g}. *Undecided* is a result.
- Do not edit a file that you hand in, and do not delete `runs/ledger.sqlite`: both show.

Plan `{hash}`: {steps}.
"""


def sheet(assignment: Assignment, course: str, example: str, unit: str, steps: str) -> str:
    """The text of the sheet; `course` is the name of the assignment's file, `example` a change of its first family."""
    own_file = assignment.data is not None and ("/" in assignment.data or "." in assignment.data)
    return SHEET.format(
        preset=assignment.preset,
        families=" or ".join(f"`{family}`" for family in assignment.families),
        students=assignment.students,
        margin=assignment.margin,
        unit=unit,
        course=course,
        data=f" and `{assignment.data}`" if own_file else "",
        example=example,
        seeds=assignment.seeds,
        alpha=format_percent(assignment.alpha),
        hash=assignment.plan_hash[:16],
        steps=steps,
    )

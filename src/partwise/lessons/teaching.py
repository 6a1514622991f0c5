"""The teacher's page: what each lesson teaches, how long it takes, and the exercises with what their checks say."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from partwise.lessons.exercises import CHECKS
from partwise.lessons.lesson import Lesson, all_lessons, lessons_folder
from partwise.lessons.own_part import EXPLAINED

GENERATED = re.compile(r"(?<=<!-- lessons -->\n).*?(?=<!-- end -->)", re.DOTALL)


@dataclass(frozen=True)
class Note:
    """What a teacher wants to know of a lesson that its page does not say."""

    learns: str
    answer: str
    """A right answer to the exercise."""
    why: str
    mistakes: tuple[str, ...] = ()
    """Wrong answers that the check explains."""


NOTES = {
    1: Note(
        "A loss needs a scale: that of n-gram models on the same text.",
        "d_model=128 train.steps=3000 positions=rope 1.702",
        "Twice the width, RoPE and six times as many steps, about two minutes; the loss is that of the validation text.",
        ("train.steps=2000 1.83", "train.steps=2000 2.3 bits", "train.steps=2000 0.9", "tokenizer=bpe 1.5"),
    ),
    2: Note(
        "Two runs differ by chance, and paired runs less: each comparison has a noise of its own.",
        "5",
        "The runs share their weights, so the SD is 0.0053; five pairs are the fewest with a power of 80%.",
        ("3", "4", "12", "13", "23"),
    ),
    3: Note(
        "A difference belongs to a number of steps: stopped at step 200, the experiment says the opposite.",
        "200,300",
        "At step 200 the model without positions is ahead by 0.02; at step 300 it is behind.",
        ("100,200", "300,400", "200,600"),
    ),
    4: Note(
        "A unit that never fires has no gradient, and a gate pays off only after many steps.",
        "b c a",
        "Normal numbers have 1 / sqrt(2 pi) = 0.399. Three numbers after LayerNorm have sqrt(2) / pi = 0.450 on average; one "
        "draw has any value, here 0.431.",
        ("c b a", "b a c"),
    ),
    5: Note(
        "A sum grows with its number of terms; two square roots set its size before an addition and before a softmax.",
        "0.918",
        "The weights are 0.711 and three times 0.096; the entropy is -sum p log p.",
        ("1.325", "1.386", "2.505", "0.242", "0"),
    ),
    6: Note(
        "Several heads of small width read several places at once; a map shows which.",
        "1 3 0.62",
        "Any head with a mean weight above 0.5 is right: which one it is depends on the seed.",
        ("1 3 0.4", "1 3 62", "2 3 0.6"),
    ),
    7: Note(
        "Equivalent is a verdict of its own. It needs a margin that was written down before the run.",
        "0.01",
        "Margins above 0.0036, which ten seeds can decide, and up to 0.02, which forty steps would buy, are right.",
        ("0.001", "0.5", "1%"),
    ),
    8: Note(
        "Where the norm stands decides at which depth and rate a model still trains.",
        "0.002,0.006",
        "At the first rate none of the stored runs with post-norm failed, at the second 38 of 40 did.",
        ("0.006,0.002", "0.002"),
    ),
    9: Note(
        "A cache holds keys and values of every token and layer; fewer key and value heads shrink it.",
        "768000",
        "Keys and values, texts, tokens, layers, heads, numbers, bytes: 2 x 3 x 200 x 5 x 2 x 16 x 4.",
        ("384000", "192000", "4608000", "750 KiB"),
    ),
    10: Note(
        "An optimizer is judged at the best rate of each, and what changed together cannot be told apart.",
        "size, steps and rate",
        "All three differ between the two studies.",
        ("size", "size and rate"),
    ),
    11: Note(
        "Longer texts than those of training are another task, which relative positions alone do not solve.",
        "positions=rope_ntk positions.factor=4",
        "512 is four times 128; rope_yarn and rope_llama3 with positions.original_context_length=128 are right as well.",
        (
            "positions=rope_linear positions.factor=4",
            "positions=rope_ntk positions.factor=512",
            "positions.theta=40000",
        ),
    ),
    12: Note(
        "Of many ideas the best one looks good by chance; a search needs levels that know how many were tried.",
        "examples/your_own_part.py",
        "Any file is right that registers a part that passes the checks.",
    ),
}


def teachers_page() -> str:
    """The page with its lessons: `docs/lessons/teaching.md`."""
    text = (lessons_folder() / "teaching.md").read_text(encoding="utf-8")
    return GENERATED.sub(lambda _: "\n".join(overview([*all_lessons().values()])) + "\n", text)


def overview(lessons: list[Lesson]) -> Iterator[str]:
    """A table of the lessons, then a section for each exercise."""
    yield "| lesson | minutes | builds on | a class learns |"
    yield "|---|---:|---|---|"
    for each in lessons:
        needs = ", ".join(map(str, each.head.needs))
        link = f"[{each.number}. {each.head.title}]({each.path.name})"
        yield f"| {link} | {each.head.minutes:g} | {needs} | {NOTES[each.number].learns} |"
    yield f"| all | {sum(each.head.minutes for each in lessons):g} | | |"
    yield "\n## Solutions\n"
    yield "The tables have wrong answers and what `--check` says of them; each check recognizes more."
    for each in lessons:
        yield from solution(each)


def solution(lesson: Lesson) -> Iterator[str]:
    """The question, an answer, and what the check says of mistakes."""
    note = NOTES[lesson.number]
    yield f"\n### Exercise {lesson.number}\n"
    yield lesson.sections["An exercise"]
    yield f"**Solution.** `{note.answer}`. {note.why}\n"
    told = [(each, CHECKS[lesson.number](each)) for each in note.mistakes]
    if lesson.number == 12:  # its mistakes are files
        told = [(f"fails: {check}", why) for check, why in EXPLAINED.items()]
    if told:
        yield "| answer | `--check` |"
        yield "|---|---|"
        for wrong, why in told:
            yield f"| {wrong} | {why} |"

"""`parts WORD`: a part, an option, a setting or a concept, found by its name."""

import textwrap

from rich.text import Text

from partwise.cli.commands.describe import MAX_WIDTH, fill, list_parts
from partwise.cli.terminal import console
from partwise.concepts.answer import Answer, answer
from partwise.concepts.entries import Concept
from partwise.concepts.lookup import Match, find
from partwise.config import REGISTRY
from partwise.config.suggestions import normalize

LABEL = 11
"""Columns of a label with its indent."""


def explain(word: str) -> None:
    """Print the answer to a word, or the list of what it may mean. Raises ConfigError for an unknown word."""
    if normalize(word) in REGISTRY:
        list_parts(normalize(word))
        return
    found = find(word)
    concepts = [each for each in found if isinstance(each.what, Concept)]
    if len(found) > 1 and len(concepts) != 1:
        list_matches(word, found)
        return
    [first] = concepts or found
    print_answer(answer(first), [each.label for each in found if each is not first and not covers(first, each)])


def covers(match: Match, other: Match) -> bool:
    """Whether the answer for a concept already names the part or the setting."""
    return isinstance(match.what, Concept) and other.label in (*match.what.part_names, *match.what.settings)


def print_answer(found: Answer, others: list[str]) -> None:
    """Print an answer, and what else the word names."""
    console.print(Text(found.title, style="bold"))
    if found.why:
        console.print(fill(found.why, "  ", "  "), markup=False)
    for label, text in (found.rows | ({"also": ", ".join(others)} if others else {})).items():
        start = f"{'':2}{label:{LABEL - 2}}"
        if label == "try":  # a command is copied, so it stays one line
            console.print(f"{start}{text}", markup=False, soft_wrap=True)
        else:
            console.print(fill(text, start, " " * LABEL), markup=False)


def list_matches(word: str, matches: list[Match]) -> None:
    """Print what a word may mean, a line each."""
    console.print(f"{word} names several; `partwise parts NAME` explains one:", markup=False)
    indent = max(len(each.label) for each in matches) + 4
    width = min(console.width, MAX_WIDTH) - indent
    for each in matches:
        about = textwrap.shorten(answer(each, results=False).why, width, placeholder=" ...")
        console.print(f"  {each.label:{indent - 2}}{about}", markup=False, soft_wrap=True)

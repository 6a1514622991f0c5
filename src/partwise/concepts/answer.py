"""The answer to a word: why it exists, its equation, options, file, stored result, lesson, and a command to try."""

import re
from dataclasses import dataclass, field

from partwise.concepts.entries import Concept, Word, concept_of, entries
from partwise.concepts.lookup import Match
from partwise.concepts.results import claim_sentence
from partwise.concepts.settings import Setting, first_paragraph, module_file, option_defaults
from partwise.config import REGISTRY, Part
from partwise.lessons.lesson import name_lesson
from partwise.train.config import preset_settings

SOURCE_START = re.compile(r"(?<=[.)])\s+(?=[A-Z][^.]*(?:\.[^.]*)*?(?:(?:19|20)\d\d\b|arXiv:|github))")
"""Where the equation of a docstring ends and its source begins."""


@dataclass
class Answer:
    """The answer to one word, by its kind of line."""

    title: str
    why: str = ""
    rows: dict[str, str] = field(default_factory=dict)
    """By label, in the order in which they are printed."""


def answer(match: Match, results: bool = True) -> Answer:
    """The answer for what a word names, with its stored result if wanted. Raises ConfigError if that cannot be read."""
    what = match.what
    if isinstance(what, Word):
        return Answer(what.name, f"{what.meaning[0].upper()}{what.meaning[1:]}.")
    if isinstance(what, list):
        return setting_answer(what, results)
    if isinstance(what, Concept):
        only = what.part_names[0] if len(what.part_names) == 1 else None
        return concept_answer(what, only, results)
    return concept_answer(concept_of(what), what, results)


def concept_answer(concept: Concept | None, part_name: str | None, results: bool) -> Answer:
    """The answer for a concept, for one part of it, or for a part without one."""
    title = part_name or (concept.name if concept else "")
    if concept and part_name and len(concept.part_names) == 1:
        title = f"{concept.name}: {part_name}"
    recipe = find_recipe(part_name) if part_name else None
    equation, source = split_docstring(recipe) if recipe else ("", "")
    if concept and not recipe and concept.part_names:
        equation = f"{concept.part_names[0]}: {split_docstring(find_recipe(concept.part_names[0]))[0]}"
    equation = (concept.equation if concept else "") or equation
    rows = {
        "equation": equation,
        "example": concept.example if concept else "",
        "where": explain_symbols(equation, concept),
        "source": source,
        "options": option_defaults(recipe) if recipe else "",
        "parts": ", ".join(concept.part_names) if concept and not recipe else "",
        "settings": ", ".join(concept.settings) if concept else "",
        "file": module_file(recipe) if recipe and not (concept and concept.file) else concept_file(concept),
        **measured(concept, part_name, results),
    }
    return new_answer(title, concept.why if concept else "", rows)


def setting_answer(settings: list[Setting], results: bool) -> Answer:
    """The answer for a setting, which parts may declare in several ways."""
    path = settings[0].path
    concept = concept_of(path) or next((each for part in settings[0].parts if (each := concept_of(part))), None)
    alone = len(settings) == 1
    about = " ".join(each.about if alone else f"{each.about} ({', '.join(each.parts)})" for each in settings)
    rows = {
        "type": "; ".join(dict.fromkeys(each.kind for each in settings)),
        "default": "; ".join(dict.fromkeys(each.default for each in settings)),
        "parts": ", ".join(settings[0].parts) if alone else "",
        "file": settings[0].file,
    }
    if concept:
        rows |= {
            "see": f"{concept.name}: {concept.why}",
            "equation": concept.equation,
            "where": explain_symbols(concept.equation, concept),
            **measured(concept, None, results),
        }
    return new_answer(path, about, rows)


def measured(concept: Concept | None, part_name: str | None, results: bool) -> dict[str, str]:
    """The stored result, the lesson and the command of a concept; the result of one part, if it has its own."""
    if concept is None:
        return {"try": f"partwise show mingpt {part_name}" if part_name else ""}
    own = [each for each in concept.results if part_name and each.arm.startswith(part_name)]
    several = part_name is not None and len(concept.part_names) > 1
    chosen = own or ([] if several else concept.results)
    lesson = name_lesson(concept.lesson) if concept.lesson else ""
    said = [each for each in chosen if each.says] or chosen[:1]
    result = "; ".join(map(claim_sentence, said)) if results else ""
    return {"result": result, "lesson": lesson, "try": command_for(concept, part_name)}


def command_for(concept: Concept, part_name: str | None) -> str:
    """The command of a concept, with the part in place of another one of the concept unless its preset has the part."""
    shown = next((each for each in concept.part_names if each in concept.command), None)
    if shown is None or part_name is None:
        return concept.command
    family, _, name = part_name.partition("=")
    used = preset_settings(concept.command.split()[2])[family]
    in_preset = (used if isinstance(used, str) else used["part"]) == name
    return concept.command if in_preset else concept.command.replace(shown, part_name)


def find_recipe(part_name: str) -> type[Part]:
    family, _, name = part_name.partition("=")
    return REGISTRY[family][name]


def split_docstring(recipe: type[Part]) -> tuple[str, str]:
    """The equation of a part, and its source: the first paragraph of its docstring."""
    equation, *source = SOURCE_START.split(first_paragraph(recipe), maxsplit=1)
    return equation.rstrip("."), "".join(source).rstrip(".")


def explain_symbols(equation: str, concept: Concept | None) -> str:
    """What the symbols of an equation stand for, in their order there."""
    known = entries().symbols | (concept.where if concept else {})
    places = {symbol: re.search(rf"(?<![A-Za-z]){re.escape(symbol)}(?![A-Za-z])", equation) for symbol in known}
    used = sorted((match.start(), symbol) for symbol, match in places.items() if match)
    return "; ".join(f"{symbol}: {known[symbol]}" for _, symbol in used)


def concept_file(concept: Concept | None) -> str:
    """Where a concept is: its own file, or that of its first part."""
    if concept is None:
        return ""
    return f"src/partwise/{concept.file}" if concept.file else module_file(find_recipe(concept.part_names[0]))


def new_answer(title: str, why: str, rows: dict[str, str]) -> Answer:
    """The answer without the lines that are empty."""
    return Answer(title, why, {label: text for label, text in rows.items() if text})

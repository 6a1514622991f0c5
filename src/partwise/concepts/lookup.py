"""What a word names: concepts, parts, settings and words of the project."""

import re
from dataclasses import dataclass
from functools import cache
from itertools import groupby

from partwise.concepts.entries import Concept, Word, concept_of, entries
from partwise.concepts.settings import Setting, all_settings
from partwise.config import REGISTRY, ConfigError
from partwise.config.suggestions import closest, normalize, synonyms

Named = Concept | Word | str | list[Setting]
"""A concept, a word, a part as `ffn=relu`, or the settings of one path."""


@dataclass(frozen=True)
class Match:
    """Something that a word names."""

    label: str
    """What finds it alone: `GQA`, `ffn=relu` or `train.lr`."""
    what: Named


def find(word: str) -> list[Match]:
    """What a word or a heading names; the path of a setting, written as it is, names that alone.

    Raises ConfigError for an unknown word.
    """
    path = [match for match in settings(word) if match.label == word]
    found = path or exact(word) or foreign(word) or within(word)
    if not found:
        raise ConfigError(
            f"nothing is called {word!r}{closest(word.lower(), known_words()) or ';'} `partwise parts` lists all parts"
        )
    return found


def exact(word: str) -> list[Match]:
    """Everything that has the word as its name."""
    for search in (word, re.sub(r"(?<=[^s])s$", "", word)):  # a plural, too
        entries_named = by_name().get(key(search), [])
        concepts, words = ([each for each in entries_named if isinstance(each.what, kind)] for kind in (Concept, Word))
        if found := [*concepts, *parts(search), *settings(search), *words]:
            return found
    return []


def key(word: str) -> str:
    """A word without case, spaces and hyphens, in which the field's spellings differ."""
    return re.sub(r"[\s_-]+", "", word.lower()) or word


@cache
def by_name() -> dict[str, list[Match]]:
    """Concepts and words, by the keys of their names."""
    found: dict[str, list[Match]] = {}
    for entry in entries().all:
        for name in dict.fromkeys(key(each.strip("`")) for each in entry.names):
            found.setdefault(name, []).append(Match(entry.name, entry))
    return found


def parts(word: str) -> list[Match]:
    """The parts of that name; `ffn=relu` names one."""
    family, _, name = word.rpartition("=")
    return [
        Match(f"{each}={recipe}", f"{each}={recipe}")
        for each, recipes in REGISTRY.items()
        for recipe in recipes
        if key(recipe) == key(name) and family in ("", each)
    ]


def settings(word: str) -> list[Match]:
    """The settings of that path, or of that name in any family."""
    rows = [each for each in all_settings() if key(word) in (key(each.path), key(each.name))]
    whole = [each for each in rows if key(word) == key(each.path)]
    ordered = sorted(whole or rows, key=lambda each: each.path)
    return [Match(path, list(group)) for path, group in groupby(ordered, lambda each: each.path)]


def foreign(word: str) -> list[Match]:
    """What the words of other programs mean here."""
    meant = [each for kind in ("parts", "settings") for each in synonyms(kind).get(normalize(word), ())]
    found = [match for each in meant for match in exact(each.split()[-1])]
    return list({match.label: match for match in found}.values())


def within(phrase: str) -> list[Match]:
    """The concepts that a heading mentions, the longest names first."""
    tokens = re.findall(r"[^\s,;:()?!\"“”‘’]+", re.sub(r"^[\d.]+\s+", "", phrase))
    found: dict[str, Match] = {}
    for size in range(len(tokens), 0, -1):
        for start in range(len(tokens) - size + 1):
            window = tokens[start : start + size]
            if all(window) and (match := mentioned(" ".join(window))):
                found.setdefault(match.label, match)
                tokens[start : start + size] = [""] * size
    return list(found.values())


def mentioned(words: str) -> Match | None:
    """The concept of that name, or that of a part of that name."""
    for match in exact(words):
        concept = concept_of(match.what) if isinstance(match.what, str) else match.what
        if isinstance(concept, Concept):
            return Match(concept.name, concept)
    return None


def known_words() -> set[str]:
    """Every name, for suggestions."""
    named = {name.lower() for entry in entries().all for name in entry.names}
    recipes = {name for recipes in REGISTRY.values() for name in recipes}
    return {
        *named,
        *recipes,
        *REGISTRY,
        *(each.name for each in all_settings()),
        *synonyms("parts"),
        *synonyms("settings"),
    }

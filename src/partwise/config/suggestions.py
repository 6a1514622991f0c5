"""Suggestions for an unknown word: the nearest known one, or the meaning that other programs give it."""

import difflib
from collections.abc import Collection, Iterable
from functools import cache
from pathlib import Path

from partwise.config.yaml import read_yaml


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """'; did you mean X?' if a known word is close, followed by the list of known words."""
    known = sorted(known)
    return f"{closest(word, known)} (known: {', '.join(known) or 'none'})"


def closest(word: str, known: Iterable[str]) -> str:
    """'; did you mean X?' if a known word is close, else nothing."""
    close = difflib.get_close_matches(word, sorted(known), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


@cache
def synonyms(kind: str) -> dict[str, list[str]]:
    """The words of the table for `settings` or for `parts`, each with what it means here."""
    table = read_yaml(Path(__file__).with_name("synonyms.yaml"))[kind]
    return {str(word): [meant] if isinstance(meant, str) else meant for word, meant in table.items()}


def normalize(word: str) -> str:
    """A word as the table writes it."""
    return word.strip("-").lower().replace("-", "_").replace(" ", "_")


def meanings(word: str, kind: str, known: Collection[str] = ()) -> list[str]:
    """What a word means: by the table, else those of the `known` settings that end in it, such as `attention.n_heads`."""
    word = normalize(word)
    same = [each for each in known if each.rpartition(" ")[2].rpartition(".")[2] == word]
    return list(dict.fromkeys(synonyms(kind).get(word) or same))


def with_value(meant: str, word: str, value: str) -> str:
    """A setting with the value that was given to a word of the same name; another word may have another unit."""
    return f"{meant}={value}" if meant.rpartition(".")[2] == normalize(word) else meant


def one_of(meant: Iterable[str]) -> str:
    """'; did you mean A, B or C?', and nothing for nothing."""
    *others, last = [*meant] or [""]
    return f"; did you mean {' or '.join([', '.join(others), last] if others else [last])}?" if last else ""

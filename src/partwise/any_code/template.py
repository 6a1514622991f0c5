"""A command with placeholders: `{seed}`, `{arm}`, `{folder}`, `{args}` and settings; `{{` and `}}` are braces."""

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence

from partwise.config import ConfigError, did_you_mean

_PIECES = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")


def placeholders(text: str) -> set[str]:
    """The names in braces. Raises ConfigError for a single brace."""
    return {name for name, _ in _pieces(text) if name is not None}


def fill(text: str, values: Mapping[str, str]) -> str:
    """The text with its placeholders replaced. Raises ConfigError for an unknown one."""
    filled = []
    for name, literal in _pieces(text):
        if name is not None and name not in values:
            raise ConfigError(f"{{{name}}} in {text!r} is unknown{did_you_mean(name, values)}; write {{{{ for a brace")
        filled.append(literal if name is None else values[name])
    return "".join(filled)


def split_words(command: str) -> list[str]:
    """The words of a command as a shell splits it. Raises ConfigError."""
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise ConfigError(f"{command!r} cannot be split into words: {str(error).lower()}; check its quotes") from None
    if not words:
        raise ConfigError("the command is empty: give the program and its arguments")
    return words


def fill_words(command: str, args: Sequence[str], values: Mapping[str, str]) -> list[str]:
    """The words of a command: split first and filled afterwards, so that a value with spaces stays one word.

    The word `{args}` becomes the words `args`, in which placeholders are filled too.
    """
    words: list[str] = []
    for word in split_words(command):
        if word == "{args}":
            words += [fill(each, values) for each in args]
        elif "args" in placeholders(word):
            raise ConfigError(f"{word!r}: {{args}} stands for several words, so it must be a word of its own")
        else:
            words.append(fill(word, values))
    return words


def fill_shell(command: str, args: Sequence[str], values: Mapping[str, str]) -> str:
    """A command for a shell: every value is quoted, so that none of them is interpreted."""
    quoted = {name: shlex.quote(value) for name, value in values.items()}
    return fill(command, {**quoted, "args": " ".join(shlex.quote(fill(each, values)) for each in args)})


def _pieces(text: str) -> Iterator[tuple[str | None, str]]:
    """(name, "") for a placeholder, (None, text) for the text between."""
    end = 0
    for found in _PIECES.finditer(text):
        yield None, text[end : found.start()]
        end = found.end()
        if found[0] in ("{{", "}}"):
            yield None, found[0][0]
        elif found[1] is None:
            raise ConfigError(f"{text!r} has a single {found[0]}: write {found[0] * 2} for a brace")
        else:
            yield found[1], ""
    yield None, text[end:]

"""Commands that people copy, in the quotes of their shell: a POSIX shell's, or on Windows those that PowerShell takes."""

import re
import shlex
import sys
from collections.abc import Sequence

PLAIN = re.compile(r"[\w.:/\\=+-]+")
"""A word that PowerShell and cmd.exe take as it is; a comma would make two of it."""


def quote(word: str) -> str:
    if sys.platform != "win32":
        return shlex.quote(word)
    if PLAIN.fullmatch(word):
        return word
    if re.search(r'["$`]', word):
        return "'" + word.replace("'", "''") + "'"
    return f'"{word}"'  # which cmd.exe takes too


def join(words: Sequence[str]) -> str:
    return " ".join(map(quote, words))


def program(path: str) -> str:
    """The first word of a command: in quotes, PowerShell prints it unless `&` says to run it."""
    shown = quote(path)
    return f"& {shown}" if sys.platform == "win32" and shown != path else shown

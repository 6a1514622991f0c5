"""Where lines break: between words, and never within a word or a command, which people copy."""

import re
from collections.abc import Callable, Iterator

WORD = re.compile(r"(?:`[^`\n]+`|\S)+")
"""A word, or several with the code in backticks: a command that was broken over two lines would run as two."""


KEPT_SPACE = "\ufdd0"
"""A space where no line breaks, for code that has lost its backticks; consoles print a space. No text has this code point."""


def words(text: str) -> list[str]:
    return WORD.findall(text)


def breaks(text: str, width: int, measure: Callable[[str], int] = len) -> Iterator[int]:
    """Where the lines of a text without line breaks start, beside the first; a longer word has a line of its own."""
    start = end = 0
    for match in WORD.finditer(text):
        if end > start and measure(text[start : match.end()]) > width:
            start = match.start()
            yield start
        end = match.end()


def wrap(text: str, width: int, initial: str = "", subsequent: str = "") -> list[str]:
    """The lines of a text, the first after `initial` and the others after `subsequent`."""
    lines, start, line = [], initial, ""
    for word in words(text):
        if line and len(start) + len(line) + 1 + len(word) > width:
            lines.append(start + line)
            start, line = subsequent, ""
        line += f" {word}" if line else word
    return [*lines, start + line] if line else []

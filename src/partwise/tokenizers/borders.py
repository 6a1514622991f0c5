"""Where a text may be cut so that the ids of its pieces are those of the whole."""

import re
from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import final

import numpy as np

from partwise.config import ConfigError
from partwise.tokenizers.texts import Piece, Text

REMEMBERED = 1 << 20
"""Characters of stretches whose ids are remembered: some 150,000 words, in some tens of megabytes."""

_NO_SPACE = r"[^\s\x1c-\x1f\x85\u180e\u200b\ufeff]"
_LETTER_ENDS = r"(?<=[A-Za-z])(?=[\x00-@\[-`{-\x7f])"
_DIGIT_ENDS = r"(?<=[0-9])(?=[\x00-/:-\x7f])"
_LINE_BEGINS = r"(?=\n[A-Za-z])"

WORD = re.compile(r" ?[A-Za-z]+")
"""What no rule below splits."""


@final
class Borders:
    """A rule for places where a text may be cut.

    `places` matches nothing, at such a place. `stretch` matches from one place to the next, or less where all stretches
    of a text, one after another, still have the ids of the whole.
    """

    def __init__(self, places: str, stretch: str) -> None:
        self.places, self._stretch = re.compile(places), re.compile(stretch)

    def stretches(self, text: str) -> list[str]:
        """The whole text as stretches."""
        return self._stretch.findall(text)


_PLACES = rf"{_LETTER_ENDS}|{_DIGIT_ENDS}|(?<={_NO_SPACE})(?=[ \t\n\r])"

LETTERS_AND_SPACES = Borders(
    _PLACES,
    # most of a text is words, which the first alternative finds without trying every place
    rf" ?[A-Za-z]++(?=[\x00-@\[-`{{-\x7f])|\n(?=[A-Za-z])|[\s\S]+?(?:{_PLACES}|{_LINE_BEGINS}|\Z)",
)
"""Where GPT-2's rule surely ends a stretch of text, whatever follows.

No alternative of the rule holds a letter or a digit before something else, nor anything before a space, and none looks
back; its one look ahead concerns spaces, and before a cut there is none. Apostrophes begin contractions, and newer
editions of Unicode may move other characters from one category to another: nothing is cut after these. Of several
spaces before a letter the rule keeps the last apart, so a newline there is a stretch of its own.
"""

SPACES = Borders(rf"(?<={_NO_SPACE})(?= )", rf"[ \n]*+{_NO_SPACE}++(?= )|[\s\S]+?(?:(?<={_NO_SPACE})(?= )|\Z)")
"""Where a rule surely ends a stretch in which a space stands only at the beginning or among spaces."""


def cut_at(borders: Borders, text: Text, size: int, whole: Sequence[str] = ()) -> Iterator[Piece]:
    """Pieces of a text, each of `size` characters or a few more, cut at borders and through none of the `whole` names.

    A stretch without a border stays in one piece, however long it is.
    """
    start, end = 0, size
    while start < len(text):
        end = _border(borders.places, text, end)
        if end < len(text) and any(
            name in as_string(text[max(0, end - len(name) + 1) : end + len(name) - 1]) for name in whole
        ):
            end += 1
            continue
        yield text[start:end]
        start, end = end, end + size


def _border(places: re.Pattern[str], text: Text, at: int) -> int:
    """The first border at `at` or after it; the end of the text where there is none."""
    at = max(1, at)
    while at < len(text):
        window = as_string(text[at - 1 : at + 1024])
        if match := places.search(window, 1):
            return at - 1 + match.start()
        at += len(window) - 1
    return len(text)


def as_string(text: Piece) -> str:
    """A piece as a string. Raises ConfigError for codes beyond ASCII."""
    if isinstance(text, str):
        return text
    try:
        return text.tobytes().decode("ascii")
    except UnicodeDecodeError as error:
        raise ConfigError(f"the code {error.object[error.start]} is not ASCII: give the text as a string") from None


@final
class Memory:
    """Remembers the ids of stretches: a text repeats its words, and each needs to be encoded only once."""

    def __init__(self, encode: Callable[[list[str]], dict[str, list[int]]]) -> None:
        self._encode = encode
        self._known: dict[str, bytes] = {}  # ids as uint32: bytes are joined faster than lists
        self._size = 0

    def encode(self, stretches: list[str]) -> np.ndarray:
        """The ids of stretches that stand one after another, uint32 (N,)."""
        if self._size > REMEMBERED:
            self._known, self._size = {}, 0
        known = self._known  # another thread may start afresh meanwhile
        unknown = list(set(stretches).difference(known))
        for stretch, ids in self._encode(unknown).items():
            known[stretch] = array("I", ids).tobytes()
            self._size += len(stretch)
        return np.frombuffer(b"".join(map(known.__getitem__, stretches)), dtype="I")

"""Points at which a text may be split so that the ids of its parts, concatenated, are the ids of the whole."""

import re
from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import final

import numpy as np

from partwise.config import ConfigError
from partwise.tokenizers.text import InMemoryText, Text

CACHED_CHARACTERS = 1 << 20
"""Characters of segments whose ids are cached: about 150,000 words, in some tens of megabytes."""

_NO_SPACE = r"[^\s\x1c-\x1f\x85\u180e\u200b\ufeff]"
_LETTER_END = r"(?<=[A-Za-z])(?=[\x00-@\[-`{-\x7f])"
_DIGIT_END = r"(?<=[0-9])(?=[\x00-/:-\x7f])"
_LINE_START = r"(?=\n[A-Za-z])"

WORD = re.compile(r" ?[A-Za-z]+")
"""A word pattern that none of the pre-tokenizers below splits."""


@final
class SplitPoints:
    """A rule for the points at which a text may be split.

    `points` is an empty match at each such point. `segment` matches from one point to the next, or less, provided that
    the segments of a text, concatenated, still have the ids of the whole.
    """

    def __init__(self, points: str, segment: str) -> None:
        self.points, self._segment = re.compile(points), re.compile(segment)

    def segments(self, text: str) -> list[str]:
        """The whole text as segments."""
        return self._segment.findall(text)


_GPT2_POINTS = rf"{_LETTER_END}|{_DIGIT_END}|(?<={_NO_SPACE})(?=[ \t\n\r])"

GPT2_SPLIT_POINTS = SplitPoints(
    _GPT2_POINTS,
    # most of a text is words, which the first alternative finds without trying every position
    rf" ?[A-Za-z]++(?=[\x00-@\[-`{{-\x7f])|\n(?=[A-Za-z])|[\s\S]+?(?:{_GPT2_POINTS}|{_LINE_START}|\Z)",
)
"""Points at which GPT-2's pattern always splits, independently of the following text.

No alternative of the pattern has a letter or a digit before something else, nor anything before a space, and none has a
lookbehind; its one lookahead concerns spaces, and there is none before a split point. Apostrophes begin contractions, and
newer editions of Unicode may move other characters to another category: neither is followed by a split point. Of several
spaces before a letter the pattern separates the last, so a newline there is a segment of its own.
"""

SPACE_SPLIT_POINTS = SplitPoints(
    rf"(?<={_NO_SPACE})(?= )", rf"[ \n]*+{_NO_SPACE}++(?= )|[\s\S]+?(?:(?<={_NO_SPACE})(?= )|\Z)"
)
"""Points that a pattern always splits at if its pre-tokenizer puts a space only at the start or among other spaces."""


def split_at(
    split_points: SplitPoints, text: Text, size: int, unsplittable: Sequence[str] = ()
) -> Iterator[InMemoryText]:
    """Chunks of `size` characters or a few more, split at split points and never inside an `unsplittable` string.

    Text without a split point stays in one chunk, however long it is.
    """
    start, end = 0, size
    while start < len(text):
        end = _next_split_point(split_points.points, text, end)
        if end < len(text) and any(
            name in as_string(text[max(0, end - len(name) + 1) : end + len(name) - 1]) for name in unsplittable
        ):
            end += 1
            continue
        yield text[start:end]
        start, end = end, end + size


def _next_split_point(points: re.Pattern[str], text: Text, index: int) -> int:
    """The first split point at or after `index`, or the end of the text."""
    index = max(1, index)
    while index < len(text):
        window = as_string(text[index - 1 : index + 1024])
        if match := points.search(window, 1):
            return index - 1 + match.start()
        index += len(window) - 1
    return len(text)


def as_string(text: InMemoryText) -> str:
    """A text as a string. Raises ConfigError for codes beyond ASCII."""
    if isinstance(text, str):
        return text
    try:
        return text.tobytes().decode("ascii")
    except UnicodeDecodeError as error:
        raise ConfigError(f"the code {error.object[error.start]} is not ASCII: give the text as a string") from None


@final
class EncodingCache:
    """Caches the ids of segments: a text repeats its words, and each is encoded only once."""

    def __init__(self, encode: Callable[[list[str]], dict[str, list[int]]]) -> None:
        self._encode = encode
        self._cache: dict[str, bytes] = {}  # ids as uint32: bytes are joined faster than lists
        self._size = 0

    def encode(self, segments: list[str]) -> np.ndarray:
        """The ids of consecutive segments, uint32 (N,)."""
        if self._size > CACHED_CHARACTERS:
            self._cache, self._size = {}, 0
        cache = self._cache  # another thread may clear it meanwhile
        missing = list(set(segments).difference(cache))
        for segment, ids in self._encode(missing).items():
            cache[segment] = array("I", ids).tobytes()
            self._size += len(segment)
        return np.frombuffer(b"".join(map(cache.__getitem__, segments)), dtype="I")

"""One id per character: the rank of the character among those of the data."""

from collections.abc import Iterable, Iterator
from typing import Any, NoReturn, final

import numpy as np

from partwise.config import ConfigError, part
from partwise.tokenizers.base import PIECE, SHELL, Source, Tokenizer, TokenizerRecipe, slices
from partwise.tokenizers.texts import Piece, Text

UNSEEN = 255  # no ASCII character has this id: they sort before all others, so their ids stay below 128


@part("characters")
class Characters(TokenizerRecipe):
    """id(c) = rank of c in sorted(set(text)). Karpathy's makemore, github.com/karpathy/makemore."""

    def build(self, source: Source) -> Tokenizer:
        return CharacterTokenizer(source.alphabet())


@final
class CharacterTokenizer(Tokenizer):
    """The ranks of the characters of `alphabet`, which is sorted here and may repeat itself.

    Raises ConfigError for an alphabet that is empty or holds half of a surrogate pair.
    """

    def __init__(self, alphabet: str) -> None:
        self.alphabet = "".join(sorted(set(alphabet)))
        self.vocab_size = len(self.alphabet)
        if not self.alphabet:
            raise ConfigError("the alphabet is empty: give the tokenizer=characters some text to learn it from")
        self._codes = _code_points(self.alphabet)
        if ((self._codes >= 0xD800) & (self._codes <= 0xDFFF)).any():
            raise ConfigError("the alphabet holds half of a surrogate pair, which is no character: clean the text")
        # one entry more than needed, so that every larger code point has an entry that says "unseen"
        self._ranks = np.full(int(self._codes[-1]) + 2, -1, dtype=np.int64)
        self._ranks[self._codes] = np.arange(self.vocab_size)
        self._ascii = bytes(self.alphabet.find(chr(code)) % 256 if code < 128 else UNSEEN for code in range(256))
        self._sizes = np.array([len(character.encode()) for character in self.alphabet], dtype=np.int64)

    def encode(self, text: str) -> np.ndarray:
        codes = _code_points(text)
        ids: np.ndarray = self._ranks.take(codes, mode="clip")  # the last entry is that of all larger code points
        if ids.size and ids.min() < 0:
            self._refuse(chr(codes[int(np.argmax(ids < 0))]))
        return ids

    def encode_ascii(self, codes: np.ndarray) -> np.ndarray:
        ids = np.frombuffer(codes.tobytes().translate(self._ascii), dtype=np.uint8)
        if ids.size and ids.max() == UNSEEN:
            self._refuse(chr(codes[int(np.argmax(ids == UNSEEN))]))
        return ids

    def pieces(self, text: Text, size: int) -> Iterator[Piece]:
        return slices(text, size)

    def decode(self, ids: Iterable[int] | np.ndarray) -> str:
        return self._codes[self.check(ids)].astype("<u4").tobytes().decode("utf-32-le")

    def piece(self, index: int) -> bytes:
        return self.alphabet[int(self.check([index])[0])].encode()

    def bytes_of(self, ids: np.ndarray) -> int:
        pieces = (ids[at : at + PIECE] for at in range(0, len(ids), PIECE))
        return sum(int(np.bincount(piece, minlength=self.vocab_size) @ self._sizes) for piece in pieces)

    def document(self) -> dict[str, Any]:
        every_character = {"type": "Split", "pattern": {"Regex": r"[\s\S]"}, "behavior": "Isolated", "invert": False}
        ranks = {character: rank for rank, character in enumerate(self.alphabet)}
        # the unknown token is absent from the vocabulary, so the library raises for an unseen character, as we do
        model = {"type": "WordLevel", "vocab": ranks, "unk_token": "<unk>"}
        return SHELL | {"pre_tokenizer": every_character, "decoder": {"type": "Fuse"}, "model": model}

    def _refuse(self, character: str) -> NoReturn:
        raise ConfigError(
            f"the character {character!a} is not among the {self.vocab_size} that this tokenizer has seen: "
            "use tokenizer=bytes, which can encode any text"
        )


def _code_points(text: str) -> np.ndarray:
    return np.frombuffer(text.encode("utf-32-le", errors="surrogatepass"), dtype="<u4")

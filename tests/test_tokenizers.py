"""Tokenizers: text comes back unchanged, no streamed character is cut, `tokenizer.json` means the same elsewhere."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers as hugging_face
from hypothesis import given
from hypothesis import strategies as st

from partwise.config import ConfigError
from partwise.tokenizers import (
    ByteTokenizer,
    CharacterTokenizer,
    LibraryTokenizer,
    Tokenizer,
    TokenizerRecipe,
    load_tokenizer,
)

TEXTS = st.text(max_size=60)  # all of Unicode but lone surrogates
AWKWARD = "\0\0\t\n\n\r\n\r\r  a\u00e9e\u0301\u200d\ufeff\ufffd\u2028\U0001f600\U0001f469\U0010ffff<unk> Ġ"


def test_importing_needs_no_torch() -> None:
    code = "import sys, partwise.tokenizers, partwise.data; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_recipes_build_by_name() -> None:
    class Source:
        def alphabet(self) -> str:
            return "ba"

        def training_text(self) -> str:
            return "abab" * 100

    sizes = {"characters": 2, "bytes": 256, "bpe": 258}
    for name, size in sizes.items():
        recipe: Any = TokenizerRecipe.resolve({"part": name, **({"vocab_size": 258} if name == "bpe" else {})})
        assert recipe.build(Source()).vocab_size == recipe.size(Source()) == size
    with pytest.raises(ConfigError, match="did you mean 'bytes'"):
        TokenizerRecipe.resolve("byte")


def test_characters_are_the_ranks_of_makemore() -> None:
    text = "hello, wörld\n"
    chars = sorted(set(text))
    stoi = {character: index for index, character in enumerate(chars)}
    tokenizer = CharacterTokenizer(text)
    assert tokenizer.encode(text).tolist() == [stoi[character] for character in text]
    assert tokenizer.encode(text).dtype == np.int64
    assert tokenizer.vocab_size == len(chars)


@given(TEXTS)
def test_bytes_are_the_bytes_of_utf8(text: str) -> None:
    tokenizer = ByteTokenizer()
    assert tokenizer.encode(text).tolist() == list(text.encode())
    assert tokenizer.encode(text).dtype == np.int64
    assert tokenizer.decode(tokenizer.encode(text)) == text


@given(TEXTS, TEXTS)
def test_characters_round_trip(text: str, more: str) -> None:
    tokenizer = CharacterTokenizer(text + more + "x")
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.encode(text + more).tolist() == [*tokenizer.encode(text), *tokenizer.encode(more)]
    assert list(tokenizer.pieces(text, 7)) == [text[at : at + 7] for at in range(0, len(text), 7)]
    assert tokenizer.decode(iter(tokenizer.encode(text).tolist())) == text


@pytest.mark.parametrize("character", ["z", "\n", "é", "\U0010ffff", "\ud800"])
def test_an_unseen_character_is_named_with_the_remedy(character: str) -> None:
    with pytest.raises(ConfigError) as caught:
        CharacterTokenizer("ab\U0001f600").encode(f"ab{character}a")
    assert repr(character).encode("ascii", "backslashreplace").decode() in str(caught.value)
    assert "use tokenizer=bytes" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("alphabet", ["", "a\ud800"])
def test_an_alphabet_that_is_none_is_refused(alphabet: str) -> None:
    with pytest.raises(ConfigError):
        CharacterTokenizer(alphabet)


def test_half_a_surrogate_pair_has_no_bytes() -> None:
    with pytest.raises(ConfigError, match=r"'\\ud800', at 1"):
        ByteTokenizer().encode("a\ud800")


@given(st.binary(max_size=80))
def test_bulk_ascii_agrees_with_encode(content: bytes) -> None:
    codes = np.frombuffer(content, dtype=np.uint8) % 128
    text = codes.tobytes().decode("ascii")
    for tokenizer in (CharacterTokenizer(text + "xé"), ByteTokenizer()):
        ids = tokenizer.encode_ascii(codes)
        assert ids.dtype == np.uint8
        assert ids.tolist() == tokenizer.encode(text).tolist()


def test_bulk_ascii_refuses_the_unseen() -> None:
    full = CharacterTokenizer("".join(map(chr, range(128))))
    assert full.encode_ascii(np.arange(128, dtype=np.uint8)).tolist() == list(range(128))
    with pytest.raises(ConfigError, match="'c' is not among"):
        CharacterTokenizer("ab").encode_ascii(np.frombuffer(b"abca", dtype=np.uint8))
    with pytest.raises(ConfigError, match="xff"):
        full.encode_ascii(np.array([65, 255], dtype=np.uint8))


@pytest.mark.parametrize("tokenizer", [CharacterTokenizer("abc"), ByteTokenizer()], ids=["characters", "bytes"])
@pytest.mark.parametrize("index", [-1, 256])
def test_an_id_out_of_range_is_named(tokenizer: Tokenizer, index: int) -> None:
    for act in (tokenizer.decode, lambda ids: tokenizer.stream().push(ids[-1])):
        with pytest.raises(ConfigError, match=f"id {index} is outside the vocabulary of {tokenizer.vocab_size}"):
            act([0, index])


@given(st.one_of(st.binary(max_size=40), TEXTS.map(str.encode)))
def test_streamed_bytes_are_the_decoded_bytes(content: bytes) -> None:
    tokenizer = ByteTokenizer()
    stream = tokenizer.stream()
    streamed = "".join(stream.push(byte) for byte in content) + stream.flush()
    assert streamed == content.decode(errors="replace") == tokenizer.decode(list(content))
    assert stream.push(ord("a")) == "a"  # flushing left nothing behind


@given(TEXTS)
def test_streaming_never_cuts_a_character(text: str) -> None:
    tokenizer = ByteTokenizer()
    stream, emitted = tokenizer.stream(), ""
    content = text.encode()
    for at, byte in enumerate(content, start=1):
        emitted += stream.push(byte)
        # whatever was said is final, and nothing that could be said is held back
        assert emitted == content[:at].decode(errors="ignore")
    assert stream.flush() == ""


@given(TEXTS)
def test_streamed_characters_come_at_once(text: str) -> None:
    tokenizer = CharacterTokenizer(text + "x")
    stream = tokenizer.stream()
    assert [stream.push(index) for index in tokenizer.encode(text)] == list(text)
    assert stream.flush() == ""


def test_a_cut_character_is_marked_at_the_end() -> None:
    stream = ByteTokenizer().stream()
    assert [stream.push(byte) for byte in "é".encode()[:1]] == [""]
    assert stream.flush() == "\ufffd"


@given(TEXTS)
def test_bytes_of_counts_utf8(text: str) -> None:
    for tokenizer in (CharacterTokenizer(text + "x"), ByteTokenizer()):
        assert tokenizer.bytes_of(tokenizer.encode(text)) == len(text.encode())


def test_bytes_of_a_mapped_file(tmp_path: Path) -> None:
    tokenizer = CharacterTokenizer("aé€\U0001f600")
    ids = np.tile(np.arange(4, dtype=np.uint8), 1_500_000)
    ids.tofile(tmp_path / "ids.bin")
    mapped = np.memmap(tmp_path / "ids.bin", dtype=np.uint8, mode="r")
    assert tokenizer.bytes_of(mapped) == 1_500_000 * (1 + 2 + 3 + 4)
    assert ByteTokenizer().bytes_of(mapped) == 6_000_000


@given(TEXTS)
def test_tokenizer_json_agrees_with_the_library(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    path = tmp_path_factory.getbasetemp() / "tokenizer.json"
    text += AWKWARD
    for tokenizer in (CharacterTokenizer(text), ByteTokenizer()):
        tokenizer.save(path)
        theirs = hugging_face.Tokenizer.from_file(str(path))
        assert theirs.encode(text).ids == tokenizer.encode(text).tolist()
        assert theirs.decode(theirs.encode(text).ids, skip_special_tokens=False) == text
        assert theirs.get_vocab_size() == tokenizer.vocab_size
        loaded = load_tokenizer(path)
        assert type(loaded) is type(tokenizer)
        assert loaded.encode(text).tolist() == tokenizer.encode(text).tolist()


@given(st.lists(st.integers(0, 255), max_size=30))
def test_the_library_decodes_broken_bytes_alike(ids: list[int]) -> None:
    theirs = hugging_face.Tokenizer.from_str(json.dumps(ByteTokenizer().document()))
    assert theirs.decode(ids, skip_special_tokens=False) == ByteTokenizer().decode(ids)


@pytest.mark.parametrize("tokenizer", [CharacterTokenizer(AWKWARD), ByteTokenizer()], ids=["characters", "bytes"])
def test_what_the_library_writes_again_still_loads(tokenizer: Tokenizer, tmp_path: Path) -> None:
    tokenizer.save(tmp_path / "ours.json")
    hugging_face.Tokenizer.from_file(str(tmp_path / "ours.json")).save(str(tmp_path / "theirs.json"))
    assert load_tokenizer(tmp_path / "theirs.json").encode(AWKWARD).tolist() == tokenizer.encode(AWKWARD).tolist()
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_the_library_refuses_the_unseen_too() -> None:
    theirs = hugging_face.Tokenizer.from_str(json.dumps(CharacterTokenizer("ab").document()))
    with pytest.raises(Exception, match="UNK"):
        theirs.encode("abc")


GOOD = CharacterTokenizer("ab").document()
FOREIGN = {
    "missing": None,
    "cut": json.dumps(GOOD)[:-20],
    "binary": "\0\1",
    "deep": "[" * 100_000,
    "a list": "[]",
    "no model": "{}",
    "another model": json.dumps(GOOD | {"model": {"type": "Bigram", "vocab": [["a", 0.0]]}}),
    "ranks with a hole": json.dumps(GOOD | {"model": GOOD["model"] | {"vocab": {"a": 0, "b": 2}}}),
    "no characters": json.dumps(GOOD | {"model": GOOD["model"] | {"vocab": {}}}),
    "surrogate": json.dumps(GOOD | {"model": GOOD["model"] | {"vocab": {"\ud800": 0}}}),
    "merges": json.dumps(ByteTokenizer().document() | {"model": {"type": "BPE", "vocab": {}, "merges": [["a", "b"]]}}),
}


@pytest.mark.parametrize("kind", FOREIGN)
def test_a_damaged_or_foreign_file_is_refused(kind: str, tmp_path: Path) -> None:
    content = FOREIGN[kind]
    if content is not None:
        (tmp_path / "tokenizer.json").write_text(content, encoding="utf-8")
    with pytest.raises(ConfigError, match=r"tokenizer\.json") as caught:
        load_tokenizer(tmp_path / "tokenizer.json")
    assert "\n" not in str(caught.value)


OTHER = {
    "ranks out of order": ({"model": GOOD["model"] | {"vocab": {"a": 1, "b": 0}}}, [1, 0]),
    "a word": ({"model": GOOD["model"] | {"vocab": {"ab": 0, "a": 1, "b": 2}}}, [1, 2]),
    "a normalizer": (
        {"normalizer": {"type": "Replace", "pattern": {"String": "a"}, "content": "b"}},
        [1, 1],
    ),
}


@pytest.mark.parametrize("kind", OTHER)
def test_what_differs_from_ours_is_left_to_the_library(kind: str, tmp_path: Path) -> None:
    change, ids = OTHER[kind]
    (tmp_path / "tokenizer.json").write_text(json.dumps(GOOD | change), encoding="utf-8")
    tokenizer = load_tokenizer(tmp_path / "tokenizer.json")
    assert isinstance(tokenizer, LibraryTokenizer)
    assert tokenizer.encode("ab").tolist() == ids
    assert tokenizer.document() == GOOD | change
    with pytest.raises(ConfigError, match="the text has no ids"):
        tokenizer.encode("abc")

"""Tokenizers: lossless round trips, streaming of whole characters, and a `tokenizer.json` that other libraries read."""

import json
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tokenizers as hugging_face
from partwise.config import ConfigError
from partwise.tokenizers import (
    ByteTokenizer,
    CharacterTokenizer,
    HuggingFaceTokenizer,
    Tokenizer,
    TokenizerRecipe,
    WithSpecialTokens,
    load_tokenizer,
)
from partwise.tokenizers.library_errors import library_errors

TEXTS = st.text(max_size=60)  # all of Unicode except lone surrogates
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
        assert recipe.build(Source()).vocab_size == recipe.expected_vocab_size(Source()) == size
    with pytest.raises(ConfigError, match="did you mean tokenizer=bytes"):
        TokenizerRecipe.resolve("byte")


def test_character_ids_equal_makemores() -> None:
    text = "hello, wörld\n"
    chars = sorted(set(text))
    stoi = {character: index for index, character in enumerate(chars)}
    tokenizer = CharacterTokenizer(text)
    assert tokenizer.encode(text).tolist() == [stoi[character] for character in text]
    assert tokenizer.encode(text).dtype == np.int64
    assert tokenizer.vocab_size == len(chars)


@given(TEXTS)
def test_byte_ids_are_utf8_bytes(text: str) -> None:
    tokenizer = ByteTokenizer()
    assert tokenizer.encode(text).tolist() == list(text.encode())
    assert tokenizer.encode(text).dtype == np.int64
    assert tokenizer.decode(tokenizer.encode(text)) == text


@given(TEXTS, TEXTS)
def test_characters_round_trip(text: str, more: str) -> None:
    tokenizer = CharacterTokenizer(text + more + "x")
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.encode(text + more).tolist() == [*tokenizer.encode(text), *tokenizer.encode(more)]
    assert list(tokenizer.chunks(text, 7)) == [text[at : at + 7] for at in range(0, len(text), 7)]
    assert tokenizer.decode(iter(tokenizer.encode(text).tolist())) == text


@pytest.mark.parametrize("character", ["z", "\n", "é", "\U0010ffff", "\ud800"])
def test_an_unknown_character_is_named_with_the_remedy(character: str) -> None:
    with pytest.raises(ConfigError) as caught:
        CharacterTokenizer("ab\U0001f600").encode(f"ab{character}a")
    assert repr(character).encode("ascii", "backslashreplace").decode() in str(caught.value)
    assert "use tokenizer=bytes" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("alphabet", ["", "a\ud800"])
def test_an_invalid_alphabet_is_refused(alphabet: str) -> None:
    with pytest.raises(ConfigError):
        CharacterTokenizer(alphabet)


def test_a_lone_surrogate_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"'\\ud800', at 1"):
        ByteTokenizer().encode("a\ud800")


@given(st.binary(max_size=80))
def test_encode_ascii_equals_encode(content: bytes) -> None:
    codes = np.frombuffer(content, dtype=np.uint8) % 128
    text = codes.tobytes().decode("ascii")
    for tokenizer in (CharacterTokenizer(text + "xé"), ByteTokenizer()):
        ids = tokenizer.encode_ascii(codes)
        assert ids.dtype == np.uint8
        assert ids.tolist() == tokenizer.encode(text).tolist()


def test_encode_ascii_refuses_unknown_characters() -> None:
    full = CharacterTokenizer("".join(map(chr, range(128))))
    assert full.encode_ascii(np.arange(128, dtype=np.uint8)).tolist() == list(range(128))
    with pytest.raises(ConfigError, match="'c' is not among"):
        CharacterTokenizer("ab").encode_ascii(np.frombuffer(b"abca", dtype=np.uint8))
    with pytest.raises(ConfigError, match="xff"):
        full.encode_ascii(np.array([65, 255], dtype=np.uint8))


@pytest.mark.parametrize("tokenizer", [CharacterTokenizer("abc"), ByteTokenizer()], ids=["characters", "bytes"])
@pytest.mark.parametrize("index", [-1, 256])
def test_an_id_out_of_range_is_named(tokenizer: Tokenizer, index: int) -> None:
    for act in (tokenizer.decode, lambda ids: tokenizer.decode_stream().push(ids[-1])):
        with pytest.raises(ConfigError, match=f"id {index} is outside the vocabulary of {tokenizer.vocab_size}"):
            act([0, index])


@given(st.one_of(st.binary(max_size=40), TEXTS.map(str.encode)))
def test_streamed_bytes_equal_decoded_bytes(content: bytes) -> None:
    tokenizer = ByteTokenizer()
    stream = tokenizer.decode_stream()
    streamed = "".join(stream.push(byte) for byte in content) + stream.flush()
    assert streamed == content.decode(errors="replace") == tokenizer.decode(list(content))
    assert stream.push(ord("a")) == "a"  # flush resets the stream


@given(TEXTS)
def test_streaming_never_splits_a_character(text: str) -> None:
    tokenizer = ByteTokenizer()
    stream, emitted = tokenizer.decode_stream(), ""
    content = text.encode()
    for at, byte in enumerate(content, start=1):
        emitted += stream.push(byte)
        # emitted text is final, and complete characters are not held back
        assert emitted == content[:at].decode(errors="ignore")
    assert stream.flush() == ""


@given(TEXTS)
def test_streamed_characters_are_emitted_at_once(text: str) -> None:
    tokenizer = CharacterTokenizer(text + "x")
    stream = tokenizer.decode_stream()
    assert [stream.push(index) for index in tokenizer.encode(text)] == list(text)
    assert stream.flush() == ""


def test_an_incomplete_character_is_replaced_at_the_end() -> None:
    stream = ByteTokenizer().decode_stream()
    assert [stream.push(byte) for byte in "é".encode()[:1]] == [""]
    assert stream.flush() == "\ufffd"


@given(TEXTS)
def test_count_bytes_counts_utf8(text: str) -> None:
    for tokenizer in (CharacterTokenizer(text + "x"), ByteTokenizer()):
        assert tokenizer.count_bytes(tokenizer.encode(text)) == len(text.encode())


def test_count_bytes_of_a_mapped_file(tmp_path: Path) -> None:
    tokenizer = CharacterTokenizer("aé€\U0001f600")
    ids = np.tile(np.arange(4, dtype=np.uint8), 1_500_000)
    ids.tofile(tmp_path / "ids.bin")
    mapped = np.memmap(tmp_path / "ids.bin", dtype=np.uint8, mode="r")
    assert tokenizer.count_bytes(mapped) == 1_500_000 * (1 + 2 + 3 + 4)
    assert ByteTokenizer().count_bytes(mapped) == 6_000_000


@given(TEXTS)
def test_tokenizer_json_gives_the_same_ids_in_hugging_face(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
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
def test_hugging_face_decodes_invalid_utf8_equally(ids: list[int]) -> None:
    theirs = hugging_face.Tokenizer.from_str(json.dumps(ByteTokenizer().to_dict()))
    assert theirs.decode(ids, skip_special_tokens=False) == ByteTokenizer().decode(ids)


@pytest.mark.parametrize("tokenizer", [CharacterTokenizer(AWKWARD), ByteTokenizer()], ids=["characters", "bytes"])
def test_a_file_saved_again_by_hugging_face_loads(tokenizer: Tokenizer, tmp_path: Path) -> None:
    tokenizer.save(tmp_path / "ours.json")
    hugging_face.Tokenizer.from_file(str(tmp_path / "ours.json")).save(str(tmp_path / "theirs.json"))
    assert load_tokenizer(tmp_path / "theirs.json").encode(AWKWARD).tolist() == tokenizer.encode(AWKWARD).tolist()
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_hugging_face_refuses_unknown_characters_too() -> None:
    theirs = hugging_face.Tokenizer.from_str(json.dumps(CharacterTokenizer("ab").to_dict()))
    with pytest.raises(Exception, match="UNK"):
        theirs.encode("abc")


VALID = CharacterTokenizer("ab").to_dict()
BYTES = ByteTokenizer().to_dict()["model"]


def with_hole(tokenizer_json: dict[str, Any], vocab: dict[str, int], **model: Any) -> dict[str, Any]:
    return tokenizer_json | {"model": tokenizer_json["model"] | {"vocab": vocab, **model}}


@pytest.mark.parametrize(
    ("content", "missing", "ids", "text"),
    [
        (with_hole(VALID, {"a": 1, "b": 3}), [0, 2], [1, 0, 3, 2], "ab"),
        (
            with_hole(ByteTokenizer().to_dict(), {**BYTES["vocab"], "ab": 258}, merges=[["a", "b"]]),
            [256, 257],
            [258, 256, 99],
            "abc",
        ),
    ],
)
def test_ids_without_a_token_decode_to_nothing(
    content: dict[str, Any], missing: list[int], ids: list[int], text: str, tmp_path: Path
) -> None:
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    tokenizer = load_tokenizer(tmp_path / "tokenizer.json")
    assert list(tokenizer.missing_ids) == missing == list(WithSpecialTokens(tokenizer).missing_ids)
    assert tokenizer.decode(ids) == text == b"".join(map(tokenizer.token_bytes, ids)).decode()
    assert tokenizer.count_bytes(np.array(ids)) == len(text)
    assert tokenizer.encode(text).tolist() == [index for index in ids if index not in missing]


INVALID = {
    "missing": None,
    "truncated": json.dumps(VALID)[:-20],
    "binary": "\0\1",
    "deep": "[" * 100_000,
    "a list": "[]",
    "no model": "{}",
    "another model": json.dumps(VALID | {"model": {"type": "Bigram", "vocab": [["a", 0.0]]}}),
    "a rank twice": json.dumps(VALID | {"model": VALID["model"] | {"vocab": {"a": 0, "b": 0}}}),
    "no characters": json.dumps(VALID | {"model": VALID["model"] | {"vocab": {}}}),
    "surrogate": json.dumps(VALID | {"model": VALID["model"] | {"vocab": {"\ud800": 0}}}),
    "merges": json.dumps(ByteTokenizer().to_dict() | {"model": {"type": "BPE", "vocab": {}, "merges": [["a", "b"]]}}),
}


@pytest.mark.parametrize("kind", INVALID)
def test_a_corrupt_or_unrelated_file_is_refused(kind: str, tmp_path: Path) -> None:
    content = INVALID[kind]
    if content is not None:
        (tmp_path / "tokenizer.json").write_text(content, encoding="utf-8")
    with pytest.raises(ConfigError, match=r"tokenizer\.json") as caught:
        load_tokenizer(tmp_path / "tokenizer.json")
    assert "\n" not in str(caught.value)


UNSUPPORTED = {
    "ranks out of order": ({"model": VALID["model"] | {"vocab": {"a": 1, "b": 0}}}, [1, 0]),
    "a word": ({"model": VALID["model"] | {"vocab": {"ab": 0, "a": 1, "b": 2}}}, [1, 2]),
    "a normalizer": (
        {"normalizer": {"type": "Replace", "pattern": {"String": "a"}, "content": "b"}},
        [1, 1],
    ),
}


@pytest.mark.parametrize("kind", UNSUPPORTED)
def test_other_tokenizers_are_run_by_hugging_face(kind: str, tmp_path: Path) -> None:
    change, ids = UNSUPPORTED[kind]
    (tmp_path / "tokenizer.json").write_text(json.dumps(VALID | change), encoding="utf-8")
    tokenizer = load_tokenizer(tmp_path / "tokenizer.json")
    assert isinstance(tokenizer, HuggingFaceTokenizer)
    assert tokenizer.encode("ab").tolist() == ids
    assert tokenizer.to_dict() == VALID | change
    with pytest.raises(ConfigError, match="the text cannot be encoded"):
        tokenizer.encode("abc")


REPLACE = {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}
SLOW = "(a|aa)+$"
"""A pattern that tries exponentially many ways to match a run of `a` that does not end the text."""


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"normalizer": {"type": "Sequence", "normalizers": [REPLACE] * 31}}, "its normalizer may make a text 2,147,4"),
        ({"decoder": {"type": "Sequence", "decoders": [REPLACE] * 7}}, "its decoder may make a text 128 times as long"),
        (
            {"normalizer": REPLACE | {"pattern": {"Regex": "x*"}, "content": "b" * 64}},
            "normalizer may make a text 65 t",
        ),
        ({"normalizer": {"type": "Prepend", "prepend": "b" * 100}}, "its normalizer may make a text 100 times as long"),
        ({"normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}] * 40}}, "normalizer has 41 steps"),
    ],
)
def test_steps_that_could_fill_the_memory_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        HuggingFaceTokenizer(VALID | change)


@pytest.mark.parametrize(
    ("change", "work"),
    [
        (
            {"pre_tokenizer": {"type": "Split", "pattern": {"Regex": SLOW}, "behavior": "Isolated", "invert": False}},
            "e",
        ),
        ({"normalizer": REPLACE | {"pattern": {"Regex": SLOW}}}, "e"),
        ({"decoder": {"type": "Strip", "content": "a", "start": 5, "stop": 5}}, "d"),
        (
            {"decoder": {"type": "Sequence", "decoders": [{"type": "Fuse"}, REPLACE | {"pattern": {"Regex": SLOW}}]}},
            "d",
        ),
    ],
)
def test_a_panic_of_the_library_is_one_error(
    change: dict[str, Any], work: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """Its PanicException is no Exception, and would end the process; Rust prints lines of its own before it."""
    with pytest.raises(ConfigError, match="choose another tokenizer") as caught:
        tokenizer = HuggingFaceTokenizer(VALID | change)
        tokenizer.encode("a" * 40 + "b") if work == "e" else tokenizer.decode([0] * 40 + [1])
    assert "\n" not in str(caught.value) and capfd.readouterr().err == ""


def test_an_interrupt_is_no_error_of_the_library() -> None:
    with pytest.raises(KeyboardInterrupt), library_errors("{}"):
        raise KeyboardInterrupt


@pytest.mark.parametrize("raised", [None, ValueError("refused"), KeyboardInterrupt()])
def test_what_others_write_to_standard_error_is_kept(
    raised: BaseException | None, capfd: pytest.CaptureFixture[str]
) -> None:
    with suppress(ConfigError, KeyboardInterrupt), library_errors("{}"):
        with library_errors("{}"):
            os.write(2, b"one\n")
        os.write(2, b"two\n")
        if raised:
            raise raised
    os.write(2, b"three\n")
    assert capfd.readouterr().err == "one\ntwo\nthree\n"


def test_standard_error_may_be_closed() -> None:
    code = "from partwise.tokenizers.library_errors import library_errors\nwith library_errors(''):\n print(1)"
    words = ["sh", "-c", 'exec "$0" -c "$1" 2>&-', sys.executable, code]
    assert subprocess.check_output(words) == b"1\n"

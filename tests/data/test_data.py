"""Corpora, shards and batches: clear errors, repair of corrupt data, and batches that depend only on the step."""

import bz2
import hashlib
import json
import os
import subprocess
import sys
import tracemalloc
from codecs import BOM_UTF8
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from partwise.config import ConfigError
from partwise.data import (
    Arithmetic,
    ArithmeticPairs,
    Corpus,
    Dataset,
    Folder,
    JsonLines,
    PairFile,
    Python,
    Shakespeare,
    TextFile,
    corpora,
    eval_windows,
    parse_data_option,
    prepare,
    sample_windows,
    split_problems,
)
from partwise.tokenizers import BPE, Bytes, Characters, Text, TokenizerRecipe
from partwise.tokenizers import text as text_module

SMALL = Arithmetic(train=50, validation=5, test=6)


@pytest.fixture
def corpus(tmp_path: Path) -> TextFile:
    path = tmp_path / "text.txt"
    path.write_bytes("Grüße\r\n\U0001f600 and so on, again and again.\n".encode() * 40)
    return TextFile(path=str(path))


def as_text(split: Text) -> str:
    return split.tobytes().decode("ascii") if isinstance(split, np.ndarray) else split[:]


def texts(corpus: Corpus) -> dict[str, str]:
    return {name: as_text(split) for name, split in corpus.splits().items()}


# corpora


def test_every_corpus_is_registered() -> None:
    assert [Corpus.resolve(name).name for name in ("arithmetic", "shakespeare", "python")] == [
        "arithmetic",
        "shakespeare",
        "python",
    ]
    assert Corpus.resolve({"part": "text", "path": "a.txt"}) == TextFile(path="a.txt")
    assert (Arithmetic.task, TextFile.task, Arithmetic.unit) == ("arithmetic", "text", "characters")
    for bad, message in (
        ("text", "'data.path' is missing"),
        ({"part": "arithmetic", "padding": 3}, r"data\.padding=3"),
        ({"part": "arithmetic", "train": 0}, r"data\.train=0"),
        ({"part": "arithmetic", "validation_tail": 1.0}, r"data\.validation_tail=1\.0"),
    ):
        with pytest.raises(ConfigError, match=message):
            Corpus.resolve(bad)


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("shakespeare", "shakespeare"),
        ("arithmetic", "arithmetic"),
        ("notes.txt", {"part": "text", "path": "notes.txt"}),
        ("./notes", {"part": "text", "path": "./notes"}),
        ("/tmp/a b", {"part": "text", "path": "/tmp/a b"}),
    ],
)
def test_data_on_the_command_line(word: str, value: Any) -> None:
    assert parse_data_option(word) == value
    assert Corpus.resolve(value).name == (value if isinstance(value, str) else "text")


def test_files_and_folders_on_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "notes").mkdir()
    monkeypatch.chdir(tmp_path)
    for word in ("notes", "./notes", str(tmp_path)):
        assert parse_data_option(word) == {"part": "folder", "path": word}
    for word in ("notes.jsonl", "missing/notes.jsonl"):
        assert parse_data_option(word) == {"part": "jsonl", "path": word}
    (tmp_path / "python").mkdir()
    assert parse_data_option("python") == "python"
    assert parse_data_option("./python") == {"part": "folder", "path": "./python"}


@pytest.mark.parametrize("word", ["shakespear", "", "nothing-like-it"])
def test_an_unknown_corpus_is_explained(word: str) -> None:
    with pytest.raises(ConfigError, match="unknown data") as caught:
        parse_data_option(word)
    for name in ("arithmetic", "folder", "jsonl", "python", "shakespeare", "text"):
        assert name in str(caught.value).partition("(known: ")[2]
    assert ("did you mean 'shakespeare'" in str(caught.value)) == (word == "shakespear")


def test_text_keeps_its_newlines_and_splits_at_nine_tenths(corpus: TextFile) -> None:
    text = Path(corpus.path).read_bytes().decode()
    splits = texts(corpus)
    assert "\r\n" in text
    assert splits == {"train": text[: int(0.9 * len(text))], "val": text[int(0.9 * len(text)) :]}
    assert corpus.alphabet() == "".join(sorted(set(text)))


INVALID_FILES = {
    "missing": (None, "No such file"),
    "empty": (b"", "is empty"),
    "binary": (b"abc\0def" * 9, "zero byte at offset 3"),
    "latin-1": ("Grüße".encode("latin-1") * 9, "not UTF-8 .at byte offset 2"),
    "short": (b"abcdefghij", "10 characters, too few"),
}


@pytest.mark.parametrize("kind", INVALID_FILES)
def test_a_file_that_is_not_text_is_refused(kind: str, tmp_path: Path) -> None:
    content, message = INVALID_FILES[kind]
    if content is not None:
        (tmp_path / "x.txt").write_bytes(content)
    with pytest.raises(ConfigError, match=message) as caught:
        prepare(TextFile(path=str(tmp_path / "x.txt")), Bytes(), cache=tmp_path / "cache")
    assert "x.txt" in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("path", ["", ".", "a\0b"])
def test_a_path_that_is_not_a_file_is_refused(path: str) -> None:
    with pytest.raises(ConfigError, match=r"path of a text file"):
        TextFile(path=path).splits()


def test_the_shortest_text_that_splits(tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_text("abcdefghijk")
    assert texts(TextFile(path=str(tmp_path / "x.txt"))) == {"train": "abcdefghi", "val": "jk"}


def test_shakespeare_is_the_known_file() -> None:
    splits = texts(Shakespeare())
    assert {name: len(text) for name, text in splits.items()} == {"train": 1_003_854, "val": 111_540}
    assert splits["train"].startswith("First Citizen:\nBefore we proceed any further, hear me speak.")
    assert len(Shakespeare().alphabet()) == 65
    digest = hashlib.sha256((splits["train"] + splits["val"]).encode()).hexdigest()
    assert digest == Shakespeare().identity()["sha256"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda content: None, "No such file"),
        (lambda content: content[:1000], "cannot be read"),
        (lambda content: content[:1000] + bytes([content[1000] ^ 1]) + content[1001:], "cannot be read"),
        (lambda content: bz2.compress(b"First Citizen:\n"), "has the wrong SHA-256"),
    ],
)
def test_a_damaged_shakespeare_is_refused(
    change: Callable[[bytes], bytes | None], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content, path = change(corpora.TINYSHAKESPEARE_FILE.read_bytes()), tmp_path / "tinyshakespeare.txt.bz2"
    if content is not None:
        path.write_bytes(content)
    monkeypatch.setattr(corpora, "TINYSHAKESPEARE_FILE", path)
    corpora._tinyshakespeare.cache_clear()
    with pytest.raises(ConfigError, match=f"{message}.*install partwise again") as caught:
        Shakespeare().splits()
    assert "\n" not in str(caught.value)


def test_python_is_split_between_files() -> None:
    splits = texts(Python())
    everything = splits["train"] + splits["val"]
    assert 0.85 < len(splits["train"]) / len(everything) < 0.95
    assert Path(json.__file__).read_text(encoding="utf-8") in everything
    # one module ends and another begins at the split
    folder = Path(os.__file__).parent
    modules = [path for pattern in ("*.py", "[a-z]*/*.py") for path in folder.glob(pattern)]
    contents = [path.read_bytes().decode(errors="replace") for path in modules if "packages" not in str(path)]
    assert any(len(content) > 400 and splits["val"].startswith(content + "\n") for content in contents)
    assert any(len(content) > 400 and splits["train"].endswith(content + "\n") for content in contents)
    assert Python().identity()["sha256"] == hashlib.sha256(everything.encode()).hexdigest()
    assert Python().identity()["python"] == ".".join(map(str, sys.version_info[:3]))
    assert set(Python().alphabet()) == set(everything)


# lazy texts


@settings(max_examples=200)
@given(
    st.lists(st.sampled_from(["a", "é", "漢", "\U0001f600", "\r\n", "\ufeff", b"\0", b"\xff", b"\xe6", b"\x80"])),
    st.integers(1, 9),
    st.data(),
)
def test_a_file_read_in_blocks_equals_the_whole_file(
    tmp_path_factory: pytest.TempPathFactory, pieces: list[str | bytes], block: int, data: st.DataObject
) -> None:
    content = b"".join(piece if isinstance(piece, bytes) else piece.encode() for piece in pieces)
    path = tmp_path_factory.getbasetemp() / "blocks.txt"
    path.write_bytes(content)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text_module, "BLOCK_BYTES", block)
        try:
            found = text_module.open_text(path)
        except ConfigError as error:
            if b"\0" in content:
                assert f"a zero byte at offset {content.index(0)}" in str(error)
            elif content.removeprefix(BOM_UTF8):
                with pytest.raises(UnicodeDecodeError) as caught:
                    content.decode()
                assert f"not UTF-8 (at byte offset {caught.value.start})" in str(error)
            else:
                assert "is empty" in str(error)
            return
        text = content.decode("utf-8-sig")
        assert (found.text[:], len(found.text)) == (text, len(text))
        assert found.alphabet == "".join(sorted(set(text)))
        assert found.sha256 == hashlib.sha256(content).hexdigest()
        first, end = sorted((data.draw(st.integers(0, len(text))), data.draw(st.integers(0, len(text)))))
        part = found.text.subtext(first, end)
        start, stop = data.draw(st.integers(-9, 9)), data.draw(st.integers(-9, 9))
        assert (part[:], part[start:stop], len(part)) == (text[first:end], text[first:end][start:stop], end - first)


@pytest.mark.parametrize("content", [b"abc", b"other text of the same size\xff", b"\xc3\xa9" * 14])
def test_a_lazy_text_that_changes_is_detected(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_bytes(b"a text of twenty-eight bytes"[:28])
    text = text_module.open_text(tmp_path / "x.txt").text
    (tmp_path / "x.txt").write_bytes(content)
    with pytest.raises(ConfigError, match="changed while it was being read: try again"):
        text[3:9]


def test_preparing_needs_constant_memory(tmp_path: Path) -> None:
    def peak(copies: int) -> int:
        (tmp_path / "x.txt").write_bytes("Grüße and so on, again and again.\r\n".encode() * copies)
        tracemalloc.start()
        prepare(TextFile(path=str(tmp_path / "x.txt")), Characters(), cache=tmp_path / str(copies))
        try:
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    assert peak(20_000) * 1.1 + 100_000 > peak(160_000)  # 0.7 and 5.8 MB of text


def test_a_pipe_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.txt")
    with pytest.raises(ConfigError, match=r"pipe\.txt is not a regular file"):
        prepare(TextFile(path=str(tmp_path / "pipe.txt")), Bytes(), cache=tmp_path)


# documents


def write_lines(path: Path, texts: list[str], key: str = "text") -> str:
    path.write_text("\n".join(json.dumps({"id": 1, key: text}, ensure_ascii=False) for text in texts), encoding="utf-8")
    return str(path)


def write_files(folder: Path, texts: dict[str, str]) -> str:
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(text.encode())
    return str(folder)


SEPARATOR = "\x1e"


@given(
    st.lists(
        st.text(st.characters(exclude_categories=("Cs",), exclude_characters=SEPARATOR), max_size=30),
        min_size=1,
        max_size=12,
    )
)
def test_no_document_is_in_both_splits(tmp_path_factory: pytest.TempPathFactory, documents: list[str]) -> None:
    path = write_lines(tmp_path_factory.getbasetemp() / "any.jsonl", documents)
    corpus = JsonLines(path=path, separator=SEPARATOR)
    try:
        splits = texts(corpus)
    except ConfigError as error:
        assert "none is left for validation" in str(error)
        return
    nonempty = [text for text in documents if text]
    train = splits["train"].removesuffix(SEPARATOR).split(SEPARATOR)
    validation = splits["val"].split(SEPARATOR)
    assert train == nonempty[: len(train)]
    assert validation == [text for text in nonempty[len(train) :] if text not in train]
    assert not {*train} & {*validation}
    # as many documents as fit into 90% of the characters, at least one
    ends = np.cumsum([len(text) + 1 for text in nonempty])
    assert len(train) == max(1, int((ends < int(0.9 * ends[-1])).sum()))
    assert corpus.alphabet() == "".join(sorted({*SEPARATOR * (len(nonempty) > 1), *"".join(nonempty)}))


def test_json_lines_are_parsed_as_json(tmp_path: Path) -> None:
    path = tmp_path / "notes.jsonl"
    lines = [
        '{"body": "one\\ntwo \\u00e9"}',
        "",
        '  {"body": "three\u2028four", "text": 3}\r',
        '{"body": ""}',
        '{"body": "five"}',
    ]
    path.write_bytes("\ufeff".encode() + "\n".join(lines).encode() + b"\n")
    corpus = JsonLines(path=str(path), field="body")
    assert texts(corpus) == {"train": "one\ntwo \u00e9\nthree\u2028four\n", "val": "five"}
    apart = JsonLines(path=str(path), field="body", separator="<|x|>")
    assert texts(apart)["train"] == "one\ntwo \u00e9<|x|>three\u2028four<|x|>"
    assert len({json.dumps(c.identity()) for c in (corpus, apart, JsonLines(path=str(path)))}) == 3
    moved = tmp_path / "moved.jsonl"
    moved.write_bytes(path.read_bytes())
    assert JsonLines(path=str(moved), field="body").identity() == corpus.identity()


INVALID_LINES = {
    "not JSON": ("{", "line 2 is not JSON"),
    "deep": ("[" * 100_000, "line 2 is not JSON"),
    "a list": ("[1]", "line 2 has no text under the key 'text': name the key of the text, as in data.field=KEY"),
    "a string": ('"text"', "line 2 has no text"),
    "another key": ('{"body": "x"}', "line 2 has no text"),
    "a number": ('{"text": 3}', "line 2 has no text"),
    "null": ('{"text": null}', "line 2 has no text"),
    "lone surrogate": ('{"text": "a\\ud800"}', "line 2 has a lone surrogate"),
}


@pytest.mark.parametrize("kind", INVALID_LINES)
def test_an_invalid_line_is_named(kind: str, tmp_path: Path) -> None:
    line, message = INVALID_LINES[kind]
    (tmp_path / "x.jsonl").write_text('{"text": "fine"}\n' + line + '\n{"text": "again"}')
    with pytest.raises(ConfigError, match=message) as caught:
        prepare(JsonLines(path=str(tmp_path / "x.jsonl")), Bytes(), cache=tmp_path / "cache")
    assert "x.jsonl" in str(caught.value) and "\n" not in str(caught.value)


def test_a_folder_is_read_in_path_order(tmp_path: Path) -> None:
    files = {
        "b.txt": "bee",
        "a/z.txt": "zed",
        "a/b/c.md": "sea",
        "c.txt": "end",
        "empty.txt": "",
        ".hidden": "x",
        ".git/x": "x",
    }
    folder = write_files(tmp_path / "notes", files)
    (tmp_path / "notes" / "gone.txt").symlink_to(tmp_path / "nowhere")
    corpus = Folder(path=folder)
    assert texts(corpus) == {"train": "sea\nzed\nbee\n", "val": "end"}
    assert texts(Folder(path=folder, files="*.txt", separator="")) == {"train": "zedbee", "val": "end"}
    again = write_files(tmp_path / "copy", dict(reversed(files.items())))
    assert Folder(path=again).identity() == corpus.identity()
    assert prepare(Folder(path=again), Bytes(), cache=tmp_path).hash == prepare(corpus, Bytes(), cache=tmp_path).hash
    for change in ({"c.txt": "END"}, {"d.txt": "more"}, {"b.txt": "bee\nend"}):
        other = Folder(path=write_files(tmp_path / f"other {next(iter(change))}", files | change))
        assert other.identity() != corpus.identity()
    assert Folder(path=folder, separator=" ").identity() != corpus.identity()


@pytest.mark.parametrize(
    ("files", "options", "message"),
    [
        (None, {}, "is not a folder"),
        ({"a.txt": "one"}, {}, "has 1 non-empty texts"),
        ({"a.txt": "one", "b.txt": "one"}, {}, "none is left for validation"),
        ({"a.txt": "one", "b.txt": "two"}, {"files": "*.md"}, "has 0 non-empty texts"),
        ({"a.txt": "one", "b.bin": "two\0", "c.txt": "six"}, {}, r"b\.bin is binary .* as in data\.files=\*\.txt"),
    ],
)
def test_a_folder_that_cannot_be_used_is_explained(
    files: dict[str, str] | None, options: dict[str, str], message: str, tmp_path: Path
) -> None:
    path = str(tmp_path / "missing") if files is None else write_files(tmp_path / "notes", files)
    with pytest.raises(ConfigError, match=message) as caught:
        prepare(Folder(path=path, **options), Bytes(), cache=tmp_path / "cache")
    assert "\n" not in str(caught.value)
    with pytest.raises(ConfigError, match="is not a folder"):
        Folder(path="a\0b").splits()


# shards

LINE = "Grüße\r\n漢字 \U0001f600 and so on, it's 1984 again.\n"
SOME = [LINE * (number % 7) + f"text {number}" for number in range(1500)]
HASHES = {
    "text": (
        "086d1e6c98e902fd0204b48b7efca30760ee944e8c2d84d14026288e7a1b044c",
        "60e65accf2f0105719e547d329f76f2c349abd37ca2f3f6ec6ab819add5f934c",
    ),
    "jsonl": (
        "70c5c6fc65a9fb882d10ccc182b1e4b5c254248781ca8fa139b6b8ee87a3042c",
        "bc5091b4177ded7de5bc508b797fab7dd38ab7a098d7f830bdc56c3322de1351",
    ),
    "folder": (
        "5eccc6e9f0dd25a2af3d85ca6832a705a1a7d2a438e0c192bc6ca682dbe3d42b",
        "21712acfe24aec2d49f071b34c876bee5db8029dfab1eff9617495c9759ec815",
    ),
    "shakespeare": (
        "a871673d729dd40eb1b87f55e6408f2b74e2a37b82204696fa12aef84749f65f",
        "a2bf5e9810e854c5b5127958f691ba4775b0b7ea2fa89d2654ab087cb5cd4216",
    ),
}
"""Hashes of the ids as characters and as a BPE of 280 ids, recorded when texts were still read into memory."""


@pytest.mark.parametrize("kind", list(HASHES))
def test_prepared_data_never_changes(kind: str, tmp_path: Path) -> None:
    """Runs and results are identified by these hashes."""
    twice = [*SOME, *SOME[::40], "one more"]
    (tmp_path / "x.txt").write_bytes("".join(SOME).encode())
    files = {f"{number:04}.txt": text for number, text in enumerate([*SOME[:60], *SOME[:10], "one more"])}
    corpus: Corpus = {
        "text": TextFile(path=str(tmp_path / "x.txt")),
        "jsonl": JsonLines(path=write_lines(tmp_path / "x.jsonl", twice), separator="<|x|>"),
        "folder": Folder(path=write_files(tmp_path / "notes", files)),
        "shakespeare": Shakespeare(),
    }[kind]
    recipes = (Characters(), BPE(vocab_size=280))
    assert tuple(prepare(corpus, recipe, cache=tmp_path / "cache").hash for recipe in recipes) == HASHES[kind]


@pytest.mark.parametrize("tokenizer", [Characters(), Bytes()], ids=["characters", "bytes"])
@pytest.mark.parametrize("kind", ["text", "arithmetic", "shakespeare"])
def test_prepared_ids_are_the_text(kind: str, tokenizer: TokenizerRecipe, corpus: TextFile, tmp_path: Path) -> None:
    source: Corpus = {"text": corpus, "arithmetic": SMALL, "shakespeare": Shakespeare()}[kind]
    dataset = prepare(source, tokenizer, cache=tmp_path)
    splits = texts(source)
    assert dataset.split_names == tuple(splits)
    assert dataset.corpus == source
    assert dataset.vocab_size == (len(source.alphabet()) if tokenizer.name == "characters" else 256)
    for name, text in splits.items():
        ids = dataset.split(name)
        assert isinstance(ids, np.memmap) and ids.dtype == np.uint8 and ids.ndim == 1
        assert dataset.tokenizer.decode(ids) == text
        assert ids.tolist() == dataset.tokenizer.encode(text).tolist()
        assert dataset.bytes(name) == len(text.encode()) == dataset.tokenizer.count_bytes(ids)
        with pytest.raises(ValueError, match="read-only"):
            ids[0] = 1
    with pytest.raises(ConfigError, match="has no split 'valid': choose one of train, val"):
        dataset.split("valid")


def test_the_metadata_describe_the_file(corpus: TextFile, tmp_path: Path) -> None:
    dataset = prepare(corpus, Characters(), cache=tmp_path)
    assert dataset.folder.parent == tmp_path / "data"
    assert len(dataset.folder.name) == 16 and int(dataset.folder.name, 16) >= 0
    content = (dataset.folder / "train.bin").read_bytes()
    metadata = json.loads((dataset.folder / "train.json").read_text())
    assert metadata == {
        "split": "train",
        "dtype": "uint8",
        "count": len(content),
        "bytes": len(texts(corpus)["train"].encode()),
        "sha256": hashlib.sha256(content).hexdigest(),
        "tokenizer": {"part": "characters"},
        "tokenizer_sha256": hashlib.sha256((dataset.folder / "tokenizer.json").read_bytes()).hexdigest(),
        "identity": metadata["identity"],
    }
    assert metadata["identity"].startswith(dataset.folder.name)


@pytest.mark.parametrize(
    ("vocab_size", "dtype"),
    [(256, "uint8"), pytest.param(257, "uint16", marks=pytest.mark.promise), (65_536, "uint16"), (65_537, "uint32")],
)
def test_the_type_fits_every_id(vocab_size: int, dtype: str, tmp_path: Path) -> None:
    characters = [chr(code) for code in range(1, 0x20000) if not 0xD800 <= code <= 0xDFFF][:vocab_size]
    text = "".join(characters) + characters[-1] * 9
    (tmp_path / "x.txt").write_bytes(text.encode())
    dataset = prepare(TextFile(path=str(tmp_path / "x.txt")), Characters(), cache=tmp_path)
    assert dataset.vocab_size == vocab_size
    assert dataset.split("train").dtype == dtype
    ids = np.concatenate([dataset.split("train"), dataset.split("val")])
    assert ids.tolist() == [*range(vocab_size), *[vocab_size - 1] * 9]
    assert sum(map(dataset.bytes, dataset.split_names)) == len(text.encode())


def test_a_prepared_corpus_is_reused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, int, int]] = []
    first = prepare(SMALL, Characters(), cache=tmp_path, progress=lambda *state: seen.append(state))
    assert seen == [("train", 1800, 1800), ("val", 180, 180), ("test", 216, 216)]

    def splits(self: Corpus) -> Any:
        raise AssertionError("prepared again")

    monkeypatch.setattr(Arithmetic, "splits", splits)
    monkeypatch.setenv("PARTWISE_CACHE", str(tmp_path))
    second = prepare(SMALL, Characters())
    assert (second.folder, second.hash) == (first.folder, first.hash)
    for other in (Arithmetic(train=50, validation=5, test=6, seed=1), Arithmetic(train=51, validation=5, test=6)):
        with pytest.raises(AssertionError, match="prepared again"):
            prepare(other, Characters())
    with pytest.raises(AssertionError, match="prepared again"):
        prepare(SMALL, Bytes())


def test_the_hash_depends_only_on_the_ids(corpus: TextFile, tmp_path: Path) -> None:
    before = prepare(corpus, Characters(), cache=tmp_path)
    copy = tmp_path / "copy.txt"
    copy.write_bytes(Path(corpus.path).read_bytes())
    assert prepare(TextFile(path=str(copy)), Characters(), cache=tmp_path).hash == before.hash
    assert prepare(TextFile(path=str(copy)), Bytes(), cache=tmp_path).hash != before.hash
    content = Path(corpus.path).read_bytes()
    copy.write_bytes(content[:-2] + b"!\n")  # the second to last character, in the validation split
    after = prepare(TextFile(path=str(copy)), Characters(), cache=tmp_path)
    assert after.hash != before.hash and after.folder != before.folder


def truncate(folder: Path) -> None:
    path = folder / "train.bin"
    path.write_bytes(path.read_bytes()[:-1])


def flip(folder: Path) -> None:
    content = bytearray((folder / "val.bin").read_bytes())
    content[len(content) // 2] ^= 1
    (folder / "val.bin").write_bytes(content)


def swap_tokenizer(folder: Path) -> None:
    path = folder / "tokenizer.json"
    path.write_text(path.read_text(encoding="utf-8").replace('"ß"', '"à"'), encoding="utf-8")


CORRUPTIONS = {
    "truncated": truncate,
    "flipped bit": flip,
    "other tokenizer": swap_tokenizer,
    "no tokenizer": lambda folder: (folder / "tokenizer.json").unlink(),
    "truncated tokenizer": lambda folder: (folder / "tokenizer.json").write_text('{"model"'),
    "no split": lambda folder: (folder / "val.bin").unlink(),
    "no metadata": lambda folder: (folder / "val.json").unlink(),
    "truncated metadata": lambda folder: (folder / "train.json").write_text("{"),
    "unrelated metadata": lambda folder: (folder / "train.json").write_text("[1]"),
    "hostile type": lambda folder: (folder / "train.json").write_text(
        (folder / "train.json").read_text().replace("uint8", "object")
    ),
    "hostile count": lambda folder: (folder / "train.json").write_text(
        (folder / "train.json").read_text().replace('"count": ', '"count": 99999999999')
    ),
    "emptied": lambda folder: [path.unlink() for path in folder.iterdir()],
}


@pytest.mark.parametrize("kind", CORRUPTIONS)
def test_corruption_is_detected_and_repaired(kind: str, corpus: TextFile, tmp_path: Path) -> None:
    whole = prepare(corpus, Characters(), cache=tmp_path / "cache")
    folder, known = whole.folder, whole.hash
    del whole  # on Windows, files in use cannot be replaced
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    CORRUPTIONS[kind](folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} != files
    again = prepare(corpus, Characters(), cache=tmp_path / "cache")
    assert again.hash == known
    assert {path.name: path.read_bytes() for path in again.folder.iterdir()} == files
    assert [path.name for path in again.folder.parent.iterdir()] == [again.folder.name]  # no temporary folder is left


def rewrite(folder: Path, name: str, ids: bytes, **changes: Any) -> None:
    """Replace the ids of a split, and write metadata that match them."""
    (folder / f"{name}.bin").write_bytes(ids)
    path = folder / f"{name}.json"
    values = json.loads(path.read_text()) | {"sha256": hashlib.sha256(ids).hexdigest()} | changes
    path.write_text(json.dumps(values, indent=1))


LONG = "".join(f"{number} of many lines, each another one.\n" for number in range(2000))
PROBLEMS = {"train": 40_000, "validation": 30, "test": 20}


def long_corpus(kind: str, folder: Path) -> Corpus:
    (folder / "long.txt").write_text(LONG * (15 if kind == "large text" else 1))
    lines = [(line, line.upper()) for line in LONG.splitlines()]
    (folder / "pairs.tsv").write_text("".join(f"{source}\t{target}\n" for source, target in lines))
    return {
        "shakespeare": Shakespeare(),
        "text": TextFile(path=str(folder / "long.txt")),
        "large text": TextFile(path=str(folder / "long.txt")),
        "jsonl": JsonLines(path=write_lines(folder / "long.jsonl", LONG.split("of"))),
        "folder": Folder(path=write_files(folder / "notes", {"a.txt": LONG, "b.txt": LONG[:9000].upper()})),
        "arithmetic": Arithmetic(**PROBLEMS),
        "tail": Arithmetic(**PROBLEMS, validation_tail=0.5),
        "arithmetic pairs": ArithmeticPairs(**PROBLEMS),
        "pairs": PairFile(path=str(folder / "pairs.tsv")),
    }[kind]


BPE260 = BPE(vocab_size=260)


@pytest.mark.parametrize(
    ("kind", "tokenizer"),
    [
        *((kind, Characters()) for kind in ("shakespeare", "text", "large text", "jsonl", "folder")),
        *((kind, Characters()) for kind in ("arithmetic", "tail", "arithmetic pairs", "pairs")),
        *((kind, BPE260) for kind in ("text", "jsonl", "folder")),
    ],
    ids=lambda value: value if isinstance(value, str) else value.name,
)
def test_ids_that_are_not_those_of_the_source_are_prepared_again(
    kind: str, tokenizer: TokenizerRecipe, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever their metadata say; ids that are those of the source are used."""
    corpus = long_corpus(kind, tmp_path)
    whole = prepare(corpus, tokenizer, cache=tmp_path / "cache")
    files = {path.name: path.read_bytes() for path in whole.folder.iterdir()}
    inode = whole.folder.stat().st_ino
    assert prepare(corpus, tokenizer, cache=tmp_path / "cache").hash == whole.hash
    assert whole.folder.stat().st_ino == inode and not capsys.readouterr().err
    for name in whole.split_names if kind != "tail" else ("train", "test"):
        if kind in ("jsonl", "folder") and name == "val" and tokenizer.name == "bpe":
            continue
        rewrite(whole.folder, name, bytes(len(files[f"{name}.bin"])))
        assert prepare(corpus, tokenizer, cache=tmp_path / "cache").hash == whole.hash, name
        assert {path.name: path.read_bytes() for path in whole.folder.iterdir()} == files
        (line,) = capsys.readouterr().err.splitlines()
        assert f"{name}.bin does not have the ids of data={corpus.name}: preparing the data again" in line


@pytest.mark.parametrize("copied", ["whole", "with its identity"])
def test_data_of_another_seed_are_not_used(copied: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    corpora = [Arithmetic(train=300, validation=20, test=20, seed=seed) for seed in (0, 1)]
    first, second = (prepare(each, Characters(), cache=tmp_path) for each in corpora)
    for path in first.folder.iterdir():
        content = path.read_text() if path.suffix == ".json" else None
        if content and copied == "with its identity":
            digests = [json.loads((each.folder / "train.json").read_text())["identity"] for each in (first, second)]
            (second.folder / path.name).write_text(content.replace(*digests))
        else:
            (second.folder / path.name).write_bytes(path.read_bytes())
    hashes = first.hash, second.hash
    assert tuple(prepare(each, Characters(), cache=tmp_path).hash for each in corpora) == hashes
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_data_without_an_identity_are_prepared_again(corpus: TextFile, tmp_path: Path) -> None:
    whole = prepare(corpus, Characters(), cache=tmp_path / "cache")
    values = json.loads((whole.folder / "train.json").read_text())
    identity = values.pop("identity")
    (whole.folder / "train.json").write_text(json.dumps(values))
    assert prepare(corpus, Characters(), cache=tmp_path / "cache").hash == whole.hash
    assert json.loads((whole.folder / "train.json").read_text())["identity"] == identity


@pytest.mark.parametrize("name", ["train.bin", "val.json", "tokenizer.json"])
def test_a_file_that_others_can_write_is_not_trusted(name: str, corpus: TextFile, tmp_path: Path) -> None:
    whole = prepare(corpus, Characters(), cache=tmp_path / "cache")
    (whole.folder / name).chmod(0o666)
    assert prepare(corpus, Characters(), cache=tmp_path / "cache").hash == whole.hash
    assert (whole.folder / name).stat().st_mode & 0o777 == 0o600


def test_a_umask_for_groups_does_not_matter(corpus: TextFile, tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        folder = prepare(corpus, Characters(), cache=tmp_path / "cache").folder
    finally:
        os.umask(before)
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}


def test_a_failure_leaves_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def save(self: Any, path: Path) -> None:
        path.write_text("half")
        raise KeyboardInterrupt

    monkeypatch.setattr("partwise.tokenizers.ByteTokenizer.save", save)
    with pytest.raises(KeyboardInterrupt):
        prepare(SMALL, Bytes(), cache=tmp_path)
    assert list((tmp_path / "data").iterdir()) == []
    monkeypatch.undo()
    assert prepare(SMALL, Bytes(), cache=tmp_path).split_names == ("train", "val", "test")


def test_a_source_that_changes_during_preparation_is_detected(
    corpus: TextFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    splits = TextFile.splits

    def splits_and_change(self: TextFile) -> Any:
        result = splits(self)
        Path(self.path).write_text("something else entirely, written in between")
        return result

    monkeypatch.setattr(TextFile, "splits", splits_and_change)
    with pytest.raises(ConfigError, match="changed while it was being read"):
        prepare(corpus, Bytes(), cache=tmp_path / "cache")
    assert list((tmp_path / "cache" / "data").iterdir()) == []


def test_a_cache_that_cannot_be_written_is_explained(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ConfigError, match="set PARTWISE_CACHE"):
        prepare(SMALL, Bytes(), cache=tmp_path / "file")


PREPARE_TWICE = """
import sys, time
from pathlib import Path
from partwise.data import Arithmetic, prepare
from partwise.tokenizers import Characters
while time.time() < float(sys.argv[2]):
    pass
print(prepare(Arithmetic(train=20000, validation=5, test=6), Characters(), cache=Path(sys.argv[1])).hash)
"""


@pytest.mark.parametrize("corrupt", [False, True])
def test_concurrent_preparation_succeeds(corrupt: bool, tmp_path: Path) -> None:
    import time

    if corrupt:
        truncate(prepare(Arithmetic(train=20000, validation=5, test=6), Characters(), cache=tmp_path).folder)
    words = [sys.executable, "-W", "error", "-c", PREPARE_TWICE, str(tmp_path), str(time.time() + 2)]
    running = [subprocess.Popen(words, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    hashes = [process.communicate(timeout=60)[0].strip() for process in running]
    assert [process.returncode for process in running] == [0, 0, 0]
    (folder,) = (tmp_path / "data").iterdir()
    assert hashes == [Dataset(folder, SMALL).hash] * 3


def test_arithmetic_round_trips_through_the_disk(tmp_path: Path) -> None:
    dataset = prepare(SMALL, Characters(), cache=tmp_path)
    lines = {name: split_problems(dataset.tokenizer.decode(dataset.split(name))) for name in dataset.split_names}
    assert {name: len(problems) for name, problems in lines.items()} == {"train": 50, "val": 5, "test": 6}
    tail = Arithmetic(train=50, validation=5, test=6, validation_tail=0.1)
    assert [len(prepare(tail, Bytes(), cache=tmp_path).split(name)) for name in ("train", "val")] == [1620, 180]


# batches

IDS = np.arange(1000, dtype=np.uint16)  # every id equals its index


def draw(step: int = 0, ids: np.ndarray = IDS, **options: Any) -> np.ndarray:
    return sample_windows(ids, **({"key": "k", "seed": 0, "step": step, "batch_size": 8, "seq_len": 16} | options))


def test_a_batch_is_a_pure_function_of_its_step() -> None:
    ledger = [draw(step) for step in range(20)]
    for step in (19, 0, 7, 7, 3):  # in any order, repeatedly: there is no state to resume
        assert np.array_equal(draw(step), ledger[step])
    starts = [tuple(rows[:, 0]) for rows in ledger]
    assert len(set(starts)) == 20
    for other in ({"key": "other"}, {"seed": 1}):
        assert not np.array_equal(draw(3, **other), ledger[3])
    # the digits of seed and step do not mix
    assert not np.array_equal(draw(1, seed=12), draw(21, seed=1))
    assert not np.array_equal(draw(2, seed=1), draw(12, seed=0))


def test_a_batch_is_equal_on_every_machine() -> None:
    assert draw(5)[:, 0].tolist() == [434, 120, 91, 820, 577, 23, 570, 312]


@pytest.mark.parametrize("world", [1, 2, 4, 8])
def test_ranks_divide_the_global_batch(world: int) -> None:
    for step in range(5):
        slices = [draw(step, rank=rank, world_size=world) for rank in range(world)]
        assert all(rows.shape == (8 // world, 17) and rows.dtype == np.int64 for rows in slices)
        assert np.array_equal(np.concatenate(slices), draw(step))


@given(st.integers(2, 60), st.data())
def test_sampled_windows_are_slices_of_the_data(count: int, data: st.DataObject) -> None:
    context = data.draw(st.integers(1, count - 1))
    rows = draw(data.draw(st.integers(0, 10**9)), ids=IDS[:count], seq_len=context)
    assert rows.shape == (8, context + 1)
    assert (rows[:, 1:] == rows[:, :-1] + 1).all()  # targets are the inputs shifted by one
    assert rows.min() >= 0 and rows.max() < count


@pytest.mark.parametrize("context", [1, 16, 97, 98, 99])
def test_first_and_last_start_are_sampled(context: int) -> None:
    rows = draw(ids=IDS[:100], seq_len=context, batch_size=4000)
    assert set(rows[:, 0]) == set(range(100 - context))
    assert rows[:, -1].max() == 99


def test_starts_are_uniform() -> None:
    counts = np.bincount(np.concatenate([draw(step, batch_size=64)[:, 0] for step in range(1000)]), minlength=984)
    expected = 64_000 / 984
    chi_square = float(((counts - expected) ** 2 / expected).sum())
    assert abs(chi_square - 983) < 4 * (2 * 983) ** 0.5


def test_sampling_from_a_mapped_file_does_not_change_it(tmp_path: Path) -> None:
    IDS.tofile(tmp_path / "ids.bin")
    mapped = np.memmap(tmp_path / "ids.bin", dtype=np.uint16, mode="r")
    rows = draw(ids=mapped)
    assert type(rows) is np.ndarray and np.array_equal(rows, draw())
    rows += 1
    assert np.array_equal(mapped, IDS)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"seq_len": 1000},
            "train.seq_len=1000 is longer than the data, 1000 tokens: lower train.seq_len to at most 999",
        ),
        ({"batch_size": 6, "world_size": 4}, "batch of 6 cannot be divided among 4 ranks"),
        ({"batch_size": 0}, "batch of 0 cannot be divided"),
        ({"world_size": 2, "rank": 2}, "rank 2 is outside a world of size 2"),
        ({"world_size": 2, "rank": -1}, "rank -1 is outside"),
    ],
)
def test_an_impossible_batch_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        draw(**options)
    assert message in str(caught.value)
    assert draw(seq_len=999).shape == (8, 1000)


@given(st.integers(2, 300), st.integers(1, 310))
def test_evaluation_scores_every_token_but_the_first_once(count: int, context: int) -> None:
    scored: list[int] = []
    for start, length in eval_windows(count, context):
        assert 1 <= length <= context
        inputs, targets = IDS[start : start + length], IDS[start + 1 : start + length + 1]
        assert len(inputs) == len(targets) == length
        scored += targets.tolist()
    assert scored == list(range(1, count))
    assert all(length == context for _, length in list(eval_windows(count, context))[:-1])


@pytest.mark.parametrize(("count", "context"), [(0, 8), (1, 8), (9, 0)])
def test_nothing_to_score_is_refused(count: int, context: int) -> None:
    with pytest.raises(ConfigError, match="nothing to score"):
        eval_windows(count, context)


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        ("train.json", '"dtype"', '"dtypo"', "{path} lacks 'dtype'"),
        ("val.json", ",", "", "{path} is damaged: Expecting ',' delimiter"),
        ("train.json", '"uint8"', '"int8"', "{path}: dtype=int8: "),
        ("tokenizer.json", "{", "", "{folder}: the ids of 'train' come from another tokenizer.json"),
    ],
)
def test_damaged_metadata_are_named_once(
    file: str, old: str, new: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus = long_corpus("text", tmp_path)
    whole = prepare(corpus, Characters(), cache=tmp_path / "cache")
    path = whole.folder / file
    text = path.read_text()
    path.write_text(text.replace(old, new, 1))
    assert path.read_text() != text
    assert prepare(corpus, Characters(), cache=tmp_path / "cache").hash == whole.hash
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(message.format(path=path, folder=whole.folder)) and line.count(str(whole.folder)) == 1
    assert line.endswith(": preparing the data again") and path.read_text() == text

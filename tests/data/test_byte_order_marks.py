"""A byte order mark at the start of a file is no text, wherever text is read; U+FEFF anywhere else is."""

import json
from codecs import BOM_UTF8
from pathlib import Path
from typing import Any

import pytest

import partwise
from partwise.any_code.numbers import NumberSource, read_source
from partwise.comparison.stats.value_files import _read_text
from partwise.config import ConfigError
from partwise.config.yaml import read_yaml
from partwise.data import Corpus, parse_data_option, prepare
from partwise.tokenizers import CharacterTokenizer, TokenizerRecipe, load_tokenizer

TEXT = "the quick brown \ufefffox.\n" * 20
PAIRS = "".join(f"{n}\t{n + 1}\n" for n in range(12))
LINES = "".join(json.dumps({"text": f"text \ufeff{n}"}, ensure_ascii=False) + "\n" for n in range(12))


def corpus_of(data: Path) -> Corpus:
    found = Corpus.resolve(parse_data_option(str(data)))
    assert isinstance(found, Corpus)
    return found


def write_both(folder: Path, name: str, text: str) -> list[Path]:
    """The text in a file without a mark, and in one of the same name with it."""
    paths = [folder / kind / name for kind in ("plain", "marked")]
    for path, mark in zip(paths, (b"", BOM_UTF8), strict=True):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(mark + text.encode())
    return paths


@pytest.mark.parametrize(("name", "text"), [("a.txt", TEXT), ("a.jsonl", LINES), ("a.tsv", PAIRS)])
def test_a_file_is_read_without_its_mark(name: str, text: str, tmp_path: Path) -> None:
    plain, marked = map(corpus_of, write_both(tmp_path, name, text))
    assert marked.alphabet() == plain.alphabet() and ("\ufeff" in plain.alphabet()) == ("\ufeff" in text)
    for split, found in marked.splits().items():
        expected = plain.splits()[split]
        for key in ("sources", "targets") if name == "a.tsv" else ():
            assert getattr(found, key) == getattr(expected, key)
        assert name == "a.tsv" or found[:] == expected[:]
    if name != "a.jsonl":  # whose hash is that of the file, and whose text never had the mark
        assert marked.identity() == plain.identity()


def test_every_file_of_a_folder_is_read_without_its_mark(tmp_path: Path) -> None:
    for number in range(12):
        write_both(tmp_path, f"{number:02}.txt", f"text \ufeff number {number}\n")
    (tmp_path / "marked" / "empty.txt").write_bytes(BOM_UTF8)
    plain, marked = (corpus_of(tmp_path / kind) for kind in ("plain", "marked"))
    assert marked.identity() == plain.identity() and marked.alphabet() == plain.alphabet()
    assert {name: text[:] for name, text in marked.splits().items()} == {
        name: text[:] for name, text in plain.splits().items()
    }


def test_data_without_a_mark_keep_their_hash(tmp_path: Path) -> None:
    """Hashes that batches are drawn by, as they were before marks were left out."""
    (path,) = write_both(tmp_path, "a.txt", TEXT)[:1]
    recipe: Any = TokenizerRecipe.resolve("characters")
    assert corpus_of(path).identity() == {
        "part": "text",
        "sha256": "300e6320c83a9aed4d6a2f01b8812093f1bc89d8db956afee31bef6802943ba2",
    }
    assert prepare(corpus_of(path), recipe).hash == "78bb8453aab00311d6bd8e6f288d9aeaaba8b8c6dd04a909bc76bfc3b7252f71"


def test_a_run_is_evaluated_on_a_marked_file(tmp_path: Path) -> None:
    marked = write_both(tmp_path, "a.txt", "abc abd abe. " * 40)[1]
    tokenizer: Any = TokenizerRecipe.resolve({"part": "bpe", "path": str(tmp_path / "tokenizer.json")})
    CharacterTokenizer("abcde. ").save(tmp_path / "tokenizer.json")
    dataset = prepare(corpus_of(marked), tokenizer)
    assert dataset.tokenizer.decode(dataset.split("train")[:4]) == "abc "


def test_settings_tokenizers_and_values_are_read_without_their_mark(tmp_path: Path) -> None:
    plain, marked = write_both(tmp_path, "a.yaml", "d_model: 16\nffn: swiglu\n")
    assert read_yaml(marked) == read_yaml(plain) == {"d_model": 16, "ffn": "swiglu"}
    tokenizer_json = json.dumps(CharacterTokenizer("ab\ufeff").to_dict(), ensure_ascii=False)
    tokenizer = load_tokenizer(write_both(tmp_path, "tokenizer.json", tokenizer_json)[1])
    assert tokenizer.encode("b\ufeffa").tolist() == [1, 2, 0]
    values = write_both(tmp_path, "a.csv", "seed,arm,value\n0,a,1\n0,b,2\n1,a,1.5\n1,b,2.5\n")
    assert len({_read_text(path, "CSV") for path in values}) == 1
    result = write_both(tmp_path, "result.json", '{"loss": 1.5}')[1]
    assert (
        read_source(NumberSource(source="result.json", value="loss"), result.parent, result.parent, {})[0]
        == '{"loss": 1.5}'
    )
    partwise.verdict(str(values[1]), margin=0.1)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32"])
@pytest.mark.parametrize("name", ["a.txt", "a.jsonl", "a.tsv", "a.yaml", "tokenizer.json", "a.csv", "folder"])
def test_utf16_is_one_clear_line(name: str, encoding: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path = path / "a.txt" if name == "folder" else path
    path.parent.mkdir(exist_ok=True)
    path.write_bytes("seed,arm,value\n".encode(encoding))
    with pytest.raises(ConfigError, match=r"it is UTF-16(: convert it to UTF-8|\)$)") as caught:
        if name == "a.yaml":
            read_yaml(path)
        elif name == "tokenizer.json":
            load_tokenizer(path)
        elif name == "a.csv":
            partwise.verdict(str(path), margin=0.1)
        else:
            corpus_of(path.parent if name == "folder" else path).alphabet()
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)

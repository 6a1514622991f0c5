"""The share of the validation text that the training text contains, against a search in text; where it is told."""

import json
import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from partwise.data import repetition
from partwise.data.repetition import repeated_share, repetition_note, share_of_windows, window_hashes
from partwise.train.config import run_config
from test_records import RUN, command

TOLD = "of the validation text also occurs in the training text"


def random_text(length: int, seed: int = 0) -> str:
    return "".join(random.Random(seed).choices("abcdefgh ", k=length))


def ids_of(text: str) -> np.ndarray:
    return np.frombuffer(text.encode(), dtype=np.uint8)


@given(st.lists(st.integers(0, 3), min_size=40, max_size=60), st.integers(1, 20))
def test_hashes_are_equal_where_windows_are(ids: list[int], tokens: int) -> None:
    hashes = window_hashes(np.array(ids, dtype=np.uint16), tokens)
    windows = [tuple(ids[start : start + tokens]) for start in range(len(ids) - tokens + 1)]
    assert len(hashes) == len(windows) and hashes.dtype == np.uint64
    assert len(set(hashes.tolist())) == len(set(windows))
    assert len(set(zip(hashes.tolist(), windows, strict=True))) == len(set(windows))


@pytest.mark.parametrize("tokens", [3, 13, 50, 64])
@pytest.mark.parametrize("chunk", [64, 1 << 20])
def test_the_share_is_that_of_a_search_in_text(tokens: int, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repetition, "CHUNK", chunk)
    train = random_text(3000)
    validation = random_text(400, 1) + train[777:1200] + random_text(300, 2) + train[-300:]
    windows = [validation[i : i + tokens] for i in range(0, len(validation) - tokens + 1, tokens)]
    expected = np.mean([window in train for window in windows])
    assert 0 < share_of_windows(ids_of(train), ids_of(validation), tokens) == pytest.approx(expected)


def test_short_texts_have_no_windows() -> None:
    assert (
        share_of_windows(ids_of("abc"), ids_of("abcabc"), 50)
        == share_of_windows(ids_of("abc" * 50), ids_of("a"), 50)
        == 0
    )


def test_a_long_text_is_searched_in_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repetition, "CHUNK", 100)
    monkeypatch.setattr(repetition, "MAX_CHUNKS", 2)
    text = random_text(1000)
    assert share_of_windows(ids_of(text), ids_of(text), 50) == pytest.approx(0.2)


@pytest.fixture
def copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A text whose end, a tenth, is half a copy of its start."""
    monkeypatch.chdir(tmp_path)
    text = random_text(9000)
    Path("copied.txt").write_text(text + random_text(500, 3) + text[:500])
    return "copied.txt"


@pytest.mark.parametrize("tokenizer", [["tokenizer=characters"], ["tokenizer=bpe", "tokenizer.vocab_size=300"]])
def test_it_is_cached_and_verified(copied: str, tokenizer: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = run_config("mingpt", *tokenizer, data=copied).prepare()
    share = repeated_share(dataset)
    assert share == pytest.approx(0.5, abs=0.1)
    (path,) = dataset.folder.glob("repetition-*.json")
    with monkeypatch.context() as patch:
        patch.setattr(repetition, "share_of_windows", lambda *arguments: pytest.fail("computed again"))
        assert repeated_share(dataset) == share
    path.write_text(json.dumps({**json.loads(path.read_text()), "share": 0.0}))
    assert repeated_share(dataset) == share  # damaged, and made again
    assert json.loads(path.read_text())["share"] == share


def test_pairs_and_problems_have_none() -> None:
    sizes = ["data.train=60", "data.validation=20", "data.test=5"]
    assert repeated_share(run_config("toy", *sizes, data="arithmetic").prepare()) is None
    assert repetition_note(run_config("original", *sizes, data="arithmetic_pairs").prepare()) == ""
    assert repetition_note(run_config("mingpt", data="shakespeare").prepare()) == ""


def test_train_and_compare_tell_it(copied: str, tmp_path: Path) -> None:
    small = [word for word in RUN[1:] if not word.startswith("data")]
    status, printed, errors = command(tmp_path, ["train", "mingpt", *small, "--data", copied, "--name", "r"])
    assert status == 0 and TOLD in printed + errors
    common = [word for override in small for word in ("--common", override)]
    words = ["compare", "mingpt", "norm=rmsnorm", "--seeds", "2", "--name", "c", "--data", copied, *common]
    status, _, errors = command(tmp_path, words)
    assert status == 0, errors
    assert TOLD in json.loads((tmp_path / "runs/c/results.json").read_text())["scope"]
    assert TOLD in (tmp_path / "runs/c/report.html").read_text()

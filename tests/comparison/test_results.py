"""Results: the file is the value, committed files load, and another version or a damaged file is refused in one line."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from partwise.ablation.run_list import read_results
from partwise.comparison.results import Results
from partwise.config import ConfigError
from partwise.records import DamagedFileError
from partwise.studies.study import StudyResults

ROOT = Path(__file__).parents[2]
COMMITTED = sorted((ROOT / "src/partwise/studies/library").glob("*/results.json"))


def has_all(loaded: Any, stored: Any) -> bool:
    """Whether every stored value was loaded; keys of today that the file lacks have neutral values."""
    if isinstance(stored, dict):
        return isinstance(loaded, dict) and all(
            key in loaded and has_all(loaded[key], value) for key, value in stored.items()
        )
    if isinstance(stored, list):
        return len(loaded) == len(stored) and all(map(has_all, loaded, stored))
    return type(loaded) is type(stored) and bool(loaded == stored)


@pytest.mark.parametrize("path", COMMITTED, ids=lambda path: path.parent.name)
def test_committed_results_lose_nothing(path: Path, tmp_path: Path) -> None:
    """tests/studies/test_judging.py judges them again."""
    study = StudyResults.from_json(path)
    stored = json.loads(path.read_text(encoding="utf-8"))
    del stored["sha256"]
    assert has_all(study.to_dict(), stored)
    for results in study.comparisons.values():
        results.to_json(tmp_path / "results.json")
        assert Results.from_json(tmp_path / "results.json") == results
        assert all(effect.margin == results.protocol.margin for effect in results.effects)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 2}, r"has the format 2, and this version reads 3: run the comparison again"),
        ({"format": 4}, r"has the format 4"),
        ({"format": None}, r"is damaged \(format: "),
        ({"surprise": 1}, r"is damaged \(surprise: extra inputs"),
        ({"seeds": ["one"]}, r"is damaged \(seeds\.0: "),
        ({"claims": [{"effect": {"arm": "a"}}]}, r"is damaged \(claims\.0\.effect\.against: "),
        ({"protocol": None}, r"is damaged \(protocol: "),
    ],
)
def test_another_version_or_a_damaged_file_is_refused(change: dict, message: str, tmp_path: Path) -> None:
    (results, *_) = StudyResults.from_json(COMMITTED[0]).comparisons.values()
    path = tmp_path / "results.json"
    path.write_text(json.dumps(results.to_dict() | change))
    with pytest.raises(ConfigError, match=message) as caught:
        Results.from_json(path)
    assert "\n" not in str(caught.value) and str(path) in str(caught.value)


def written_results(path: Path) -> str:
    """Write results as a comparison does; returns the text of the file."""
    (results, *_) = StudyResults.from_json(COMMITTED[0]).comparisons.values()
    results.to_json(path)
    return path.read_text()


@pytest.mark.parametrize(
    ("pattern", "new"),
    [
        (r'"verdict": "\w+"', '"verdict": "equivalent"'),
        (r'"value": \d\.\d', '"value": 9.9'),
        (r'"question": "', '"question": "Really: '),
        (r'"sha256": "\w', '"sha256": "'),
    ],
)
def test_changed_results_are_refused(pattern: str, new: str, tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    text = written_results(path)
    assert Results.from_json(path)
    path.write_text(re.sub(pattern, new, text, count=1))
    assert path.read_text() != text
    with pytest.raises(
        ConfigError, match=r"results\.json was changed after it was written: run the same compare command"
    ):
        Results.from_json(path)
    with pytest.raises(DamagedFileError):
        read_results(path)


def test_results_without_a_hash_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    values = json.loads(written_results(path))
    del values["sha256"]
    path.write_text(json.dumps(values))
    with pytest.raises(ConfigError, match=r"results\.json lacks its hash: run the same compare command again"):
        Results.from_json(path)


def test_changed_results_of_a_study_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "some" / "results.json"
    path.parent.mkdir()
    text = COMMITTED[0].read_text(encoding="utf-8")
    path.write_text(re.sub(r'"value": \d\.\d', '"value": 9.9', text, count=1))
    assert path.read_text() != text
    again = "run `partwise study run some` again"
    with pytest.raises(ConfigError, match=rf"results\.json was changed after it was written: {again}"):
        StudyResults.from_json(path)
    path.write_text(re.sub(r',\s*"sha256": "\w+"', "", text))
    with pytest.raises(ConfigError, match=rf"results\.json lacks its hash: {again}"):
        StudyResults.from_json(path)


def test_an_effect_has_a_difference_per_seed(tmp_path: Path) -> None:
    (results, *_) = StudyResults.from_json(COMMITTED[0]).comparisons.values()
    values = results.to_dict()
    values["claims"][0]["effect"]["differences"].pop()
    (tmp_path / "results.json").write_text(json.dumps(values))
    with pytest.raises(ConfigError, match=r"is damaged \(claims\.0\.effect: .* differences of .* seeds\)"):
        Results.from_json(tmp_path / "results.json")


@pytest.mark.parametrize("text", ["", "{", "[]", "3", '{"claim": "x"}'])
def test_a_file_of_something_else_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    path.write_text(text)
    for kind in (Results, StudyResults):
        with pytest.raises(ConfigError, match="damaged"):
            kind.from_json(path)
    with pytest.raises(ConfigError, match="cannot be read"):
        Results.from_json(tmp_path / "missing.json")

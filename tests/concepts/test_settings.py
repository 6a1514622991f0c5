"""Every setting has a docstring, which the page of settings and `partwise parts WORD` show."""

import json
from pathlib import Path

import pytest

from concepts_page import settings_row
from partwise.concepts.answer import answer
from partwise.concepts.lookup import find
from partwise.concepts.settings import Setting, all_settings, docstrings
from partwise.config import REGISTRY
from partwise.train.config import TrainConfig, default_settings

ROOT = Path(__file__).parents[2]


def test_every_setting_has_a_docstring_and_is_found_by_its_path() -> None:
    ours = [each for each in all_settings() if each.file.startswith("src/partwise/")]
    assert len(ours) > 200
    assert [each.path for each in ours if not each.about.endswith((".", ")"))] == []
    for each in ours:
        [found] = find(each.path)
        assert each.path in REGISTRY or each.about in answer(found, results=False).why, each


def test_the_settings_are_those_of_a_run() -> None:
    """Each key of a configuration, and each option that the shell completes."""
    paths = {each.path for each in all_settings()}
    assert {key for key in default_settings() if key != "train"} <= paths
    assert {f"train.{name}" for name in TrainConfig.model_fields} <= paths
    completed = json.loads((ROOT / "src/partwise/cli/completions.json").read_text(encoding="utf-8"))
    assert {f"{family}.{option}" for family, options in completed["options"].items() for option in options} <= paths
    page = (ROOT / "docs" / "settings.md").read_text(encoding="utf-8")
    assert [path for path in sorted(paths) if f"| `{path}` |" not in page] == []


def test_a_setting_without_a_docstring_stops_the_generator() -> None:
    with pytest.raises(ValueError, match=r"train\.new of partwise/train/config\.py has no docstring"):
        settings_row(Setting("train.new", "integer > 0", "1", "", "partwise/train/config.py"))


class Documented:
    first: int = 1
    """One line
    on two."""
    second: int = 2
    third: int = 3
    """The last."""


def test_a_docstring_belongs_to_the_field_above_it() -> None:
    assert docstrings(Documented) == {"first": "One line on two.", "third": "The last."}
    assert docstrings(type("Made", (), {"first": 1})) == {}

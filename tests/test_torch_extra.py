"""Without torch, the instrument works whole, and all else says in one line what to install."""

import os
import re
import tomllib
from pathlib import Path

import pytest

import partwise
import wheel_smoke
from partwise.torch_extra import PACKAGES, explained

ABSENT = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "tokenizers", "safetensors"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
"""
"""In `sitecustomize.py`, it hides the packages of the extra from every process that starts, workers included."""


@pytest.mark.promise
def test_the_instrument_works_without_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sitecustomize.py").write_text(ABSENT)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{Path(partwise.__file__).parent.parent}")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(AssertionError, match="No module named 'torch'"):  # torch is hidden
        wheel_smoke.run("-c", "import torch")
    wheel_smoke.check_instrument()


def test_the_extra_is_what_is_explained() -> None:
    project = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())["project"]
    extra = [re.match(r"[\w-]+", requirement)[0] for requirement in project["optional-dependencies"]["torch"]]  # type: ignore[index]
    assert extra == list(PACKAGES)
    assert not any(requirement.startswith(PACKAGES) for requirement in project["dependencies"])


def test_other_missing_modules_are_not_explained() -> None:
    error = ModuleNotFoundError("No module named 'mine'", name="mine")
    assert explained(error, "this command") is error
    missing = explained(ModuleNotFoundError("No module named 'tokenizers'", name="tokenizers"), "this command")
    assert str(missing) == "this command needs tokenizers: `pip install 'partwise[torch]'`"

"""Shell completion of presets, parts and options, as zsh and fish (whole words) and bash (split at `=`) ask for it."""

import os
import subprocess
import sys

import pytest

from partwise.cli import main
from partwise.config import REGISTRY
from partwise.presets import PRESETS


@pytest.fixture
def complete(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):  # type: ignore[no-untyped-def]
    """The completions of the last word, in bash."""

    def run(*words: str) -> list[str]:
        monkeypatch.setattr("sys.argv", ["partwise"])
        monkeypatch.setenv("_PARTWISE_COMPLETE", "complete_bash")
        monkeypatch.setenv("COMP_WORDS", " ".join(("partwise", *words)))
        monkeypatch.setenv("COMP_CWORD", str(len(words)))
        with pytest.raises(SystemExit) as ended:
            main()
        assert not ended.value.code
        return capsys.readouterr().out.split()

    return run


@pytest.mark.parametrize("command", ["compare", "train", "show", "plan"])
def test_presets_and_parts(complete, command: str) -> None:  # type: ignore[no-untyped-def]
    assert complete(command, "ming") == ["mingpt"]
    assert set(complete(command, "")) == set(PRESETS)
    assert complete(command, "mingpt", "norm=r") == ["norm=rmsnorm"]
    assert set(complete(command, "mingpt", "ffn=")) == {f"ffn={name}" for name in REGISTRY["ffn"]}
    assert complete(command, "mingpt", "norm=rmsnorm", "ffn=swig") == ["ffn=swiglu"]


def test_keys_and_options(complete) -> None:  # type: ignore[no-untyped-def]
    assert complete("compare", "mingpt", "n_la") == ["n_layers="]
    assert complete("compare", "mingpt", "ff") == sorted(f"ffn={name}" for name in REGISTRY["ffn"])
    assert complete("compare", "mingpt", "tra") == ["train."]
    assert complete("compare", "mingpt", "train.warm") == [] and complete("show", "mingpt", "train.lr") == ["train.lr="]
    assert complete("compare", "mingpt", "ffn.expa") == ["ffn.expansion="]
    assert {f"{family}=" for family in REGISTRY} <= set(complete("show", "mingpt", "norm=rmsnorm", ""))
    assert complete("compare", "mingpt", "nonsense=") == complete("compare", "mingpt", "nonsense.x") == []


def test_bash_splits_words_at_the_equals_sign(complete) -> None:  # type: ignore[no-untyped-def]
    assert complete("compare", "mingpt", "norm", "=", "r") == ["rmsnorm"]
    assert set(complete("compare", "mingpt", "norm", "=")) == set(REGISTRY["norm"])


def test_completing_imports_neither_torch_nor_the_registry() -> None:
    """Some versions of typer import pydantic themselves."""
    code = """
import atexit, sys
atexit.register(lambda: print("heavy:", sorted({"torch", "numpy", "yaml", "partwise.config"} & set(sys.modules))))
from partwise.cli import main
main()
"""
    words = {"_PARTWISE_COMPLETE": "complete_bash", "COMP_WORDS": "partwise train mingpt ffn=sw", "COMP_CWORD": "3"}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=os.environ | words, capture_output=True, text=True, timeout=60)
    assert done.stdout.split("heavy:") == ["ffn=swiglu\nffn=swish\n", " []\n"], done.stderr

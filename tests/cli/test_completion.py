"""Shell completion of presets, parts and options, as zsh and fish (whole words) and bash (split at `=`) ask for it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import partwise.cli.completion
from partwise.cli import main
from partwise.config import REGISTRY
from partwise.presets import PRESETS
from partwise.train.config import FROM, RunConfig, TrainConfig

LIST = Path(partwise.cli.completion.__file__).with_name("completions.json")


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


def registered_words() -> str:
    settings = {*RunConfig.model_fields, *RunConfig.model_fields["model"].annotation.model_fields}  # type: ignore[union-attr]
    recipes = {family: [*parts.values()] for family, parts in REGISTRY.items()} | {"train": [TrainConfig]}
    words = {
        "presets": sorted(PRESETS),
        "settings": sorted(settings - {"model", "train", "initial_weights"} | {FROM}),
        "parts": {family: sorted(REGISTRY[family]) for family in sorted(REGISTRY)},
        "options": {
            name: sorted({key for kind in recipes[name] for key in kind.model_fields}) for name in sorted(recipes)
        },
    }
    return json.dumps(words, indent=1) + "\n"


def test_the_list_in_the_package_is_that_of_the_registry() -> None:
    """`python tests/cli/test_completion.py` writes it again."""
    assert LIST.read_text(encoding="utf-8") == registered_words()


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


if __name__ == "__main__":
    LIST.write_text(registered_words(), encoding="utf-8")

"""Commands use the data on which `train` trains a preset, and the first lines of their output name them."""

import sys
from pathlib import Path

import pytest

from partwise.cli import main
from partwise.inspection.subject import find_subject
from partwise.train.config import run_config


def lines(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str) -> list[str]:
    """What a command prints on standard output."""
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(sys, "argv", ["partwise", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    printed = capsys.readouterr()
    assert not ended.value.code, printed.err
    return printed.out.splitlines()


@pytest.mark.parametrize("name", ["mingpt", "gpt2", "calculator", "original"])
def test_a_preset_is_inspected_as_it_is_trained(name: str) -> None:
    assert find_subject(name, []).config == run_config(name)
    assert find_subject(name, ["n_layers=1"]).config == run_config(name, "n_layers=1")


def test_the_first_lines_name_the_data(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    small = ["d_model=16", "n_layers=1", "attention.n_heads=2", "context_length=16"]
    assert lines(monkeypatch, capsys, "show", "mingpt")[0].startswith("mingpt on shakespeare: ")
    assert lines(monkeypatch, capsys, "show", "original")[0].startswith("original on arithmetic_pairs: ")
    shown = lines(monkeypatch, capsys, "inspect", "mingpt", "attention", "--text", "ROMEO:", *small)
    assert shown[0].startswith("mingpt on shakespeare: attention statistics over ")
    shown = lines(monkeypatch, capsys, "inspect", "mingpt", "cost", "--data", "text.txt", *small)
    assert shown[0].startswith("mingpt on text.txt: ")
    training = ["--data", "text.txt", "train.steps=2", "train.threads=1", "--name", "run"]
    shown = lines(monkeypatch, capsys, "train", "mingpt", *small, *training)
    assert shown[0].startswith("run: ") and shown[0].endswith(" training tokens of text.txt")
    assert lines(monkeypatch, capsys, "inspect", "run", "cost")[0].startswith("run on text.txt: ")
    common = [word for each in (*small, "train.steps=2") for word in ("--common", each)]
    shown = lines(monkeypatch, capsys, "compare", "mingpt", "ffn=swiglu", "--dry-run", *common)
    assert "2 steps each on shakespeare" in shown[1]
    shown = lines(monkeypatch, capsys, "plan", "mingpt", "ffn=swiglu", *common)
    assert shown[1].startswith("2 steps each on shakespeare; times are extrapolated")


def test_pages_of_other_overrides_and_options_have_other_names(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "other").mkdir()
    (here / "other" / "text.txt").write_text((here / "text.txt").read_text())
    variants = [
        [],
        ["ffn=swiglu"],
        ["ffn=geglu"],
        ["--text", "the quick"],
        ["--text", "the-quick"],
        ["--seq-len", "8"],
        ["--data", "text.txt"],
        ["--data", "other/text.txt"],
    ]
    pages = set()
    for words in variants:
        *_, last = lines(monkeypatch, capsys, "inspect", "mingpt", "cost", "d_model=16", "n_layers=1", *words)
        pages.add(last.removeprefix("page: "))
    assert len(pages) == len(variants) and all((here / page).exists() for page in pages)
    assert lines(monkeypatch, capsys, "inspect", "mingpt", "cost")[-1] == "page: inspect-cost-mingpt.html"


@pytest.mark.parametrize(
    "words", [["mingpt", "tokenizer=bytes"], ["mingpt", "data=text", "data.path=text.txt"], ["original"]]
)
def test_show_counts_the_parameters_of_the_run_that_train_starts(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    """With the vocabulary of the data and the tokenizer, wherever they are named."""
    model = run_config(*words).model
    counts = f"{model.parameters():,} parameters at vocab_size={model.vocab_size}; "
    assert any(line.startswith(counts) for line in lines(monkeypatch, capsys, "show", *words))

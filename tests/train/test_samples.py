"""Samples: what a model writes, by the kind of its data, and the same on every call."""

from pathlib import Path

import pytest

from partwise.data import Dataset
from partwise.model import Transformer
from partwise.train.config import RunConfig, run_config
from partwise.train.samples import draw_sample, sample_lines

TINY = ["d_model=16", "n_layers=1", "attention.n_heads=2", "data.train=100", "data.validation=20", "data.test=20"]


def built(config: RunConfig) -> tuple[Transformer, Dataset]:
    """A model with initial weights, and its data."""
    return Transformer(config.model, seed=0).eval(), config.prepare()


def test_text_continues_a_prompt(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("the quick brown fox.\n" * 100)
    model, dataset = built(run_config("mingpt", *TINY[:3], "context_length=16", data=str(tmp_path / "text.txt")))
    sample = draw_sample(model, dataset)
    assert sample.prompt == dataset.tokenizer.decode(dataset.split("val")[:32]) and len(sample.text) == 300
    assert not sample.rows and sample == draw_sample(model, dataset)
    lines = sample_lines(model, dataset)
    assert lines == sample_lines(model, dataset) and 1 <= len(lines) <= 2
    assert all(line.strip() == line and 0 < len(line) <= 72 for line in lines)


@pytest.mark.parametrize("cut", [0, 5, 31])
def test_problems_of_a_tuning_split_begin_with_the_first_whole_one(cut: int) -> None:
    """It has no test split, and its validation split begins anywhere in the training text."""
    config = run_config("toy", *TINY, "train.tuning_split=true", f"data.train={100 + cut}", data="arithmetic")
    model, dataset = built(config)
    sample = draw_sample(model, dataset)
    assert sample.title == "validation problems" and len(sample.rows) == 5
    text = dataset.tokenizer.decode(dataset.split("val"))
    assert all(f"{given}{truth}" in text and given.startswith("$(") for given, _, truth in sample.rows)


@pytest.mark.parametrize(
    ("preset", "data", "more", "arrow"),
    [
        ("toy", "arithmetic", [], ""),
        ("original", "arithmetic_pairs", ["encoder_layers=1", "context_length=32"], " -> "),
    ],
)
def test_answers_come_with_the_truth(preset: str, data: str, more: list[str], arrow: str) -> None:
    model, dataset = built(run_config(preset, *TINY, *more, data=data))
    sample = draw_sample(model, dataset)
    assert len(sample.rows) == 5 and len(sample.columns) == 3 and not sample.text
    first = [f"{given}{arrow}{answer} ({truth})" for given, answer, truth in sample.rows[:2]]
    assert sample_lines(model, dataset) == first

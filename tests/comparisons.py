"""Helpers for comparison tests: tiny runs and a temporary working folder."""

from pathlib import Path

import pytest

TINY = [
    "d_model=16",
    "n_layers=2",
    "attention.n_heads=2",
    "context_length=16",
    "train.batch_size=4",
    "train.steps=12",
    "train.eval_every=4",
    "train.threads=1",
    "train.precision=float32",
]


ARITHMETIC = [*TINY, "data.train=300", "data.validation=20", "data.test=20"]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text("the quick brown fox jumps over the lazy dog. " * 60)
    return tmp_path

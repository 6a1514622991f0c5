"""Measures of trained models, computed here in another way."""

from pathlib import Path

import pytest
import torch
from torch.nn import functional as F
from typer.testing import CliRunner

import partwise
from lazy_imports import lazy_module
from partwise.cli import app

measures = lazy_module("partwise.lessons.measures")
SMALL = ["d_model=16", "n_layers=1", "attention.n_heads=2", "context_length=16", "train.steps=3", "train.batch_size=2"]


def trained(positions: str) -> Path:
    words = [*SMALL, f"positions={positions}", "train.validation_estimator=random", "--name", positions]
    result = CliRunner().invoke(app, ["train", "mingpt", "--data", "shakespeare", *words])
    assert result.exit_code == 0, result.output
    return Path("runs", positions)


def test_longer_compares_the_same_characters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows of 16 and of 64 end at the same places, and their last 8 characters count; NTK slows the pairs of RoPE."""
    monkeypatch.setattr("partwise.lessons.measures.TARGETS", 64)
    monkeypatch.chdir(tmp_path)
    folder = trained("rope")
    subject = measures.open_run(folder)
    ids = torch.from_numpy(subject.dataset.split("val").astype("int64"))
    ends = torch.arange(64, len(ids), 8)
    ends = ends[torch.linspace(0, len(ends) - 1, 8, dtype=torch.float64).round().long()]
    for scaling, words in (("", ["positions=rope"]), (" ntk", ["positions=rope_ntk", "positions.factor=4"])):
        changed = [*SMALL[:3], *words, "context_length=64"]
        longer = partwise.Transformer(partwise.preset("mingpt", *changed, vocab_size=subject.config.model.vocab_size))
        longer.load_state_dict(subject.model.state_dict(), strict=False)
        loss = {}
        for model, length in ((subject.model, 16), (longer, 64)):
            rows = torch.stack([ids[end - length : end + 1] for end in ends])
            with torch.no_grad():
                logits = model.eval()(rows[:, :-1])[:, -8:]
            loss[length] = F.cross_entropy(logits.flatten(0, 1).double(), rows[:, -8:].flatten()).item()
        assert measures.longer(folder, f"64{scaling}") == pytest.approx(loss[64] - loss[16], abs=2e-6)
    assert measures.longer(trained("none"), "64 ntk") is None

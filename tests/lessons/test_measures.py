"""What lessons measure of a model, on models for which the value is known or computed here in another way."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F
from typer.testing import CliRunner

import partwise
from partwise.cli import app
from partwise.inspection.subject import Subject, find_subject
from partwise.lessons import measures
from partwise.train.config import RunConfig

SMALL = ["d_model=32", "n_layers=2", "attention.n_heads=4", "context_length=16", "ffn.bias=true"]


def stand_in(monkeypatch: pytest.MonkeyPatch, *words: str) -> Subject:
    """A preset in place of a trained run."""
    subject = find_subject("mingpt", [*SMALL, *words], data="shakespeare")
    monkeypatch.setattr(measures, "open_run", lambda folder: subject)
    return subject


def test_dead_share(monkeypatch: pytest.MonkeyPatch) -> None:
    """A quarter of the units start dead; then those of one of two layers are all killed."""
    subject = stand_in(monkeypatch, "init=dead_units", "init.share=0.25")
    with torch.no_grad():
        subject.model.blocks[1].ffn.up.bias.fill_(-1e3)
    assert measures.dead_share(Path(), "start") == 0.25
    assert measures.dead_share(Path(), "end") == (0.25 + 1) / 2


def test_weight_on_the_tokens_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Query t of a head without queries weighs t + 1 keys alike; of several heads, the best is measured."""
    subject = stand_in(monkeypatch)
    with torch.no_grad():
        for block in subject.model.blocks:
            block.attention.qkv.weight[:32].zero_()  # of queries
    for back in (1, 3):
        even = sum(1 / (t + 1) for t in range(back, 16)) / (16 - back)
        assert measures.weight_back(Path(), f"end {back}") == pytest.approx(even, rel=1e-6)
        assert measures.weight_back(Path(), f"start {back}") != pytest.approx(even, rel=1e-3)
    maps = torch.zeros(2, 3, 4, 4)
    maps[:, 1] = torch.diag(torch.tensor([0.5, 0.25, 0.75]), -1)
    maps[:, 2] = torch.diag(torch.tensor([0.5, 0.25]), -2)
    assert measures.largest_weight_back(maps, 1) == 0.5 and measures.largest_weight_back(maps, 2) == 0.375


RUN = ["d_model=16", "n_layers=1", "attention.n_heads=2", "context_length=16", "train.steps=3", "train.batch_size=2"]


def trained(positions: str) -> Path:
    words = [*RUN, f"positions={positions}", "train.validation_estimator=random", "--name", positions]
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
        changed = [*RUN[:3], *words, "context_length=64"]
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


@pytest.fixture
def opened(tiny: Callable[..., RunConfig], monkeypatch: pytest.MonkeyPatch) -> RunConfig:
    """The config of a small model, which stands for every run."""
    config = tiny("attention.n_heads=4", "attention.n_kv_heads=2")
    model = Subject("tiny", config, Path())
    monkeypatch.setattr("partwise.lessons.measures.open_run", lambda folder: model)
    return config


def test_the_size_of_a_cache(opened: RunConfig) -> None:
    """Keys and values of two layers, for 2 heads of 4 numbers and 10 tokens, each number of 4 bytes."""
    assert opened.model.d_model == 16
    assert measures.cache_size(Path(), "10") == 2 * 2 * 2 * 4 * 10 * 4 / 1024


def test_the_digits_of_cached_logits(opened: RunConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    """All that float32 has, and two where one logit is off by a hundredth of the largest."""
    assert 5.5 < measures.cached_digits(Path(), "8") < 8
    computed = measures.cached_logits

    def wrong(model, tokens, cuts):
        logits = computed(model, tokens, cuts)
        logits[1, 2, 3] += 0.01 * logits.abs().max()
        return logits

    monkeypatch.setattr("partwise.lessons.measures.cached_logits", wrong)
    assert measures.cached_digits(Path(), "8") == pytest.approx(2.0, abs=1e-3)

"""`inspect RUN length`: losses beyond the length of training."""

from pathlib import Path

import pytest

from partwise.config import ConfigError
from partwise.evaluate.lengths import loss_by_length
from partwise.inspection import length
from partwise.inspection.subject import find_subject

SMALL = ["data=shakespeare", "d_model=16", "n_layers=1", "attention.n_heads=2", "context_length=16", "init=normal"]


def test_rows_are_losses_of_the_same_targets_and_rope_is_scaled() -> None:
    subject = find_subject("mingpt", [*SMALL, "positions=rope"])
    page = length.inspect(subject)
    assert page.columns == ["positions", "16", "32", "64"]
    assert [row[0] for row in page.rows] == ["rope", "rope_linear", "rope_ntk", "rope_yarn"]
    assert len({row[1] for row in page.rows}) == 1
    expected = loss_by_length(subject.model, subject.dataset.split("val"), [16, 32, 64], scaling="yarn")
    assert list(page.rows[-1][1:]) == [f"{expected[n]:.4f}" for n in (16, 32, 64)]
    assert "position in the window" in page.figures[0].svg and "rope_yarn" in page.figures[0].svg


def test_longest_window() -> None:
    page = length.inspect(find_subject("mingpt", [*SMALL, "positions=alibi"], seq_len=40))
    assert page.columns == ["positions", "16", "32", "40"] and len(page.rows) == 1
    assert length.window_lengths(16, 8) == [8] and length.window_lengths(16, 16) == [16]


def test_what_has_no_longer_windows_is_refused(here: Path) -> None:
    with pytest.raises(ConfigError, match="positions=learned has no parameters beyond context_length=16, so 32 tokens"):
        length.inspect(find_subject("mingpt", [*SMALL, "positions=learned"]))
    with pytest.raises(ConfigError, match="running text"):
        length.inspect(find_subject("original", ["data=arithmetic_pairs"]))

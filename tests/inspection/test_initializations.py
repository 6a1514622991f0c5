"""What training has changed: the stream's variance and dead units, against initial weights."""

from pathlib import Path
from typing import Any

import pytest
import torch

from partwise.inspection.activations import record_activations
from partwise.inspection.initializations import dead_figure, initial_model, stream_figure, stream_variances
from partwise.inspection.subject import Subject


def test_variances_are_those_of_the_recorded_streams(tiny: Any, tmp_path: Path) -> None:
    subject = Subject("tiny", tiny("n_layers=2"), tmp_path)
    tokens, source = subject.tensors(subject.sample(256))
    found = stream_variances(subject.model, tokens, source)
    recorded = record_activations(subject.model, tokens, source).statistics
    expected = [statistics.variance for site, statistics in recorded.items() if site.site == "stream"]
    assert len(found) == 3 and found[1:] == pytest.approx(expected, rel=1e-6)
    with torch.no_grad():
        embedded = subject.model.embed(tokens)  # type: ignore[operator]
    assert 0 < found[0] < 10 * embedded.var().item() + 10


def test_each_initialization_has_a_line(tiny: Any, tmp_path: Path) -> None:
    subject = Subject("tiny", tiny("init=normal", "init.std=0.1"), tmp_path)
    tokens, source = subject.tensors(subject.sample(256))
    rows = stream_figure(subject, tokens, source).drawing.rows
    lines = {str(row[0]): [float(each[2] or 0) for each in rows if each[0] == row[0]] for row in rows}
    assert [*lines] == ["init=normal", "init=torch", "init=orthogonal"]
    assert lines["init=normal"] == pytest.approx(stream_variances(subject.model, tokens, source))
    assert lines["init=torch"] == pytest.approx(stream_variances(initial_model(subject, "torch"), tokens, source))
    assert lines["init=normal"][0] != pytest.approx(lines["init=torch"][0])


def test_dead_units_are_counted_before_and_after(tiny: Any, tmp_path: Path) -> None:
    config = tiny("ffn=relu", "ffn.bias=true", "n_layers=2")
    subject = Subject("tiny", config, tmp_path)
    tokens, source = subject.tensors(subject.sample(256))
    before = record_activations(subject.model, tokens, source).statistics
    with torch.no_grad():
        subject.model.blocks[1].ffn.up.bias[:5] = -1e4  # type: ignore[union-attr, index]
    after = record_activations(subject.model, tokens, source).statistics
    (figure,) = dead_figure(after, before)
    units = next(iter(before[site] for site in before if site.site.endswith("hidden"))).nonzero.numel()
    trained = [row for row in figure.drawing.rows if row[0] == "trained"]
    initial = [row for row in figure.drawing.rows if row[0] == "initial weights"]
    assert len(trained) == len(initial) == 2
    assert float(trained[1][1] or 0) - float(initial[1][1] or 0) == pytest.approx(500 / units)
    (alone,) = dead_figure(after, None)
    assert {row[0] for row in alone.drawing.rows} == {"this model"}


def test_units_that_are_never_zero_have_no_figure(tiny: Any, tmp_path: Path) -> None:
    subject = Subject("tiny", tiny("ffn=swiglu"), tmp_path)
    tokens, source = subject.tensors(subject.sample(256))
    assert dead_figure(record_activations(subject.model, tokens, source).statistics, None) == []

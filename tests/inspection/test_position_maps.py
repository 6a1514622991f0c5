"""What a model has made of positions: scores by distance, and the figures of positions."""

import math

import pytest
import torch

import partwise
from partwise.inspection.attention import record_calls
from partwise.inspection.position_maps import (
    describe_turn,
    distance_bins,
    scores_by_distance,
    turns_figure,
    vectors_figure,
)
from recipes import logits_of

SMALL = ("d_model=16", "n_layers=1", "attention.n_heads=4", "context_length=12", "vocab_size=11")


def tokens() -> torch.Tensor:
    return torch.randint(11, (3, 12), generator=torch.Generator().manual_seed(0))


def only_call(*words: str, zero: bool = False) -> list[object]:
    model = partwise.Transformer(partwise.preset("mingpt", *SMALL, *words)).eval()
    if zero:
        for parameter in model.parameters():
            parameter.data.zero_()
    logits_of(model, tokens())
    (calls,) = record_calls(model, tokens()).values()
    return calls


def test_scores_by_distance_equal_a_loop_over_pairs() -> None:
    calls = only_call()
    (call,) = calls
    table = scores_by_distance(calls, least=3)
    assert table.shape == (4, 10)
    for head in range(4):
        means = []
        for distance in range(10):
            scores = [
                float(call.q[row, head, query].double() @ call.k[row, head, query - distance].double())
                * call.core.scale
                for row in range(3)
                for query in range(distance, 12)
            ]
            means.append(sum(scores) / len(scores))
        expected = torch.tensor(means, dtype=torch.float64) - sum(means) / 10
        assert (table[head] - expected).abs().max() <= 1e-6


def test_without_content_scores_are_the_bias_and_a_window_ends_them() -> None:
    """ALiBi falls by its slope with each token."""
    table = scores_by_distance(only_call("positions=alibi", zero=True), least=1)
    slopes = torch.tensor([2.0 ** (-8 * (head + 1) / 4) for head in range(4)], dtype=torch.float64)
    assert (table.diff(dim=1) + slopes[:, None]).abs().max() <= 1e-6
    windowed = scores_by_distance(only_call("attention.window=4"), least=1)
    assert windowed[:, :4].isfinite().all() and windowed[:, 4:].isnan().all()


def test_bins_cover_all_distances_once() -> None:
    bins = distance_bins(300)
    assert [distance for each in bins for distance in each] == list(range(300))
    assert all(len(each) == 1 for each in bins[:16]) and max(map(len, bins)) <= 300 // 8


def test_alike_positions_have_a_cosine_of_one() -> None:
    vectors = torch.tensor([[1.0, 0.0], [2.0, 0.0], [0.0, 3.0], [-1.0, 0.0]])
    cosines = [row[-1] for row in vectors_figure(vectors).drawing.rows[:16]]
    assert cosines == pytest.approx([1, 1, 0, -1, 1, 1, 0, -1, 0, 0, 1, 0, -1, -1, 0, 1])


def test_rope_turns_by_its_frequency() -> None:
    layer = partwise.Transformer(partwise.preset("llama", *SMALL)).positions
    figure = turns_figure(layer)
    ends = [
        row[2:4] for row in figure.drawing.rows if row[0] == "pair 0: 6.3 tokens per turn" and row[1] == "position 3"
    ]
    assert ends[-1] == pytest.approx([math.cos(3), math.sin(3)])
    assert [describe_turn(each) for each in (1.0, 0.001, 0.0)] == [
        "6.3 tokens per turn",
        "6,283 tokens per turn",
        "never turns",
    ]

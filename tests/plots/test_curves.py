"""Curves: thinned and smoothed without a bias or a jump, and drawn with the references near them."""

import math
import random

import pytest

from partwise.plots.curves import Line, draw_losses, draw_views, join_labels, numbers_of, smooth, thin


def test_missing_values_are_not_drawn() -> None:
    assert draw_losses([Line("#000", []), Line("#000", [[1, None], [2, math.nan]], smoothed=True)], [], "k") == ""
    assert "<svg" in draw_losses([Line("#000", [[1, 2.0]], smoothed=True)], [("unigram", 3.3)], "k")


def test_a_reference_is_drawn_if_it_is_near() -> None:
    line = Line("#000", [[step, 2.0 - step / 1000] for step in range(0, 1001, 10)])
    svg = draw_losses([line], [("near", 0.9), ("far", -9.0), ("over", 3.3)], "k")
    assert "near</text>" in svg and "far" not in svg and "over" not in svg


@pytest.mark.parametrize("length", [1, 199, 200, 201, 1250])
def test_thinned_curves_keep_their_mean_and_their_end(length: int) -> None:
    points = [(float(step), math.sin(step)) for step in range(length)]
    thinned = thin(points, 200)
    assert len(thinned) <= 200 and thinned[-1][0] == length - 1
    size = math.ceil(length / 200)
    weights = [size] * len(thinned)
    weights[0] = length - size * (len(thinned) - 1)  # only the first stands for fewer
    total = sum(weight * value for weight, (_, value) in zip(weights, thinned, strict=True))
    assert total == pytest.approx(sum(value for _, value in points), abs=1e-9)


@pytest.mark.parametrize("length", [1, 2, 39, 40, 41, 200])
def test_smoothing_leaves_a_straight_line_alone(length: int) -> None:
    points = [(step, 3.0 - 0.01 * step) for step in range(length)]
    assert smooth(points) == [(step, pytest.approx(value, abs=1e-12)) for step, value in points]


def test_a_smoothed_curve_ends_without_a_jump() -> None:
    """The weights of the raw values in the last smoothed one: the noise left there is their root sum of squares."""
    length = 200
    weights = [smooth([(s, float(s == each)) for s in range(length)]) for each in range(length)]

    def left(index: int) -> float:
        return math.sqrt(sum(smoothed[index][1] ** 2 for smoothed in weights))

    assert left(100) == pytest.approx(1 / math.sqrt(11), abs=1e-12)
    window = 11  # of a line fitted by least squares, at the end of its window: sqrt(1/n + mean(x)^2 / sum of squares)
    assert left(199) == pytest.approx(math.sqrt(1 / window + 5**2 / 110), abs=1e-12)
    assert max(left(index) for index in range(150, 200)) < 0.6


def test_a_loss_is_drawn_against_every_axis_that_all_lines_have() -> None:
    points = [[step, 2.0 + random.Random(step).random()] for step in range(10, 101, 10)]
    both = {"tokens": 64.0, "seconds": {step: step**1.5 for step, _ in points}}
    lines = [Line("#000", points, ("a", 0), scales=both), Line("#111", points, ("b", 1), scales={"tokens": 128.0})]
    assert list(draw_views(lines, [], "k")) == ["step", "tokens"]
    assert list(draw_views(lines[:1], [], "k")) == ["step", "tokens", "seconds"]
    assert draw_views([Line("#000", [])], [], "k") == {}
    columns, rows = numbers_of(lines, ["arm", "seed"], ["step", "tokens"])
    assert columns == ["arm", "seed", "step", "tokens", "loss"]
    assert rows == [["a", 0, s, 64.0 * s, v] for s, v in points] + [["b", 1, s, 128.0 * s, v] for s, v in points]
    svg = draw_losses(lines[:1], [], "k", "seconds")
    assert "1,000</text>" in svg and ">seconds</text>" in svg


def test_labels_of_close_references_are_joined() -> None:
    scale = [("2-gram", 2.48), ("5-gram", 1.56), ("7-gram", 1.52), ("3-gram", 2.04)]
    two, three, five, seven = (
        ("2-gram", 2.48, 2.48),
        ("3-gram", 2.04, 2.04),
        ("5-gram", 1.56, 1.56),
        ("7-gram", 1.52, 1.52),
    )
    assert join_labels(scale, 0.1) == [two, three, ("5-gram, 7-gram", 1.56, 1.52)]
    assert join_labels(scale, 0.01) == [two, three, five, seven]

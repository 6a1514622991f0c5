"""Figures of attention maps."""

import re

import pytest
import torch

from partwise.inspection.map_figures import map_figures, pick_evenly
from partwise.plots.page import PageFigure

TOKENS = [f"w{index}" for index in range(40)]


def texts(figure: PageFigure) -> list[str]:
    return re.findall(r"<text[^>]*>([^<]*)</text>", figure.svg)


def test_maps_name_the_first_tokens_on_both_axes() -> None:
    maps = {("self", layer): torch.rand(2, 40, 40).tril() for layer in range(3)}
    enlarged, whole = map_figures("self", maps, {layer: ["0", "1"] for layer in range(3)}, {"self": TOKENS})
    found = texts(enlarged)
    # two layers of two heads; each token once per axis
    assert [found.count(token) for token in TOKENS] == [8] * 24 + [0] * 16
    assert (
        enlarged.title == "Attention maps, first 24 tokens"
        and "layer 2, head 1" in found
        and "layer 1, head 1" not in found
    )
    assert whole.title == "Attention maps, all 40 tokens" and "Axes are token positions" in whole.caption
    assert "layer 1, head 1" in texts(whole) and "w0" not in texts(whole)
    assert "4 of 6 maps are shown" in enlarged.caption and "shown" not in whole.caption


def panels(figure: PageFigure) -> list[str]:
    return [text for text in texts(figure) if text.startswith("layer")]


def test_no_head_is_missing_between_those_shown_and_no_map_is_repeated() -> None:
    maps = {("self", layer): torch.rand(5, 3, 3).tril() for layer in range(2)}
    figures = map_figures("self", maps, {layer: [*"01234"] for layer in range(2)}, {"self": ["a", "b", "c"]})
    first, more = map(panels, figures)
    assert first == [f"layer {layer}, head {head}" for layer in range(2) for head in range(4)]
    assert more == ["layer 0, head 4", "layer 1, head 4"] and figures[1].title == "Attention maps of more heads"
    assert len(map_figures("self", {("self", 0): maps["self", 0][:2]}, {0: ["0", "1"]}, {"self": [*"abc"]})) == 1


def test_positions_are_whole_numbers() -> None:
    labels = {"self": ["a", "b", "c"]}
    maps = {("self", 0): torch.rand(6, 3, 3).tril()}
    _, more = map_figures("self", maps, {0: [*"012345"]}, labels)
    ticks = [text for text in texts(more) if not text.startswith("layer")]
    assert set(ticks) == {"0", "1", "2"}


def test_cross_attention_names_queries_by_target_and_keys_by_source() -> None:
    labels = {"self": ["a", "b", "c"], "encoder": ["v", "w", "x", "y", "z"]}
    (enlarged,) = map_figures("cross", {("cross", 0): torch.rand(1, 3, 5)}, {0: ["0"]}, labels)
    assert [texts(enlarged).count(token) for token in "abcvwxyz"] == [1] * 8
    assert enlarged.title == "Cross-attention maps, by token"


def test_a_model_without_such_attention_has_no_figure() -> None:
    assert map_figures("encoder", {}, {}, {"self": []}) == []


@pytest.mark.parametrize(("n", "picked"), [(2, [0, 9]), (4, [0, 3, 6, 9]), (10, list(range(10)))])
def test_picks_are_evenly_spaced(n: int, picked: list[int]) -> None:
    assert pick_evenly(list(range(10)), n) == picked

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import partwise
from partwise.baselines.scale import far_below, place_loss

SHAKESPEARE = {1: 3.347, 2: 2.484, 3: 2.038, 4: 1.719, 5: 1.561, 7: 1.517}


@pytest.mark.parametrize(
    ("loss", "place"),
    [
        (3.5, "worse than a unigram model"),
        (3.347, "worse than a unigram model"),
        (3.0, "between a unigram and a 2-gram model"),
        (2.2, "between a 2-gram and a 3-gram model"),
        (1.55, "between a 5-gram and a 7-gram model"),
        (1.517, "between a 5-gram and a 7-gram model"),
        (1.4697, "better than the best n-gram model, a 7-gram"),
    ],
)
def test_losses_are_placed_on_the_scale(loss: float, place: str) -> None:
    assert place_loss(loss, SHAKESPEARE) == place


def test_models_are_ordered_by_loss_not_by_n() -> None:
    small_text = {1: 3.0, 2: 2.5, 3: 2.6, 4: 2.7}
    assert place_loss(2.65, small_text) == "between a 4-gram and a 3-gram model"
    assert place_loss(2.4, small_text) == "better than the best n-gram model, a 2-gram"


def test_without_references_a_loss_has_no_place() -> None:
    assert place_loss(1.0, {}) == ""


def test_a_loss_that_no_model_of_text_has_is_told() -> None:
    best = min(SHAKESPEARE.values())
    told = far_below([0.29], SHAKESPEARE)
    assert told.startswith(
        f"A loss of 0.2900 is less than half of that of the best n-gram model, a 7-gram ({best:.4f})"
    )
    assert far_below([0.49 * best, 2.0], SHAKESPEARE) and not far_below([0.51 * best, 2.0], SHAKESPEARE)
    assert far_below([], SHAKESPEARE) == far_below([0.1], {}) == ""


def test_no_model_of_the_studies_is_told() -> None:
    """Their best losses on text are 0.85 of those of the best n-gram models."""
    library, judged = Path(partwise.__file__).parent / "studies" / "library", 0
    for path in library.rglob("results.json"):
        for results in comparisons_in(json.loads(path.read_text())):
            trials = [trial for arm in results["arms"] for trial in arm["trials"]]
            losses = [trial["validation_loss"] for trial in trials if trial["validation_loss"]]
            if results["task"]["name"] in ("shakespeare", "python"):
                assert far_below(losses, dict(results["references"]["ngrams"])) == "", path
                judged += bool(losses)
    assert judged > 30


def comparisons_in(value: Any) -> Iterator[dict[str, Any]]:
    """The results of comparisons anywhere in JSON values."""
    if isinstance(value, dict):
        if "arms" in value and value.get("references", {}).get("ngrams"):
            yield value
        for each in value.values():
            yield from comparisons_in(each)
    elif isinstance(value, list):
        for each in value:
            yield from comparisons_in(each)

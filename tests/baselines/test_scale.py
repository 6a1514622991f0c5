import pytest

from partwise.baselines.scale import place_loss

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

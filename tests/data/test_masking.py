"""Masked windows: which tokens are hidden, what stands in their place, and that evaluation repeats."""

import numpy as np
import pytest

from partwise.config import ConfigError
from partwise.data import IGNORE_INDEX, MaskedWindows, build_examples
from partwise.data.batches import Batch
from partwise.data.corpora import Shakespeare
from partwise.evaluate.references import dataset_references, is_plain_text
from partwise.train.config import run_config

N_IDS, LENGTH = 50, 40
MASKED = ("n_layers=0", "encoder_layers=1", "data.mask_rate=0.15")


def windows(n: int = 5003, rate: float = 0.15) -> MaskedWindows:
    ids = np.random.default_rng(0).integers(0, N_IDS, n).astype(np.uint8)
    return MaskedWindows(ids, LENGTH, rate, N_IDS, "text")


def restored(batch: Batch) -> np.ndarray:
    """The text: inputs with the targets in their places."""
    return np.where(batch.targets == IGNORE_INDEX, batch.inputs, batch.targets)


def test_each_window_has_its_share_of_targets_and_all_other_tokens_are_shown() -> None:
    split = windows()
    batch = split.batch("data", 0, 3, 4000)
    chosen = batch.targets != IGNORE_INDEX
    assert (chosen.sum(axis=1) == 6).all()  # 15% of 40
    assert batch.n_targets == split.targets_per_batch(4000)
    text = np.lib.stride_tricks.sliding_window_view(split.ids, LENGTH)
    found = {row.tobytes() for row in text}
    assert all(row.astype(np.uint8).tobytes() in found for row in restored(batch))
    assert split.ids[-1] in restored(batch)[:, -1]  # the last token of the text can be predicted, too
    # every position is chosen equally often; of the chosen tokens 80% are hidden, and about 10% + 10% / 50 stay
    rates = chosen.mean(axis=0)
    assert np.abs(rates - 0.15).max() < 5 * np.sqrt(0.15 * 0.85 / 4000)
    inputs, targets = batch.inputs[chosen], batch.targets[chosen]
    tolerance = 5 * np.sqrt(0.25 / len(inputs))
    assert abs((inputs == N_IDS).mean() - 0.8) < tolerance
    assert abs((inputs == targets).mean() - 0.102) < tolerance
    assert inputs.max() == N_IDS and targets.max() < N_IDS


def test_a_batch_follows_from_the_key_the_seed_and_the_step_alone() -> None:
    first, again = windows().batch("data", 0, 3, 8), windows().batch("data", 0, 3, 8)
    assert np.array_equal(first.inputs, again.inputs) and np.array_equal(first.targets, again.targets)
    for other in (("other", 0, 3), ("data", 1, 3), ("data", 0, 4)):
        assert not np.array_equal(windows().batch(*other, 8).inputs, first.inputs)


def test_evaluation_shows_every_token_of_the_text_once_with_the_same_masks() -> None:
    split = windows()
    batches = list(split.eval_batches())
    assert np.array_equal(np.concatenate([restored(batch).ravel() for batch in batches]), split.ids)
    for one, two in zip(batches, split.eval_batches(), strict=True):
        assert np.array_equal(one.inputs, two.inputs)
    # windows do not share their masks, and the same window of a shorter split keeps its own
    assert len({row.tobytes() for row in batches[0].targets != IGNORE_INDEX}) > 40
    shorter = split.truncate_like(windows(3 * LENGTH + 1))
    assert np.array_equal(next(shorter.eval_batches()).inputs, batches[0].inputs[:3])
    assert [len(batch.inputs[0]) for batch in shorter.eval_batches()] == [LENGTH, 1]
    assert [batch.n_targets for batch in shorter.eval_batches()] == [18, 1]  # also a short window has a target


def test_all_tokens_can_be_masked() -> None:
    batch = windows(rate=1.0).batch("data", 0, 0, 20)
    assert batch.n_targets == 20 * LENGTH


def test_masked_data_share_the_prepared_ids_and_add_one_id() -> None:
    plain, masked = (run_config("mingpt", *words, data="shakespeare") for words in ((), MASKED))
    assert Shakespeare(mask_rate=0.0).to_stored() == {"part": "shakespeare"}  # as before there were masks
    assert masked.model.vocab_size == 66
    one, two = plain.prepare(), masked.prepare()
    assert one.folder == two.folder and one.hash == two.hash
    examples = build_examples(two, "val", 64, 64)
    assert isinstance(examples, MaskedWindows)
    assert next(examples.eval_batches()).inputs.max() == 65


def test_the_reference_of_masked_tokens_is_a_constant() -> None:
    dataset = run_config("mingpt", *MASKED, data="shakespeare").prepare()
    train, validation = (np.bincount(dataset.split(name), minlength=65) for name in ("train", "val"))
    validation[dataset.split("val")[0]] -= 1
    expected = -(validation / validation.sum()) @ np.log((train + 1) / (train.sum() + 65))
    ((n, loss),) = dataset_references(dataset)["ngrams"]
    assert n == 1 and loss == pytest.approx(expected, rel=1e-12)
    assert not is_plain_text(dataset)


@pytest.mark.parametrize(
    ("words", "data", "reason"),
    [
        ("data.mask_rate=0.15", "shakespeare", "for an encoder alone: set n_layers=0 and encoder_layers"),
        ("n_layers=0 encoder_layers=2", "shakespeare", "predicts masked tokens: set data.mask_rate=0.15, or n_layers"),
        ("n_layers=0", "shakespeare", "leave no layers"),
        ("n_layers=0 encoder_layers=2", "arithmetic_pairs", "need an encoder and a decoder"),
        ("encoder_layers=2", "shakespeare", "encoder_layers=2 needs a source"),
        ("n_layers=0 encoder_layers=1 data.mask_rate=0.15 mtp=heads", "shakespeare", "set mtp=none"),
        ("n_layers=0 encoder_layers=1 data.mask_rate=0.15 ngram_lm=kneser_ney", "shakespeare", "set ngram_lm=none"),
    ],
)
def test_what_does_not_fit_is_refused(words: str, data: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        run_config("mingpt", *words.split(), data=data)

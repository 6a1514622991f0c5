"""References: Kneser-Ney against the equations in exact fractions; known figures; small cases by hand."""

import math
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from partwise.baselines import kneser_ney
from partwise.baselines.kneser_ney import KneserNey, estimate_discounts
from partwise.baselines.references import (
    constant_char_accuracy,
    constant_exact_match,
    kneser_ney_loss,
    text_references,
    unigram_loss,
)
from partwise.config import ConfigError
from partwise.data import Shakespeare
from partwise.data.arithmetic import ProblemSpec
from partwise.data.problem_splits import generate_problems

EXACT = 1e-12
Gram = tuple[int, ...]


class Textbook:
    """Chen & Goodman's equations in exact fractions, one dictionary per n-gram length."""

    def __init__(self, text: Sequence[int], vocab_size: int, context: int) -> None:
        self.vocab_size = vocab_size
        self.longest = min(context + 1, len(text))
        occurrences = {
            n: Counter(tuple(text[i : i + n]) for i in range(len(text) - n + 1)) for n in range(1, self.longest + 1)
        }
        self.counts: dict[int, dict[Gram, int]] = {self.longest: dict(occurrences[self.longest])}
        for n in range(1, self.longest):
            # each distinct longer n-gram is one left neighbor of its suffix
            self.counts[n] = Counter(gram[1:] for gram in occurrences[n + 1])
        self.discounts = {n: self.three_discounts(n) for n in self.counts}

    def three_discounts(self, n: int) -> list[Fraction]:
        n1, n2, n3, n4 = (sum(c == k for c in self.counts[n].values()) for k in (1, 2, 3, 4))
        discounts = [Fraction(0), Fraction(1, 2), Fraction(1), Fraction(3, 2)]
        if n1 and n2:
            y = Fraction(n1, n1 + 2 * n2)
            candidates = [1 - 2 * y * Fraction(n2, n1)]
            candidates.append(2 - 3 * y * Fraction(n3, n2) if n3 else Fraction(0))
            candidates.append(3 - 4 * y * Fraction(n4, n3) if n3 and n4 else Fraction(0))
            for k, candidate in enumerate(candidates, 1):
                if candidate > 0:
                    discounts[k] = candidate
        return discounts

    def probability(self, token: int, history: Gram) -> Fraction:
        history = history[max(0, len(history) - self.longest + 1) :]
        lower = self.probability(token, history[1:]) if history else Fraction(1, self.vocab_size)
        n = len(history) + 1
        followers = {gram[-1]: count for gram, count in self.counts[n].items() if gram[:-1] == history}
        if not followers:
            return lower
        total = sum(followers.values())
        discount = {token: self.discounts[n][min(count, 3)] for token, count in followers.items()}
        own = (followers.get(token, 0) - discount.get(token, Fraction(0))) / total
        return own + sum(discount.values(), Fraction(0)) / total * lower


@st.composite
def texts(draw: st.DrawFn) -> tuple[int, list[int], list[int], int]:
    """A vocabulary size, a training text that may not use all of it, a text to score, and a context size."""
    vocab_size = draw(st.integers(1, 4))
    used = st.integers(0, draw(st.integers(0, vocab_size - 1)))
    train = draw(st.lists(used, min_size=1, max_size=60))
    scored = draw(st.lists(st.integers(0, vocab_size - 1), min_size=2, max_size=15))
    return vocab_size, train, scored, draw(st.integers(0, 6))


def random_text(vocab_size: int, length: int, seed: int) -> np.ndarray:
    """Skewed and repetitive enough that every count of counts occurs and some discounts fall back."""
    generator = np.random.default_rng(seed)
    words = [generator.integers(0, vocab_size, size) for size in generator.integers(1, 7, 12)]
    picks = np.minimum(generator.geometric(0.2, length) - 1, 11)
    return np.concatenate([words[pick] for pick in picks])[:length]


@settings(max_examples=150)
@given(texts())
def test_kneser_ney_equals_the_equations(case: tuple[int, list[int], list[int], int]) -> None:
    vocab_size, train, scored, context = case
    book = Textbook(train, vocab_size, context)
    expected = [float(book.probability(token, tuple(scored[:i]))) for i, token in enumerate(scored)]
    model = KneserNey(np.array(train), vocab_size, context)
    np.testing.assert_allclose(model.probabilities(np.array(scored)), expected, rtol=EXACT)
    loss = -math.fsum(map(math.log, expected[1:])) / (len(expected) - 1)  # the first token is not scored
    assert kneser_ney_loss(np.array(train), np.array(scored), vocab_size, context) == pytest.approx(
        loss, rel=EXACT, abs=EXACT
    )


@pytest.mark.parametrize(("vocab_size", "context"), [(2, 6), (5, 3), (9, 6), (30, 1), (30, 0)])
def test_kneser_ney_equals_the_equations_on_longer_texts(vocab_size: int, context: int) -> None:
    train, scored = random_text(vocab_size, 600, 1), random_text(vocab_size, 40, 2)
    scored[20:] = train[100:120]
    book = Textbook(train.tolist(), vocab_size, context)
    expected = [float(book.probability(token, tuple(scored[:i].tolist()))) for i, token in enumerate(scored.tolist())]
    actual = KneserNey(train, vocab_size, context).probabilities(scored)
    np.testing.assert_allclose(actual, expected, rtol=EXACT)


@settings(max_examples=100)
@given(texts())
def test_probabilities_sum_to_one_after_any_context(case: tuple[int, list[int], list[int], int]) -> None:
    vocab_size, train, scored, context = case
    model = KneserNey(np.array(train), vocab_size, context)
    for history in (scored, train, train[:3], []):
        chances = model.distribution(np.array(history, dtype=np.int64))
        assert chances.shape == (vocab_size,)
        assert chances.min() > 0
        assert chances.sum() == pytest.approx(1, abs=EXACT)


def test_distribution_equals_the_scored_probabilities() -> None:
    train = random_text(50, 20_000, 3)
    model = KneserNey(train, 50)
    generator = np.random.default_rng(4)
    unseen = generator.integers(0, 50, (20, 9))
    seen = np.stack([train[at : at + 9] for at in generator.integers(0, len(train) - 9, 20)])
    for row in np.concatenate([unseen, seen]):
        chances = model.distribution(row[:-1])
        assert chances.sum() == pytest.approx(1, abs=EXACT)
        assert chances[row[-1]] == pytest.approx(model.probabilities(row)[-1], rel=EXACT)
    np.testing.assert_array_equal(model.probabilities(unseen)[7], model.probabilities(unseen[7]))


def test_discounts_by_hand() -> None:
    # n1..n4 = 4, 3, 2, 1: Y = 4/10, D1 = 1 - 2 Y 3/4, D2 = 2 - 3 Y 2/3, D3 = 3 - 4 Y 1/2; 0 and 9 have no effect
    counts = np.array([0, 1, 1, 1, 1, 2, 2, 2, 3, 3, 4, 9])
    np.testing.assert_allclose(estimate_discounts(counts), [0, 0.4, 1.2, 2.2], rtol=EXACT)
    # without a count of 4 only D3 falls back; without a count of 2 all do; D2 would be 2 - 3 (1/3) 3 < 0
    np.testing.assert_allclose(estimate_discounts(counts[counts != 4]), [0, 0.4, 1.2, 1.5], rtol=EXACT)
    np.testing.assert_array_equal(estimate_discounts(counts[counts != 2]), [0, 0.5, 1, 1.5])
    np.testing.assert_allclose(estimate_discounts(np.array([1, 2, 3, 3, 3])), [0, 1 / 3, 1, 1.5], rtol=EXACT)
    # D2 is exactly 0 here, and 2e-16 in floating point
    zero = estimate_discounts(np.repeat([1, 2, 3], [25, 15, 22]))
    np.testing.assert_allclose(zero, [0, 5 / 11, 1, 1.5], rtol=EXACT)


def test_a_bigram_by_hand() -> None:
    # a b a a: bigrams ab, ba, aa once each, so D1 = 1/2 because no count is 2;
    # left neighbors: a has 2 (a, b), b has 1 (a), so Y = 1/3, D1 = 1 - 2 Y = 1/3, and D2 = 1 because no count is 3
    model = KneserNey(np.array([0, 1, 0, 0]), 3, context=1)
    backoff = (1 / 3 + 1) / 3
    a, b, c = (2 - 1) / 3 + backoff / 3, (1 - 1 / 3) / 3 + backoff / 3, backoff / 3
    np.testing.assert_allclose(model.distribution(np.array([])), [a, b, c], rtol=EXACT)
    np.testing.assert_allclose(model.distribution(np.array([0])), [0.25 + a / 2, 0.25 + b / 2, c / 2], rtol=EXACT)
    np.testing.assert_allclose(model.distribution(np.array([1])), [0.5 + a / 2, b / 2, c / 2], rtol=EXACT)
    np.testing.assert_allclose(model.distribution(np.array([2])), [a, b, c], rtol=EXACT)


def test_constant_text_has_almost_no_loss() -> None:
    ones = np.zeros(100, dtype=np.uint8)
    assert kneser_ney_loss(ones, ones, 1) == pytest.approx(0, abs=EXACT)
    assert unigram_loss(ones, ones, 1) == pytest.approx(0, abs=EXACT)
    assert 0 < kneser_ney_loss(ones, ones, 10) < 0.05
    assert kneser_ney_loss(ones, ones + np.uint8(3), 10) < math.inf


def test_a_vocabulary_too_large_to_pack_into_64_bits() -> None:
    train, scored, spread = random_text(9, 500, 5), random_text(9, 30, 6), 2**40
    book = Textbook((train * spread).tolist(), 9 * spread, 6)
    ids = (scored * spread).tolist()
    expected = [float(book.probability(token, tuple(ids[:i]))) for i, token in enumerate(ids)]
    actual = KneserNey(train * spread, 9 * spread).probabilities(scored * spread)
    np.testing.assert_allclose(actual, expected, rtol=EXACT)


def test_chunks_include_their_context(monkeypatch: pytest.MonkeyPatch) -> None:
    train, scored = random_text(9, 2000, 7), random_text(9, 101, 8)
    model = KneserNey(train, 9)
    expected = -np.log(model.probabilities(scored))[1:].mean()
    for chunk in (1, 4, 50, 100):
        monkeypatch.setattr(kneser_ney, "CHUNK_TOKENS", chunk)
        assert model.loss(scored) == pytest.approx(expected, rel=EXACT)


def test_unigram_by_hand() -> None:
    train, ids = np.array([0, 0, 0, 1]), np.array([2, 0, 1, 2])  # (3 + 1, 1 + 1, 0 + 1) / (4 + 3), the first not scored
    expected = -(math.log(4 / 7) + math.log(2 / 7) + math.log(1 / 7)) / 3
    assert unigram_loss(train, ids, 3) == pytest.approx(expected, rel=EXACT)


def test_text_references_are_fitted_on_at_most_max_tokens() -> None:
    train, ids = random_text(9, 900, 9).astype(np.uint16), random_text(9, 200, 10).astype(np.uint16)
    assert text_references(train, ids, 9, max_tokens=300) == {
        "ngrams": [
            [1, unigram_loss(train[:300], ids, 9)],
            *([n, kneser_ney_loss(train[:300], ids, 9, context=n - 1)] for n in (2, 3, 4, 5, 7)),
        ],
        "fitted_tokens": 300,
    }
    assert text_references(train, ids, 9)["fitted_tokens"] == 900


@pytest.mark.parametrize(
    ("train", "ids", "context", "message"),
    [
        ([], [0, 1], 2, "train_ids is empty"),
        ([0, 1], [0], 2, "1 tokens in ids: must be at least 2"),
        ([0, 1], [0, 3], 2, "the id 3: vocab_size=3 allows 0 to 2"),
        ([0, -1], [0, 1], 2, "the id -1"),
        ([0, 1], [0.0, 1.0], 2, "float64"),
        ([0, 1], [0, 1], -1, "context=-1"),
    ],
)
def test_bad_ids_are_refused_in_one_line(train: list[int], ids: list[float], context: int, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as error:
        kneser_ney_loss(np.array(train, dtype=np.int64), np.array(ids), 3, context)
    assert "\n" not in str(error.value)


@pytest.fixture(scope="module")
def shakespeare() -> tuple[np.ndarray, np.ndarray, int]:
    text = "".join(split[:] for split in Shakespeare().splits().values())
    symbols, ids = np.unique(np.array(list(text)), return_inverse=True)
    train = ids[: int(0.9 * len(ids))]
    return train, ids[len(train) :], len(symbols)


def test_shakespeare_has_known_references(shakespeare: tuple[np.ndarray, np.ndarray, int]) -> None:
    train, ids, vocab_size = shakespeare
    assert (len(train), len(ids), vocab_size) == (1_003_854, 111_540, 65)
    assert kneser_ney_loss(train, ids, vocab_size) == pytest.approx(1.5165, abs=1e-4)
    losses = dict(text_references(train, ids, vocab_size)["ngrams"])
    assert losses == pytest.approx({1: 3.3473, 2: 2.4835, 3: 2.0381, 4: 1.7190, 5: 1.5612, 7: 1.5165}, abs=1e-4)


def test_shakespeare_probabilities_sum_to_one(shakespeare: tuple[np.ndarray, np.ndarray, int]) -> None:
    train, ids, vocab_size = shakespeare
    model = KneserNey(train, vocab_size)
    for at in range(0, 100_000, 2500):
        assert model.distribution(ids[at : at + 6]).sum() == pytest.approx(1, abs=EXACT)


def test_answers_by_hand() -> None:
    train = np.array([[1, 7, 5], [1, 8, 5], [2, 7, 5], [2, 9, 6], [2, 9, 6]], dtype=np.uint8)
    answers = np.array([[2, 7, 5], [2, 9, 6], [1, 7, 6], [2, 9, 6]], dtype=np.uint8)
    # the most frequent characters are 2, 7 (tied with 9) and 5: 3 + 2 + 1 of 12; the most common answer is 2 9 6
    assert constant_char_accuracy(train, answers) == pytest.approx(6 / 12, abs=EXACT)
    assert constant_exact_match(train, answers) == pytest.approx(2 / 4, abs=EXACT)


@settings(max_examples=50)
@given(st.lists(st.tuples(*[st.integers(-(2**60), 2**60) | st.integers(0, 1)] * 3), min_size=1, max_size=20))
def test_the_constant_answer_is_the_mode_of_the_rows(rows: list[Gram]) -> None:
    assert constant_exact_match(np.array(rows), np.array(rows)) == pytest.approx(
        Counter(rows).most_common(1)[0][1] / len(rows), abs=EXACT
    )


def test_arithmetic_has_known_references() -> None:
    splits = generate_problems(ProblemSpec(), train=200_000, validation=1, test=50_000)
    train, answers = splits["train"].reshape(200_000, -1), splits["test"].reshape(50_000, -1)
    closed, open_ = slice(-11, None), slice(-11, -1)
    assert bytes(np.unique(answers[:, -1])) == b"$"
    assert constant_char_accuracy(train[:, closed], answers[:, closed]) == pytest.approx(0.594, abs=0.003)
    assert constant_char_accuracy(train[:, open_], answers[:, open_]) == pytest.approx(0.553, abs=0.003)
    assert constant_exact_match(train[:, closed], answers[:, closed]) == pytest.approx(0.0013, abs=0.0003)


@pytest.mark.parametrize("reference", [constant_char_accuracy, constant_exact_match])
def test_answers_of_other_shapes_are_refused(reference: object) -> None:
    assert callable(reference)
    for train, answers in [((3, 2), (3, 3)), ((0, 2), (3, 2)), ((3, 2), (0, 2)), ((3,), (3, 2)), ((3, 0), (3, 0))]:
        with pytest.raises(ConfigError, match="answers of shapes"):
            reference(np.zeros(train, dtype=np.uint8), np.zeros(answers, dtype=np.uint8))

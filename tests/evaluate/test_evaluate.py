"""Losses on a full split, arithmetic accuracies as in the tutorial, and reference results."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest
from torch.nn import functional as F

import partwise
from partwise.data import Arithmetic, Windows, generate_problems, prepare, split_problems
from partwise.evaluate.arithmetic import CorrectCount, accuracy_by_operation, answer_problems, operation, score_answers
from partwise.evaluate.loss import SplitLoss, evaluation_mode, random_batches_loss
from partwise.evaluate.references import dataset_references
from partwise.tokenizers import Characters, TokenizerRecipe
from recipes import split_loss
from references.tutorial_loop import score_arithmetic

TINY = ["d_model=16", "n_layers=2", "attention.n_heads=2", "context_length=48"]
CORPUS = Arithmetic(train=400, validation=20, test=60)


@pytest.fixture(scope="module")
def model() -> partwise.Transformer:
    return partwise.Transformer(partwise.preset("mingpt", *TINY, vocab_size=19)).double()


@pytest.fixture(scope="module")
def problems() -> list[str]:
    return split_problems(
        generate_problems(CORPUS.problem_spec(), train=400, validation=20, test=60)["test"].tobytes().decode()
    )


@pytest.mark.parametrize("count", [2, 3, 16, 17, 18, 33, 100, 1000])
@pytest.mark.parametrize("context", [1, 16, 48])
def test_every_token_but_the_first_is_a_target_once(model: partwise.Transformer, count: int, context: int) -> None:
    ids = np.random.default_rng(count).integers(0, 19, count).astype(np.uint8)
    losses = []
    with torch.no_grad():
        for start in range(0, count - 1, context):  # one window at a time
            window = torch.from_numpy(ids[start : start + context + 1].astype(np.int64))
            losses.append(F.cross_entropy(model.eval()(window[None, :-1])[0], window[1:], reduction="none"))
    expected = torch.cat(losses)
    assert len(expected) == count - 1
    assert split_loss(model, ids, context) == pytest.approx(expected.mean().item(), rel=1e-6)


def test_evaluation_is_deterministic_and_restores_the_mode(problems: list[str]) -> None:
    model = partwise.Transformer(partwise.preset("toy", *TINY, "positions=learned", vocab_size=19)).train()
    ids = np.random.default_rng(0).integers(0, 19, 500).astype(np.uint8)
    assert split_loss(model, ids, 48) == split_loss(model, ids, 48)  # dropout is off
    assert model.training
    with evaluation_mode(model, "float32"):
        assert not model.training
    model.eval()
    split_loss(model, ids, 48)
    assert not model.training


def test_the_random_estimator_uses_new_batches_at_each_step(model: partwise.Transformer) -> None:
    ids = np.random.default_rng(0).integers(0, 19, 3000).astype(np.uint8)
    arguments = {"size": 4, "key": "k", "seed": 0, "precision": "float32"}
    first, again, later = (random_batches_loss(model, Windows(ids, 16), step=step, **arguments) for step in (0, 0, 1))
    assert first == again != later
    assert first == pytest.approx(split_loss(model, ids, 16), abs=0.05)


def test_units() -> None:
    loss = SplitLoss(math.log(2), tokens=10, bytes=20)
    assert loss.bits_per_byte == pytest.approx(0.5)
    assert loss.perplexity == pytest.approx(2)


def test_greedy_answers_equal_the_tutorial(model: partwise.Transformer, problems: list[str]) -> None:
    """The tutorial generates one answer at a time without a cache; here with the most likely character, not a sample."""
    tokenizer = Characters().build(CORPUS)
    answers = answer_problems(model, tokenizer, problems, temperature=0)

    def most_likely(ids: torch.Tensor) -> torch.Tensor:  # all probability on the most likely character
        logits = model(ids)
        return torch.full_like(logits, -1e9).scatter(-1, logits.argmax(-1, keepdim=True), 0.0)

    scores = score_arithmetic(most_likely, problems, context=48, limit=40)
    result = score_answers(problems, answers)
    assert result.char_accuracy_closed.value == pytest.approx(scores.character_accuracy, abs=1e-12)
    assert result.exact_match.value == pytest.approx(scores.exact_match, abs=1e-12)


def test_sampled_answers_have_the_distribution_of_the_tutorial(
    model: partwise.Transformer, problems: list[str]
) -> None:
    tokenizer = Characters().build(CORPUS)
    answers = answer_problems(model, tokenizer, problems * 20, temperature=1.0, seed=1)
    ours = score_answers(problems * 20, answers).char_accuracy_closed
    scores = score_arithmetic(model, problems, context=48, limit=40, generator=torch.Generator().manual_seed(0))
    total = 11 * len(problems)
    test = binomtest(round(scores.character_accuracy * total), total, ours.value)
    assert test.pvalue > 1e-4


def test_answers_do_not_depend_on_the_batch(model: partwise.Transformer, problems: list[str]) -> None:
    tokenizer, done = Characters().build(CORPUS), list[float]()
    batched = answer_problems(model, tokenizer, problems[:7], temperature=1.0, on_progress=done.append)
    assert sum(done) == pytest.approx(7) and len(done) > 7
    assert batched[:1] == answer_problems(model, tokenizer, problems[:1], temperature=1.0)


def test_characters_after_the_end_are_replaced_by_the_end() -> None:
    problems = ["$(1+1)=2000$", "$(9-1)=8000$"]
    result = score_answers(problems, ["2$$$$", "80x0$"])
    assert (result.char_accuracy_closed.correct, result.char_accuracy_closed.total) == (2 + 4, 10)
    assert (result.char_accuracy.correct, result.char_accuracy.total) == (1 + 3, 8)
    assert result.exact_match.correct == 0
    assert score_answers(problems, ["2000$", "8000$"]).exact_match.correct == 2


def test_operations_are_distinguished_from_signs() -> None:
    assert [operation(f"$({text})=1$") for text in ("10+2", "3-4", "2*2", "7/7")] == ["+", "-", "*", "/"]
    by_operation = accuracy_by_operation(["$(1+1)=2$", "$(9-1)=8$"], ["2$", "7$"])
    assert by_operation["+"].exact_match.value == 1
    assert by_operation["-"].exact_match.value == 0
    assert by_operation["all"].exact_match.value == 0.5


@given(st.integers(0, 200), st.integers(1, 200))
def test_wilson_interval(correct: int, total: int) -> None:
    correct = min(correct, total)
    low, high = CorrectCount(correct, total).interval()
    expected = binomtest(correct, total).proportion_ci(method="wilson")
    assert low == pytest.approx(expected.low, abs=1e-12)
    assert high == pytest.approx(expected.high, abs=1e-12)


def test_references_are_cached() -> None:
    dataset = prepare(CORPUS, TokenizerRecipe.resolve("characters"))
    references = dataset_references(dataset)
    assert set(references) == {
        "ngrams",
        "fitted_tokens",
        "constant_char_accuracy_closed",
        "constant_char_accuracy",
        "constant_exact_match",
    }
    assert references["fitted_tokens"] == len(dataset.split("train"))
    losses = dict(references["ngrams"])
    assert list(losses) == [1, 2, 3, 4, 5, 7] and 0 < losses[7] < losses[1] < math.log(19)
    assert references["constant_char_accuracy"] < references["constant_char_accuracy_closed"]
    (file,) = dataset.folder.glob("references-*.json")
    before = file.stat().st_mtime_ns
    assert dataset_references(dataset) == references and file.stat().st_mtime_ns == before


@pytest.mark.parametrize("position", range(0, 400, 49))
def test_a_flipped_bit_in_cached_references_is_found(position: int) -> None:
    """One digit of a loss would move every sentence that places a model among the n-gram references."""
    dataset = prepare(CORPUS, TokenizerRecipe.resolve("characters"))
    references = dataset_references(dataset)
    (file,) = dataset.folder.glob("references-*.json")
    sound = file.read_bytes()
    content = bytearray(sound)
    content[position % len(content)] ^= 1
    for damaged in (bytes(content), b"[1]", b'{"references": 3}'):
        file.write_bytes(damaged)
        assert dataset_references(dataset) == references
    file.write_bytes(sound)

"""Scores: the whole split once, arithmetic answers as the tutorial counts them, floors beside them."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest
from torch.nn import functional as F

import partwise
from partwise.data import Arithmetic, Windows, generate, prepare, split_problems
from partwise.evaluate.arithmetic import Share, accuracy, accuracy_by_operation, answer_problems, operation
from partwise.evaluate.loss import Score, evaluating, random_batches_loss
from partwise.evaluate.scores import dataset_floors
from partwise.tokenizers import Characters, TokenizerRecipe
from recipes import split_loss
from references.documents_loop import score_arithmetic

TINY = ["d_model=16", "n_layers=2", "attention.n_heads=2", "max_len=48"]
CORPUS = Arithmetic(train=400, validation=20, test=60)


@pytest.fixture(scope="module")
def model() -> partwise.Transformer:
    return partwise.Transformer(partwise.preset("mingpt", *TINY, vocab_size=19)).double()


@pytest.fixture(scope="module")
def problems() -> list[str]:
    return split_problems(generate(CORPUS.problems(), train=400, validation=20, test=60)["test"].tobytes().decode())


@pytest.mark.parametrize("count", [2, 3, 16, 17, 18, 33, 100, 1000])
@pytest.mark.parametrize("context", [1, 16, 48])
def test_every_token_but_the_first_is_scored_once(model: partwise.Transformer, count: int, context: int) -> None:
    ids = np.random.default_rng(count).integers(0, 19, count).astype(np.uint8)
    losses = []
    with torch.no_grad():
        for start in range(0, count - 1, context):  # one window at a time, written out
            window = torch.from_numpy(ids[start : start + context + 1].astype(np.int64))
            losses.append(F.cross_entropy(model.eval()(window[None, :-1])[0], window[1:], reduction="none"))
    expected = torch.cat(losses)
    assert len(expected) == count - 1
    assert split_loss(model, ids, context) == pytest.approx(expected.mean().item(), rel=1e-6)


def test_evaluation_is_repeatable_and_leaves_the_mode(problems: list[str]) -> None:
    model = partwise.Transformer(partwise.preset("toy", *TINY, "positions=learned", vocab_size=19)).train()
    ids = np.random.default_rng(0).integers(0, 19, 500).astype(np.uint8)
    assert split_loss(model, ids, 48) == split_loss(model, ids, 48)  # dropout is off
    assert model.training
    with evaluating(model, "float32"):
        assert not model.training
    model.eval()
    split_loss(model, ids, 48)
    assert not model.training


def test_the_documents_estimator_draws_new_batches_at_each_step(model: partwise.Transformer) -> None:
    ids = np.random.default_rng(0).integers(0, 19, 3000).astype(np.uint8)
    arguments = {"size": 4, "key": "k", "seed": 0, "precision": "float32"}
    first, again, later = (random_batches_loss(model, Windows(ids, 16), step=step, **arguments) for step in (0, 0, 1))
    assert first == again != later
    assert first == pytest.approx(split_loss(model, ids, 16), abs=0.05)


def test_units() -> None:
    score = Score(math.log(2), tokens=10, bytes=20)
    assert score.bits_per_byte == pytest.approx(0.5)
    assert score.perplexity == pytest.approx(2)


def test_greedy_answers_are_those_of_the_documents_loop(model: partwise.Transformer, problems: list[str]) -> None:
    """One at a time and uncached, as the tutorial does it; the most likely character instead of a drawn one."""
    tokenizer = Characters().build(CORPUS)
    answers = answer_problems(model, tokenizer, problems, temperature=0)

    def certain(ids: torch.Tensor) -> torch.Tensor:  # all probability on the most likely character
        logits = model(ids)
        return torch.full_like(logits, -1e9).scatter(-1, logits.argmax(-1, keepdim=True), 0.0)

    scores = score_arithmetic(certain, problems, context=48, limit=40)
    found = accuracy(problems, answers)
    assert found.characters_closed.share == pytest.approx(scores.character_accuracy, abs=1e-12)
    assert found.exact.share == pytest.approx(scores.exact_match, abs=1e-12)


def test_sampled_answers_have_the_documents_distribution(model: partwise.Transformer, problems: list[str]) -> None:
    tokenizer = Characters().build(CORPUS)
    answers = answer_problems(model, tokenizer, problems * 20, temperature=1.0, seed=1)
    ours = accuracy(problems * 20, answers).characters_closed
    scores = score_arithmetic(model, problems, context=48, limit=40, generator=torch.Generator().manual_seed(0))
    total = 11 * len(problems)
    test = binomtest(round(scores.character_accuracy * total), total, ours.share)
    assert test.pvalue > 1e-4


def test_answers_do_not_depend_on_their_company(model: partwise.Transformer, problems: list[str]) -> None:
    tokenizer = Characters().build(CORPUS)
    together = answer_problems(model, tokenizer, problems[:7], temperature=1.0)
    assert together[:1] == answer_problems(model, tokenizer, problems[:1], temperature=1.0)


def test_what_follows_the_end_counts_as_the_end() -> None:
    problems = ["$(1+1)=2000$", "$(9-1)=8000$"]
    found = accuracy(problems, ["2$$$$", "80x0$"])
    assert (found.characters_closed.right, found.characters_closed.total) == (2 + 4, 10)
    assert (found.characters.right, found.characters.total) == (1 + 3, 8)
    assert found.exact.right == 0
    assert accuracy(problems, ["2000$", "8000$"]).exact.right == 2


def test_operations_are_told_apart_from_signs() -> None:
    assert [operation(f"$({text})=1$") for text in ("10+2", "3-4", "2*2", "7/7")] == ["+", "-", "*", "/"]
    by_operation = accuracy_by_operation(["$(1+1)=2$", "$(9-1)=8$"], ["2$", "7$"])
    assert by_operation["+"].exact.share == 1
    assert by_operation["-"].exact.share == 0
    assert by_operation["all"].exact.share == 0.5


@given(st.integers(0, 200), st.integers(1, 200))
def test_wilson_interval(right: int, total: int) -> None:
    right = min(right, total)
    low, high = Share(right, total).interval()
    expected = binomtest(right, total).proportion_ci(method="wilson")
    assert low == pytest.approx(expected.low, abs=1e-12)
    assert high == pytest.approx(expected.high, abs=1e-12)


def test_floors_stand_beside_the_data_once_computed() -> None:
    dataset = prepare(CORPUS, TokenizerRecipe.resolve("characters"))
    floors = dataset_floors(dataset)
    assert set(floors) == {
        "unigram",
        "kneser_ney",
        "context",
        "fitted_tokens",
        "most_frequent_closed",
        "most_frequent",
        "constant_answer",
    }
    assert floors["fitted_tokens"] == len(dataset.split("train"))
    assert 0 < floors["kneser_ney"] < floors["unigram"] < math.log(19)
    assert floors["most_frequent"] < floors["most_frequent_closed"]
    assert dataset_floors(dataset) == floors

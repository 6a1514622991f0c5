"""Training on arithmetic answers, and the `calculate` command."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from command_line import run
from partwise.baselines.references import unigram_loss
from partwise.cli.commands import calculate
from partwise.cli.commands.calculate import format_problem, parse_answer
from partwise.config import ConfigError
from partwise.data import (
    IGNORE_INDEX,
    Arithmetic,
    Dataset,
    Examples,
    ProblemSpec,
    build_examples,
    generate_problems,
    prepare,
    solve,
)
from partwise.data.batches import random_indices
from partwise.data.problems import split_problems
from partwise.evaluate.references import dataset_references, target_ids
from partwise.tokenizers import BPE, Characters
from partwise.train.config import RunConfig
from partwise.train.loop import Run

Tiny = Callable[..., RunConfig]
FORMATS = st.fixed_dictionaries(
    {
        "padding": st.sampled_from([0, 10, 12]),
        "operations": st.sampled_from(["+-", "+-*/", "/"]),
        "reverse": st.booleans(),
        "limit": st.sampled_from([9, 1000]),
    }
)


def prepared(**options: Any) -> Dataset:
    return prepare(Arithmetic(**{"train": 200, "validation": 30, "test": 10} | options), Characters())


def answers(text: str) -> np.ndarray:
    """Mask of the characters after `=` up to and including the closing `$`, found in the text."""
    flags = np.zeros(len(text), dtype=bool)
    for match in re.finditer(r"=([^$]*\$)", text):
        flags[match.start(1) : match.end(1)] = True
    return flags


def training(dataset: Dataset, context: int) -> Examples:
    return build_examples(dataset, "train", context, context)


@given(FORMATS, st.integers(0, 60), st.integers(0, 9), st.booleans())
def test_an_aligned_row_is_whole_problems(options: dict[str, Any], more: int, step: int, answer: bool) -> None:
    dataset = prepared(**options, aligned=True, answer_only_loss=answer)
    context = dataset.corpus.max_line_length() - 1 + more
    text = dataset.tokenizer.decode(dataset.split("train"))
    batch = training(dataset, context).batch("key", 3, step, 8)
    for inputs, targets in zip(batch.inputs, batch.targets, strict=True):
        # the ids that fill a row up are no targets, and the last target of a row is the `$` that closes it
        length = int(np.flatnonzero(targets != IGNORE_INDEX)[-1]) + 1
        row = dataset.tokenizer.decode(inputs[:length]) + dataset.tokenizer.decode(targets[length - 1 : length])
        lines = split_problems(row)
        assert row in text and set(lines) <= set(split_problems(text)) and len(row) <= context + 1
        follows = text[text.index(row) + len(row) :]
        assert not follows or len(row) + follows[1:].index("$") + 2 > context + 1, "another problem would have fitted"
        expected = answers(row)[1:] if answer else np.ones(length, dtype=bool)
        assert np.array_equal(targets[:length] != IGNORE_INDEX, expected)
        assert np.array_equal(targets[:length][expected], dataset.tokenizer.encode(row)[1:][expected])
        assert (targets[length:] == IGNORE_INDEX).all()


@given(FORMATS, st.integers(1, 90), st.integers(0, 9))
def test_answers_are_found_in_windows_that_begin_anywhere(options: dict[str, Any], context: int, step: int) -> None:
    dataset = prepared(**options, answer_only_loss=True)
    ids = dataset.split("train")
    flags = answers(dataset.tokenizer.decode(ids))
    batch = training(dataset, context).batch("key", 3, step, 8)
    plain = build_examples(prepared(**options), "train", context, context).batch("key", 3, step, 8)
    assert np.array_equal(batch.inputs, plain.inputs), "both arms of a comparison read the same windows"
    starts = random_indices(len(ids) - context, "key", 3, step, 8)
    expected = np.stack([flags[start + 1 : start + context + 1] for start in starts])
    assert np.array_equal(batch.targets, np.where(expected, plain.targets, IGNORE_INDEX))


def test_every_problem_and_the_only_window_can_be_sampled() -> None:
    dataset = prepared(train=3, aligned=True, answer_only_loss=True)
    seen = {dataset.tokenizer.decode(row[:35]) + "$" for row in training(dataset, 35).batch("key", 0, 0, 64).inputs}
    assert seen == set(split_problems(dataset.tokenizer.decode(dataset.split("train"))))
    windows = training(prepared(train=3, answer_only_loss=True), 107)  # a single window fits: the whole text
    assert windows.batch("key", 0, 0, 2).n_targets == 2 * 33


def test_alignment_and_answer_only_loss_change_no_shards_and_alignment_no_evaluation() -> None:
    plain, aligned, answers_only = prepared(), prepared(aligned=True), prepared(aligned=True, answer_only_loss=True)
    assert (plain.folder, plain.hash) == (aligned.folder, aligned.hash) == (answers_only.folder, answers_only.hash)
    for split in ("train", "val"):
        sides = [list(build_examples(dataset, split, 40, 40).eval_batches()) for dataset in (plain, aligned)]
        for one, other in zip(*sides, strict=True):
            assert np.array_equal(one.inputs, other.inputs) and np.array_equal(one.targets, other.targets)
    validation = build_examples(answers_only, "val", 40, 40)
    assert (
        training(answers_only, 40).truncate_like(validation).ids.tolist()
        == answers_only.split("train")[: 30 * 36].tolist()
    )  # type: ignore[attr-defined]


@given(FORMATS, st.integers(-30, 90), st.booleans())
def test_every_answer_is_scored_once_after_its_own_problem(options: dict[str, Any], more: int, aligned: bool) -> None:
    dataset = prepared(**options, aligned=aligned, answer_only_loss=True)
    context = max(1, dataset.corpus.max_line_length() - 1 + (max(0, more) if aligned else more))
    text = dataset.tokenizer.decode(dataset.split("val"))
    found = []
    for batch in build_examples(dataset, "val", context, context).eval_batches():
        assert batch.inputs.shape[1] <= context
        for inputs, targets in zip(batch.inputs, batch.targets, strict=True):
            positions = np.flatnonzero(targets != IGNORE_INDEX)
            row = dataset.tokenizer.decode(inputs[: positions[-1] + 1]) + "$"
            assert row in text
            written = "".join(np.array([*row[1:]])[positions])
            if row.startswith("$"):
                lines = split_problems(row)
                assert written == "".join(line[line.index("=") + 1 :] for line in lines)
                follows = text[text.index(row) + len(row) :]
                assert not follows or len(row) + follows[1:].index("$") + 2 > context + 1, "another would have fitted"
            else:  # the end of a problem that is longer than the context
                assert len(row) == context + 1 and "$" not in row[:-1] and len(split_problems("$" + row)) == 1
            found.append(written)
    if more >= 0:
        assert "".join(found) == "".join(np.array([*text])[answers(text)])


def test_only_the_end_of_an_answer_longer_than_the_context_is_scored() -> None:
    dataset = prepared(answer_only_loss=True)
    (batch,) = build_examples(dataset, "val", 4, 4).eval_batches()
    assert (batch.targets != IGNORE_INDEX).all() and batch.n_targets == 30 * 4
    lines = split_problems(dataset.tokenizer.decode(dataset.split("val")))
    assert [dataset.tokenizer.decode(row) for row in batch.targets] == [line[-4:] for line in lines]


def test_references_for_answer_only_loss_are_computed_on_answers() -> None:
    plain, answers_only = prepared(), prepared(answer_only_loss=True)
    text = answers_only.tokenizer.decode(answers_only.split("val"))
    assert answers_only.tokenizer.decode(target_ids(answers_only, "val")) == "".join(np.array([*text])[answers(text)])
    assert target_ids(plain, "val").tolist() == plain.split("val").tolist()
    references = [dataset_references(dataset) for dataset in (plain, answers_only, plain)]
    assert references[0] == references[2] != references[1]
    ids = [target_ids(answers_only, split) for split in ("train", "val")]
    assert references[1]["ngrams"][0] == [1, unigram_loss(*ids, answers_only.vocab_size)]


def test_targets_per_batch_and_epochs() -> None:
    aligned, all_of_it = prepared(aligned=True, answer_only_loss=True), prepared(aligned=True)
    assert training(aligned, 35).targets_per_batch(4) == 44 and training(all_of_it, 35).targets_per_batch(4) == 140
    assert training(aligned, 35).epochs(200 * 11) == pytest.approx(1) == training(all_of_it, 35).epochs(200 * 35)
    windows = training(prepared(answer_only_loss=True), 72)
    assert windows.targets_per_batch(100) == pytest.approx(2200, rel=0.02)
    assert windows.epochs(200 * 11) == pytest.approx(1, rel=0.03)


def test_invalid_answer_only_or_aligned_data_are_refused(tiny: Tiny) -> None:
    with pytest.raises(ConfigError, match=r"train\.seq_len=34 .* at least 35"):
        training(prepared(aligned=True), 34)
    dataset = prepare(Arithmetic(train=50, validation=5, test=5, answer_only_loss=True), BPE(vocab_size=300))
    with pytest.raises(ConfigError, match="tokenizer=characters"):
        training(dataset, 40)
    with pytest.raises(ConfigError, match="answer_only_loss"):
        tiny("data.answer_only_loss=question")
    with pytest.raises(ConfigError, match="aligned"):
        tiny("data=arithmetic_pairs", "data.aligned=true", "encoder_layers=1")


@pytest.mark.parametrize("context", [3, 40])
def test_training_on_answers(tiny: Tiny, context: int) -> None:
    """A batch of one short window often has no target; such a step must neither fail nor change anything."""
    words = [
        "data.answer_only_loss=true",
        "train.batch_size=1",
        "context_length=40",
        f"train.seq_len={context}",
        "train.steps=12",
    ]
    steps = list(Run(tiny(*words)).steps())
    assert len(steps) == 12 and all(np.isfinite(step.loss) for step in steps)
    assert any(step.tokens == 0 for step in steps) == (context == 3)


def test_the_loss_is_the_mean_over_answers(tiny: Tiny) -> None:
    run = Run(tiny("data.answer_only_loss=true", "data.aligned=true", "context_length=36"))
    batch = run.batch()
    assert batch.inputs.shape == (4, 35) and batch.n_targets == 44
    log_probs = run.model.eval()(torch.from_numpy(batch.inputs)).log_softmax(-1).detach().numpy()[:, 24:]
    rows, positions = np.indices((4, 11))
    expected = -log_probs[rows, positions, batch.targets[:, 24:]].mean()
    assert run.loss(batch).item() == pytest.approx(expected, rel=1e-6)


# calculate


@given(FORMATS, st.integers(0, 99))
def test_expressions_are_formatted_as_in_the_data(options: dict[str, Any], seed: int) -> None:
    problems = ProblemSpec(**options)
    text = generate_problems(problems, train=5, validation=1, test=1, seed=seed)["train"].tobytes().decode("ascii")
    for line in split_problems(text):
        question, _, answer = line.partition("=")
        first, operation, second = re.split(r"([-+*/])", question[2:-1])
        shortest = f"  {first.lstrip('0')}{operation} {second.lstrip('0')} "
        for expression in (f"{first}{operation}{second}", shortest):
            assert format_problem(problems, expression) == f"{question}="
        assert parse_answer(problems, answer[:-1]) == solve(f"{question}=", problems.decimals)


@pytest.mark.parametrize(
    ("written", "number"),
    [
        ("87.3661000", "1663.78"),
        ("41.431-000", "-134.14"),
        ("0000000000", "0"),
        ("5.00000000", "0.5"),
        ("0010000000", "100"),
        ("05.1000000", "1.50"),  # not the format of 1.5 in the data
        ("4-1.430000", "000034.1-4"),  # not a number
        ("(5", "5("),
        ("", ""),
    ],
)
def test_answers_are_parsed_as_numbers(written: str, number: str) -> None:
    assert parse_answer(ProblemSpec(), written) == number


TINY = "d_model=8 n_layers=1 attention.n_heads=2 train.batch_size=2 train.steps=1 train.threads=1 data.validation=5"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("calculator")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        (folder / "text.txt").write_text("the quick brown fox jumps over the lazy dog. " * 60)
        few = [*TINY.split(), "data.train=50", "data.test=5"]
        sums = [*few, "data.operations=+-", "data.answer_only_loss=true"]
        assert run(patch, "train", "calculator-direct", *sums, "--name", "sums") == 0
        assert run(patch, "train", "calculator", *few, "data.operations=+-", "--name", "worked") == 0
        pairs = [*few, "encoder_layers=1", "--data", "arithmetic_pairs"]
        assert run(patch, "train", "mingpt", *pairs, "--name", "pairs") == 0
        text = [*TINY.split()[:-1], "--data", "text.txt"]
        assert run(patch, "train", "mingpt", *text, "--name", "prose") == 0
    return folder


@pytest.mark.parametrize(
    ("name", "expression", "parts"),
    [
        ("sums", "12..5", ["12..5", "12.5 * 3"]),
        ("sums", "", ["is not an expression"]),
        ("sums", "1 2 + 3", ["1 2 + 3"]),
        ("sums", "1 + 2 + 3", ["1 + 2 + 3"]),
        ("sums", "-1 + 2", ["'-1"]),
        ("sums", "٣ + 1", ["is not an expression"]),
        ("sums", "2 * 3", ["+ - only", "*"]),
        ("sums", "0 + 3", ["above 0", "1000"]),
        ("sums", "1000.01 + 3", ["1000.01"]),
        ("sums", f"{'9' * 5000} + 3", ["up to 1000"]),
        ("sums", "1.005 + 3", ["2 decimals", "1.005"]),
        ("pairs", "1/0", ["above 0", "not 0"]),
        ("prose", "1 + 1", ["prose", "data=text", "arithmetic"]),
        ("nothing", "1 + 1", ["nothing"]),
    ],
)
def test_bad_expressions_are_one_line(
    runs: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    name: str,
    expression: str,
    parts: list[str],
) -> None:
    monkeypatch.chdir(runs)
    assert run(monkeypatch, "calculate", name, "1 + 1", expression) == 2
    out, err = capsys.readouterr()
    assert err.count("\n") == 1 and not out and all(part in err for part in parts), err


@pytest.mark.parametrize("name", ["sums", "pairs"])
def test_calculate(runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str) -> None:
    monkeypatch.chdir(runs)
    assert run(monkeypatch, "calculate", name, "12.50 +3", " 2 - 136.22") == 0
    out = capsys.readouterr().out
    assert re.search(r"12\.50 \+3 .* 15\.5 +wrong", out) and re.search(r"2 - 136\.22 .* -134\.22 +wrong", out)
    seen_prompts: list[str] = []

    def oracle(model: Any, tokenizer: Any, prompts: list[str], **settings: Any) -> list[str]:
        seen_prompts.extend(prompts)
        assert settings["temperature"] == 0 and settings["max_new_tokens"] == 11
        return ["5.51000000" + (settings["stop"] or ""), "42.431-000"]

    monkeypatch.setattr(calculate, "generate", oracle)
    assert run(monkeypatch, "calculate", name, "12.50 +3", " 2 - 136.24") == 0
    out = capsys.readouterr().out
    assert out.count("correct") == 2 and out.count("-134.24") == 2 and "wrong" not in out
    plain = ["00000012.5+0000000003", "0000000002-0000136.24"]
    assert seen_prompts == (plain if name == "pairs" else [f"$({prompt})=" for prompt in plain])


def test_calculate_with_steps(runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """What follows the last `=` is the answer; --steps shows what is before it, and is refused without steps."""
    monkeypatch.chdir(runs)

    def oracle(model: Any, tokenizer: Any, prompts: list[str], **settings: Any) -> list[str]:
        assert settings["max_new_tokens"] == 40 and settings["stop"] == "$"  # a difference with its two rows
        return ["052100+003000=0551000=5.51000000$", "no answer"]

    monkeypatch.setattr(calculate, "generate", oracle)
    assert run(monkeypatch, "calculate", "worked", "12.50 +3", "2 - 136.24") == 0
    out = capsys.readouterr().out
    assert re.search(r"12\.50 \+3 +15\.5 +15\.5 +correct", out) and "wrong" in out and "052100" not in out
    assert run(monkeypatch, "calculate", "worked", "12.50 +3", "2 - 136.24", "--steps") == 0
    assert "12.50 +3\n  052100+003000=0551000\n" in capsys.readouterr().out
    assert run(monkeypatch, "calculate", "sums", "12.50 +3", "--steps") == 2
    assert "data.steps=true" in capsys.readouterr().err


def test_a_run_stores_its_loss_options(runs: Path) -> None:
    card = json.loads((runs / "runs" / "sums" / "run.json").read_text())
    assert (card["config"]["data"]["aligned"], card["config"]["data"]["answer_only_loss"]) == (True, True)

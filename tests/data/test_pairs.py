"""Sequence pairs: stored, sampled, scored, trained on and answered with an encoder-decoder."""

import contextlib
import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import partwise
from partwise.data import IGNORE_INDEX, SequencePairs, build_examples, prepare, problem_lines
from partwise.data.corpora import Corpus
from partwise.evaluate.arithmetic import answer_problems
from partwise.evaluate.loss import mean_loss
from partwise.generation.beam_search import beam_search
from partwise.generation.generate import generate
from partwise.tokenizers import TokenizerRecipe
from partwise.train.config import RunConfig, run_config
from partwise.train.loop import Run
from partwise.train.metrics import read_metrics
from partwise.train.run_folder import Interrupted, RunFolder

NUMBERS = """
    d_model=16 n_layers=1 encoder_layers=1 attention.n_heads=2 ffn.hidden=24 context_length=24
    train.batch_size=8 train.steps=6 train.eval_every=3 train.save_every=2
    train.precision=float32 train.device=cpu schedule.warmup=3 data.train=300 data.validation=20 data.test=20
"""
SMALL = NUMBERS.split()


def small(*words: str, data: str = "arithmetic_pairs") -> RunConfig:
    selected = [word for word in SMALL if data == "arithmetic_pairs" or not word.startswith("data.")]
    return run_config("original", *selected, *words, data=data)


def write(path: Path, pairs: list[tuple[str, str]]) -> str:
    lines = [json.dumps({"source": a, "target": b}) if path.suffix == ".jsonl" else f"{a}\t{b}" for a, b in pairs]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(path)


WORDS = [("eins", "one"), ("zwei", "two"), ("drei", "three"), ("vier", "four"), ("fünf", "five")] * 4


@pytest.mark.parametrize("padding", [10, 0])
def test_arithmetic_pairs_are_the_problems_of_arithmetic(padding: int) -> None:
    options = {"train": 50, "validation": 10, "test": 12, "padding": padding}
    characters = TokenizerRecipe.resolve("characters")
    lines = [
        prepare(Corpus.resolve({"part": name, **options}), characters) for name in ("arithmetic", "arithmetic_pairs")
    ]
    for split in ("train", "val", "test"):
        assert problem_lines(lines[0], split) == problem_lines(lines[1], split)
        assert (
            problem_lines(lines[0], split, 3) == problem_lines(lines[1], split, 3) == problem_lines(lines[0], split)[:3]
        )
    predicted = sum(len(line.split("=")[1]) - 1 for line in problem_lines(lines[1], "val"))
    assert lines[1].bytes("val") == predicted


def test_arithmetic_pairs_are_encoded_row_by_row_if_ids_stand_for_several_characters() -> None:
    sizes = {"train": 2000, "validation": 10, "test": 12}
    tokenizers = [{"part": "bpe", "vocab_size": 300}, "characters"]
    found = [
        prepare(Corpus.resolve({"part": "arithmetic_pairs", **sizes}), TokenizerRecipe.resolve(t)) for t in tokenizers
    ]
    assert problem_lines(found[0], "val") == problem_lines(found[1], "val")
    assert len(found[0].split("train")) < len(found[1].split("train")) and found[0].bytes("val") == found[1].bytes(
        "val"
    )


@pytest.mark.parametrize("suffix", [".tsv", ".jsonl"])
@pytest.mark.parametrize("tokenizer", ["characters", "bytes"])
def test_pair_files_round_trip(suffix: str, tokenizer: str, tmp_path: Path) -> None:
    path = write(tmp_path / f"words{suffix}", WORDS)
    dataset = prepare(Corpus.resolve({"part": "pairs", "path": path}), TokenizerRecipe.resolve(tokenizer))
    found = [build_examples(dataset, split, 8, 16).texts(dataset.tokenizer) for split in ("train", "val")]
    assert found == [WORDS[:18], WORDS[18:]]


def test_data_accepts_a_pair_file_and_sets_the_vocabulary(tmp_path: Path) -> None:
    config = small(data=write(tmp_path / "words.tsv", WORDS))
    assert config.data.to_dict() == {"part": "pairs", "path": str(tmp_path / "words.tsv")}
    alphabet = len(set("".join(a + b for a, b in WORDS)))
    assert config.model.vocab_size == alphabet + 3 and config.model.padding_idx == alphabet


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.tsv", "one\ttwo\nthree\n", "line 2: 'three' is not a pair: write SOURCE<tab>TARGET"),
        ("a.tsv", "one\ttwo\r\nthree\r\n", "line 2: 'three' is not a pair"),
        ("a.tsv", "one\ttwo\tthree\nx\ty\n", "line 1: 'one\\ttwo\\tthree' is not a pair"),
        ("a.tsv", "one\t\nx\ty\n", "neither of them empty"),
        ("a.tsv", "one\ttwo\n", "has 1 pairs: must have at least 2"),
        ("a.jsonl", '{"source": "a"}\n{"source": "a", "target": "b"}\n', 'write {"source": "...", "target": "..."}'),
        ("a.jsonl", '{"source": 3, "target": "b"}\n', "line 1"),
        ("a.jsonl", "[" * 5000, "line 1"),
    ],
)
def test_invalid_pair_lines_are_named(name: str, content: str, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(partwise.ConfigError) as caught:
        prepare(Corpus.resolve({"part": "pairs", "path": str(tmp_path / name)}), TokenizerRecipe.resolve("bytes"))
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_pairs_that_do_not_fit_the_model_are_refused(tmp_path: Path) -> None:
    for words, data, message in (
        (["encoder_layers=0"], "arithmetic_pairs", "set encoder_layers"),
        ([], "arithmetic", "use pairs, such as data=arithmetic_pairs"),
    ):
        with pytest.raises(partwise.ConfigError, match=message):
            small(*words, data=data)
    with pytest.raises(partwise.ConfigError, match=r"the source of pair 1 has 21 tokens, more than context_length=12"):
        Run(small("context_length=12"))
    ids = np.array([1, 2, 8, 3, 9, 4, 8, 5])  # the last target has no end
    with pytest.raises(partwise.ConfigError, match="2 sources do not match 1 targets"):
        SequencePairs(ids, 7, 8, 9, 16)


def test_every_target_is_scored_once_and_padding_is_not() -> None:
    run = Run(small())
    pairs = build_examples(run.dataset, "val", 1, 24)
    assert isinstance(pairs, SequencePairs)
    seen: list[tuple[list[int], list[int]]] = []
    for one in pairs.eval_batches():
        for source, inputs, targets in zip(one.source, one.inputs, one.targets, strict=True):
            real = targets != IGNORE_INDEX
            assert inputs[0] == pairs.bos_id and targets[real][-1] == pairs.eos_id
            assert np.array_equal(inputs[1:][real[1:]], targets[real][:-1]) and (inputs[~real] == pairs.pad_id).all()
            seen.append((source[source != pairs.pad_id].tolist(), targets[real][:-1].tolist()))
    tokenizer = run.dataset.tokenizer
    assert sorted((tokenizer.decode(a), tokenizer.decode(b)) for a, b in seen) == sorted(pairs.texts(tokenizer))


def uneven(tmp_path: Path) -> str:
    """Pairs of very different lengths."""
    return write(tmp_path / "uneven.tsv", [("a" * (1 + n % 7), "b" * (1 + n * n % 13)) for n in range(40)])


def test_the_loss_equals_that_of_separate_pairs(tmp_path: Path) -> None:
    run = Run(small(data=uneven(tmp_path)))
    model, pairs = run.model.double().eval(), build_examples(run.dataset, "train", 1, 24)
    assert isinstance(pairs, SequencePairs)
    total, count = 0.0, 0
    for start, bos, eos in zip(pairs.starts, pairs.bos_indices, pairs.eos_indices, strict=True):
        source, target = (
            torch.tensor(np.array(pairs.ids[a:b], dtype=np.int64)) for a, b in ((start, bos), (bos, eos + 1))
        )
        log_p = model(target[None, :-1], source=source[None])[0].log_softmax(-1)
        total -= log_p.gather(-1, target[1:, None]).sum().item()
        count += len(target) - 1
    assert mean_loss(model, pairs.eval_batches()) == pytest.approx(total / count, rel=1e-6)


@pytest.mark.parametrize("grad_accumulation", [2, 4, 8])
def test_gradients_do_not_depend_on_grad_accumulation(grad_accumulation: int, tmp_path: Path) -> None:
    """Means of micro-batches of unequal targets must not be averaged (transformers 34191)."""
    words = ["attention.dropout=0", "ffn.hidden_dropout=0", "residual.dropout=0", "embed_dropout=0"]
    found = []
    for number in (1, grad_accumulation):
        run = Run(small(*words, f"train.grad_accumulation={number}", "train.label_smoothing=0", data=uneven(tmp_path)))
        run.model.double()
        run.optimizer = run.config.optimizer.build(run.model, run.config.train.lr)
        seen: dict[str, torch.Tensor] = {}
        run.optimizer.step = lambda seen=seen, run=run: seen.update(  # type: ignore[method-assign, misc]
            {name: parameter.grad.clone() for name, parameter in run.model.named_parameters()}
        )
        step = run.update()
        assert step.tokens == run.examples.batch(run.dataset.hash, 0, 0, 8).n_targets
        found.append(seen)
    largest = max(gradient.abs().max() for gradient in found[0].values())
    for name, gradient in found[0].items():
        assert (gradient - found[1][name]).abs().max() <= 1e-12 * largest, name


def test_label_smoothing_equals_its_equation() -> None:
    """(1 - s) times the cross-entropy plus s times the mean over the vocabulary. Szegedy et al. 2016, arXiv:1512.00567."""
    run = Run(small("train.label_smoothing=0.3"))
    run.model.double().eval()
    one = run.batch()
    log_p = run.model(torch.from_numpy(one.inputs), source=torch.from_numpy(one.source)).log_softmax(-1)
    targets = torch.from_numpy(one.targets)
    real = targets != IGNORE_INDEX
    plain = -log_p.gather(-1, targets.clamp(min=0)[..., None])[..., 0][real].mean()
    even = -log_p.mean(-1)[real].mean()
    assert run.loss(one).item() == pytest.approx((0.7 * plain + 0.3 * even).item(), rel=1e-12)


def test_a_resumed_run_equals_an_uninterrupted_run(tmp_path: Path) -> None:
    whole = RunFolder(tmp_path / "whole", small())
    losses = [event.loss for event in whole.events() if hasattr(event, "grad_norm")]
    resumed: list[float] = []
    while len(resumed) < 6:
        run = RunFolder(tmp_path / "parts", small())
        run.stop_requested = True
        with contextlib.suppress(Interrupted):
            for _ in run.events():
                pass
            resumed = [line["loss"] for line in read_metrics(tmp_path / "parts") if line["kind"] == "step"]
    assert resumed == losses
    for (name, a), b in zip(whole.run.model.state_dict().items(), run.run.model.state_dict().values(), strict=True):
        assert torch.equal(a, b), name


def test_greedy_answers_equal_those_of_full_forward_passes() -> None:
    run = Run(small())
    model, tokenizer = run.model.eval(), run.dataset.tokenizer
    problems = problem_lines(run.dataset, "test", 6)
    answers = answer_problems(model, tokenizer, problems, temperature=0)
    for problem, answer in zip(problems, answers, strict=True):
        source = torch.from_numpy(tokenizer.encode(problem[2 : problem.index(")=")]))[None]
        ids = [tokenizer.bos_id]
        for _ in range(11):
            ids.append(model(torch.tensor([ids]), source=source)[0, -1].argmax().item())
        text = ids[1 : ids.index(tokenizer.eos_id)] if tokenizer.eos_id in ids else ids[1:]
        assert answer == tokenizer.decode(text).ljust(11, "$")
        assert generate(model, tokenizer, [problem[2 : problem.index(")=")]], max_new_tokens=11, temperature=0)[
            0
        ] == tokenizer.decode(text)


# beam search


def tiny_model(encoder_layers: int = 1, vocab: int = 4) -> partwise.Transformer:
    values: dict[str, Any] = {
        "vocab_size": vocab,
        "d_model": 8,
        "n_layers": 1,
        "encoder_layers": encoder_layers,
        "context_length": 8,
        "attention": {"part": "multihead", "n_heads": 2},
    }
    model = partwise.Transformer(partwise.ModelConfig.from_dict(values), seed=5).double().eval()
    with torch.no_grad():
        model.head.weight.mul_(12)  # so that greedy search does not find the best sequence
    return model


def best_by_enumeration(
    model: partwise.Transformer, prompt: Any, source: Any, end: int, length: int, penalty: float
) -> list[int]:
    """The best of all continuations, by enumeration."""
    found = []
    V = model.config.vocab_size
    for size in range(1, length + 1):
        for ids in itertools.product(range(V), repeat=size):
            if end in ids[:-1] or (ids[-1] != end and size < length):
                continue
            row = torch.cat([prompt, torch.tensor([ids])], dim=1)
            log_p = model(row[:, :-1], source=source)[0].log_softmax(-1)[prompt.shape[1] - 1 :]
            score = log_p.gather(-1, torch.tensor(ids)[:, None]).sum().item()
            found.append((score / ((5 + size) / 6) ** penalty, list(ids)))
    return max(found)[1]


@pytest.mark.parametrize("penalty", [0.0, 0.6, 2.0])
@pytest.mark.parametrize("encoder_layers", [0, 1])
@torch.no_grad()
def test_a_wide_beam_finds_the_best_of_all_continuations(encoder_layers: int, penalty: float) -> None:
    model, end = tiny_model(encoder_layers), 2
    differs = 0
    for start in range(4):
        prompt, source = torch.tensor([[start]]), torch.tensor([[1, 3, start]]) if encoder_layers else None
        expected = best_by_enumeration(model, prompt, source, end, 4, penalty)
        found = beam_search(
            model, prompt, num_beams=64, max_new_tokens=4, eos_id=end, length_penalty=penalty, source=source
        )
        assert found == expected
        greedy = beam_search(
            model, prompt, num_beams=1, max_new_tokens=4, eos_id=end, length_penalty=penalty, source=source
        )
        ids = prompt
        while ids.shape[1] < 5 and (ids.shape[1] == 1 or ids[0, -1] != end):
            ids = torch.cat([ids, model(ids, source=source)[:, -1].argmax(-1, keepdim=True)], dim=1)
        assert greedy == ids[0, 1:].tolist()
        differs += greedy != expected
    assert differs  # otherwise the test could not distinguish beam search from greedy search


def test_beam_search_refuses_invalid_arguments() -> None:
    model = tiny_model(0)
    with pytest.raises(partwise.ConfigError, match="beams=0: must be at least 1"):
        beam_search(model, torch.tensor([[0]]), num_beams=0, max_new_tokens=2, eos_id=None)
    with pytest.raises(partwise.ConfigError, match="do not fit context_length=8"):
        beam_search(model, torch.tensor([[0]]), num_beams=2, max_new_tokens=9, eos_id=None)

"""Scores of `lm_eval` on our models equal what the model computes item by item, and our own scores."""

import json
import math
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import partwise
from partwise import ConfigError
from partwise.cli import main
from partwise.data import problem_lines
from partwise.evaluate.arithmetic import accuracy_by_operation, answer_problems
from partwise.generation.generate import generate
from partwise.harness.tasks import score_tasks
from partwise.tokenizers import CharacterTokenizer, Tokenizer, WithSpecialTokens
from partwise.train.config import run_config
from partwise.train.run_folder import RunFolder
from recipes import VOCAB, perturbed
from tokenizer_kinds import KINDS

lm_eval = pytest.importorskip("lm_eval", reason="lm_eval is an optional dependency")
pytestmark = pytest.mark.filterwarnings("ignore")  # of lm_eval and what it imports

from lm_eval.api.instance import Instance  # noqa: E402

from partwise.harness import language_model  # noqa: E402
from partwise.harness.language_model import PartwiseLM  # noqa: E402

SIZES = {"vocab_size": VOCAB, "context_length": 12, "d_model": 8, "n_layers": 2}
MODELS = [
    {"attention": {"part": "multihead", "window": 5}},
    {"positions": "learned", "residual": "post", "ffn": "moe", "short_conv": "conv"},
    {"attention": {"part": "mla", "n_heads": 2}, "ngram_embeddings": "hashed"},
    {"encoder_layers": 1, "padding_idx": VOCAB - 3},
]
LETTERS = "\nabcdefghij"


def requests(kind: str, arguments: list[tuple[Any, ...]]) -> list[Instance]:
    return [Instance(kind, {}, args, index) for index, args in enumerate(arguments)]


@pytest.fixture(params=MODELS, ids=["window", "moe", "mla", "pairs"])
def lm(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> PartwiseLM:
    """A random model in float64 as a language model of the harness, with small batches."""
    model = perturbed(partwise.ModelConfig.from_dict({**SIZES, **request.param}))
    tokenizer: Tokenizer = CharacterTokenizer(LETTERS)
    if model.encoder:
        tokenizer = WithSpecialTokens(CharacterTokenizer(LETTERS[:8]))
    trained = SimpleNamespace(model=model, tokenizer=tokenizer, runtime=SimpleNamespace(precision="float32"))
    monkeypatch.setattr(language_model, "open_trained", lambda run, precision: trained)
    return PartwiseLM(run="a random model", batch_size=3)


ITEMS = [
    ("abca", "bcd"), ("abca", "bce"), ("abca", "d"), ("abca", "e"), ("gfed", "ab"), ("gfed", "c"),  # several a context
    ("a", "b"), ("abcdefgabcdefg", "abc"), ("abcdefgabcdefg", "d"), ("bcdefg", "abcdef"), ("abca", "bcd"), ("", "ab"),
]  # fmt: skip


def test_a_precision_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ConfigError, match="precision=float8: must be float32 or bfloat16"):
        PartwiseLM(run="runs/none", precision="float8")


def test_log_probabilities_equal_those_of_each_item_alone(lm: PartwiseLM) -> None:
    scores = lm.loglikelihood(requests("loglikelihood", ITEMS), disable_tqdm=True)
    for (context, continuation), (log_p, greedy) in zip(ITEMS, scores, strict=True):
        ids, targets = lm.tok_encode(context) or [lm.eot_token_id], lm.tok_encode(continuation)
        with torch.no_grad():
            if lm.specials:
                inputs = torch.tensor([[lm.specials.bos_id, *targets[:-1]]])
                logits = lm.model(inputs, source=torch.tensor([ids[-12:]]))[0]
            else:
                whole = (ids + targets)[-13:]
                logits = lm.model(torch.tensor([whole[:-1]]))[0, -len(targets) :]
        expected = F.log_softmax(logits, dim=-1)[range(len(targets)), targets].sum().item()
        assert log_p == pytest.approx(expected, abs=1e-10)
        assert greedy == (logits.argmax(dim=-1).tolist() == targets)


def test_a_text_is_scored_in_windows(lm: PartwiseLM) -> None:
    texts = [("abcdefg",), ("abc" * 10,), ("b",)]
    if lm.specials:
        with pytest.raises(ConfigError, match="cannot score text without a source"):
            lm.loglikelihood_rolling(requests("loglikelihood_rolling", texts))
        return
    scores = lm.loglikelihood_rolling(requests("loglikelihood_rolling", texts))
    for (text,), score in zip(texts, scores, strict=True):
        ids, expected = [lm.eot_token_id, *lm.tok_encode(text)], 0.0
        for start in range(0, len(ids) - 1, 12):  # every token but the newline once, with all context that fits
            targets = ids[start + 1 : start + 13]
            inputs = ids[: start + len(targets)][-12:]
            with torch.no_grad():
                log_p = F.log_softmax(lm.model(torch.tensor([inputs]))[0, -len(targets) :], dim=-1)
            expected += log_p[range(len(targets)), targets].sum().item()
        assert score == pytest.approx(expected, abs=1e-10)


def test_generation_equals_ours_up_to_the_stop_text(lm: PartwiseLM) -> None:
    prompts, options = ["abc", "gfe", "a", "bcbc"], {"until": ["ab", "c"], "max_gen_toks": 9}
    found = lm.generate_until(requests("generate_until", [(prompt, options) for prompt in prompts]))
    whole = generate(lm.model, lm.lm_tokenizer, prompts, max_new_tokens=9, temperature=0.0)
    assert found == [text.split("c")[0].split("ab")[0] for text in whole]
    sampled = lm.generate_until(
        requests(
            "generate_until",
            [(prompt, {"do_sample": True, "temperature": 0.7, "max_gen_toks": 9}) for prompt in prompts],
        )
    )
    assert sampled == generate(lm.model, lm.lm_tokenizer, prompts, max_new_tokens=9, temperature=0.7)


def test_a_generated_text_keeps_the_space_after_its_context(monkeypatch: pytest.MonkeyPatch) -> None:
    """Words are joined by spaces, and rows of the table without a word are never generated."""
    tokenizer, model = KINDS["words"], perturbed(partwise.ModelConfig.from_dict({**SIZES, "vocab_size": 64}))
    trained = SimpleNamespace(model=model, tokenizer=tokenizer, runtime=SimpleNamespace(precision="float32"))
    monkeypatch.setattr(language_model, "open_trained", lambda run: trained)
    lm = PartwiseLM(run="words")
    (found,) = lm.generate_until(requests("generate_until", [("hello it", {"max_gen_toks": 6})]))
    assert found.startswith(" ") and [found] == generate(
        model, tokenizer, ["hello it"], max_new_tokens=6, temperature=0
    )
    (short,) = lm.generate_until(requests("generate_until", [("hello it", {"max_gen_toks": 6, "until": [found[:2]]})]))
    assert short == ""


def test_what_cannot_be_scored_is_refused(lm: PartwiseLM) -> None:
    with pytest.raises(ConfigError, match="a continuation of 13 tokens cannot be scored"):
        lm.loglikelihood(requests("loglikelihood", [("a", "abcdefgabcdef")]), disable_tqdm=True)
    with pytest.raises(ConfigError, match="'num_beams', which is not supported"):
        lm.generate_until(requests("generate_until", [("a", {"num_beams": 2})]))


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run on divisions, which it learns in part, one with steps, one on pairs, and one on TinyShakespeare."""
    folder = tmp_path_factory.mktemp("harness")
    small = "n_layers=2 attention.n_heads=2 train.batch_size=32 train.precision=float32 train.device=cpu"
    easy = (
        "data.limit=30 data.decimals=0 data.padding=0 data.operations=/ data.train=700 data.validation=10 data.test=40"
    )
    for name, preset, data, words in (
        ("sums", "mingpt", "arithmetic", f"d_model=32 context_length=24 train.steps=80 train.lr=3e-3 {easy}"),
        (
            "steps",
            "mingpt",
            "arithmetic",
            "d_model=32 context_length=48 train.steps=150 train.lr=3e-3 data.steps=true data.aligned=true data.limit=30 "
            "data.decimals=0 data.padding=3 data.operations=+- data.train=400 data.validation=10 data.test=40",
        ),
        ("pairs", "original", "arithmetic_pairs", f"d_model=16 encoder_layers=1 n_layers=1 train.steps=40 {easy}"),
        ("plays", "mingpt", "shakespeare", "d_model=32 context_length=48 train.steps=60"),
    ):
        config = run_config(preset, *f"{small} {words}".split(), "train.eval_every=1000", data=data)
        run = RunFolder(folder / "runs" / name, config)
        for _ in run.events():
            pass
    return folder


@pytest.mark.parametrize("name", ["sums", "steps", "pairs"])
def test_arithmetic_has_the_exact_match_of_our_evaluation(
    name: str, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(runs)
    (score,) = score_tasks(name, ["arithmetic"])
    model, tokenizer = partwise.load(name)
    config = partwise.RunConfig.from_dict(json.loads((runs / "runs" / name / "run.json").read_text())["config"])
    lines = problem_lines(config.prepare(), "test")
    own = accuracy_by_operation(lines, answer_problems(model, tokenizer, lines, temperature=0.0))["all"].exact_match
    assert (score.task, score.metric, score.items) == ("partwise_arithmetic", "exact_match", len(lines))
    assert score.value == pytest.approx(own.value, abs=1e-12)
    assert name == "pairs" or 0 < own.correct < own.total, own  # or the equality says little


def test_the_cloze_equals_the_model_item_by_item(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(runs)
    perplexity, accuracy = sorted(score_tasks("plays", ["shakespeare_cloze"], 40), key=lambda score: -len(score.metric))
    model, tokenizer = partwise.load("plays")
    text = run_config("mingpt", data="shakespeare").data.splits()["val"]
    words = list(re.finditer(r"(?<=\S) [A-Za-z]+\b", text))[40::40][:40]
    total = correct = 0.0
    for match in words:
        ids = torch.from_numpy(tokenizer.encode(text[: match.end()])[-49:])
        n = len(match[0])
        with torch.no_grad():
            logits = model(ids[None, :-1])[0, -n:]
        total += F.log_softmax(logits.double(), dim=-1)[range(n), ids[-n:]].sum().item()
        correct += logits.argmax(dim=-1).tolist() == ids[-n:].tolist()
    assert perplexity.value == pytest.approx(math.exp(-total / 40), rel=1e-4)
    assert accuracy.value == pytest.approx(correct / 40) and accuracy.items == 40


CHOICES = [
    {"question": "JULIET:\nO ", "choices": ["Romeo", "xqzzk", "the"], "gold": 0},
    {"question": "the king and ", "choices": ["qqqqq", "the queen", "zzz zz"], "gold": 1},
    {"question": "To be, or not to ", "choices": ["zx", "vk", "be"], "gold": 2},
]
TASK = """
task: endings
dataset_path: json
dataset_kwargs: {data_files: {test: items.jsonl}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{question}}"
doc_to_choice: "{{choices}}"
doc_to_target: gold
target_delimiter: ""
metric_list: [{metric: acc, aggregation: mean, higher_is_better: true}]
metadata: {version: 1.0}
"""


@pytest.fixture
def own_task(tmp_path: Path) -> Path:
    (tmp_path / "endings.yaml").write_text(TASK)
    (tmp_path / "items.jsonl").write_text("".join(json.dumps(item) + "\n" for item in CHOICES))
    return tmp_path


def test_a_folder_of_ones_own(
    runs: Path, own_task: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(runs)
    monkeypatch.setattr(sys, "argv", ["partwise", "eval", "plays", "--tasks", str(own_task), "--json", "scores.json"])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert not stopped.value.code
    assert "endings" in capsys.readouterr().out
    (score,) = json.loads((runs / "scores.json").read_text())
    model, tokenizer = partwise.load("plays")
    correct = 0
    for item in CHOICES:
        totals = []
        question = str(item["question"])
        for choice in item["choices"]:  # type: ignore[attr-defined]
            ids = torch.from_numpy(tokenizer.encode(question + choice))
            with torch.no_grad():
                log_p = F.log_softmax(model(ids[None, :-1])[0], dim=-1)
            first = len(question.rstrip())  # the harness counts the space to the continuation
            totals.append(sum(log_p[place - 1, ids[place]].item() for place in range(first, len(ids))))
        correct += totals.index(max(totals)) == item["gold"]
    assert (score["task"], score["metric"], score["items"]) == ("endings", "acc", 3)
    assert score["value"] == pytest.approx(correct / 3)


def test_bad_tasks_are_refused_in_one_line(runs: Path, own_task: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(runs)
    (own_task / "empty").mkdir()

    def write(text: str) -> Callable[[], Any]:
        def call() -> Any:
            (own_task / "endings.yaml").write_text(text)
            return score_tasks("plays", [str(own_task)])

        return call

    for call, message in (
        (lambda: score_tasks("plays", ["nonsense"]), "neither a folder nor a task"),
        (lambda: score_tasks("plays", ["arithmetic"]), "plays was trained on shakespeare"),
        (lambda: score_tasks("plays", [str(own_task / "empty")]), "has no task"),
        (lambda: score_tasks("nobody", ["arithmetic"]), "no run 'nobody'"),
        (write(TASK + "process_docs: !function helper.run\n"), "calls Python code, which is not run"),
        (write("include: ../other.yaml\n" + TASK), "includes a file outside the folder"),
        (write(TASK.replace("items.jsonl", "missing.jsonl")), "its data cannot be read"),
    ):
        with pytest.raises(ConfigError, match=message) as raised:
            call()
        assert "\n" not in str(raised.value)


def test_without_lm_eval_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lm_eval.tasks", None)
    with pytest.raises(ConfigError, match=r"pip install 'partwise\[eval\]'"):
        score_tasks("run", ["arithmetic"])

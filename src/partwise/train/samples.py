"""Samples of a trained model: text, or its answers to a few problems or sources."""

from dataclasses import dataclass, field
from itertools import chain

import numpy as np
import torch

from partwise.config import ConfigError
from partwise.data import IGNORE_INDEX, Dataset, SequencePairs, build_examples, problem_lines
from partwise.data.problems import answer_of, prompt_of
from partwise.evaluate.arithmetic import answer_problems
from partwise.evaluate.loss import evaluation_mode
from partwise.generation.generate import generate
from partwise.model import Transformer
from partwise.tokenizers import Tokenizer

TEMPERATURE = 0.8
LINE_LENGTH = 72

MASKED_LENGTH = 24
"""Tokens of a text with masked ones: three of them fit a line."""

MASK = "_"
"""The mask in a text."""


@dataclass(frozen=True)
class Sample:
    """A `prompt` with the `text` that continues it, or `rows` of given, answered and true text under `columns`."""

    title: str
    prompt: str = ""
    text: str = ""
    columns: tuple[str, ...] = ()
    rows: list[tuple[str, str, str]] = field(default_factory=list)


def draw_sample(model: Transformer, dataset: Dataset, precision: str = "float32", n: int = 5) -> Sample:
    """A continuation of the first validation text, or the likeliest answers to `n` problems, sources or masked texts."""
    tokenizer = dataset.tokenizer
    if dataset.corpus.task == "arithmetic":
        split = "test" if "test" in dataset.split_names else "val"  # a tuning split has no test problems
        problems = problem_lines(dataset, split, n)
        answers = answer_problems(model, tokenizer, problems, temperature=0, precision=precision)
        rows = [
            (prompt_of(problem), answer, answer_of(problem)) for problem, answer in zip(problems, answers, strict=True)
        ]
        return Sample(
            {"test": "test", "val": "validation"}[split] + " problems", columns=("problem", "model", "truth"), rows=rows
        )
    if dataset.corpus.paired:
        limit = model.config.context_length
        pairs = build_examples(dataset, "val", 1, limit)
        assert isinstance(pairs, SequencePairs)
        rows = [
            (source, generate(model, tokenizer, [source], max_new_tokens=limit, temperature=0)[0], target)
            for source, target in pairs.texts(tokenizer, n)
        ]
        return Sample("validation pairs", columns=("source", "model", "target"), rows=rows)
    if dataset.corpus.masked_share:
        return Sample(
            "validation texts with masked tokens",
            columns=("masked", "model", "truth"),
            rows=fill_masks(model, dataset, precision, n),
        )
    prompt = tokenizer.decode(dataset.split("val")[:32])
    (text,) = generate(model, tokenizer, [prompt], max_new_tokens=300, temperature=TEMPERATURE)
    return Sample("sample", prompt, text)


def fill_masks(model: Transformer, dataset: Dataset, precision: str, n: int) -> list[tuple[str, str, str]]:
    """Short validation texts with masks, with the model's most likely tokens in their places, and as they are."""
    length = min(MASKED_LENGTH, model.config.context_length, len(dataset.split("val")))
    examples = build_examples(dataset, "val", length, length)
    batch = examples.batch(dataset.hash, 0, 0, n)
    with evaluation_mode(model, precision) as device:
        logits = model(torch.from_numpy(batch.inputs).to(device))
    mask = dataset.tokenizer.vocab_size
    likeliest = logits[..., :mask].argmax(-1).cpu().numpy()
    chosen = batch.targets != IGNORE_INDEX

    def text(ids: np.ndarray) -> str:
        spans = np.split(ids, np.flatnonzero(ids == mask))
        found = MASK.join(dataset.tokenizer.decode(span[span != mask]) for span in spans)
        return found.replace("\n", " ")

    return [
        (text(shown), text(np.where(here, answer, shown)), text(np.where(here, truth, shown)))
        for shown, answer, truth, here in zip(batch.inputs, likeliest, batch.targets, chosen, strict=True)
    ]


def sample_lines(model: Transformer, dataset: Dataset, n: int = 2) -> list[str]:
    """At most `n` lines by the model: text after a newline, or answers with the truth in parentheses."""
    if dataset.corpus.task == "arithmetic" or dataset.corpus.paired or dataset.corpus.masked_share:
        arrow = "" if dataset.corpus.task == "arithmetic" and not dataset.corpus.paired else " -> "
        rows = draw_sample(model, dataset, n=n).rows
        return [f"{given}{arrow}{answer} ({truth})" for given, answer, truth in rows]
    prompt = first_prompt(dataset.tokenizer)
    (text,) = generate(model, dataset.tokenizer, [prompt], max_new_tokens=80 * n, temperature=TEMPERATURE)
    return [line.strip()[:LINE_LENGTH] for line in text.splitlines() if line.strip()][:n]


def first_prompt(tokenizer: Tokenizer) -> str:
    """A newline if the tokenizer has one, else the text of its first token that is one, the `$` that starts a problem.

    Raises ConfigError if it encodes the text of none.
    """
    for text in chain(["\n"], (tokenizer.decode([index]) for index in range(tokenizer.vocab_size))):
        try:
            if len(tokenizer.encode(text)):
                return text
        except ConfigError:
            continue
    raise ConfigError("the tokenizer encodes none of its own tokens: give a prompt")

"""Samples of a trained model: text, or its answers to a few problems or sources."""

from dataclasses import dataclass, field
from itertools import chain

from partwise.config import ConfigError
from partwise.data import Dataset, SequencePairs, build_examples, problem_lines
from partwise.data.problems import answer_of, prompt_of
from partwise.evaluate.arithmetic import answer_problems
from partwise.generation.generate import generate
from partwise.model import Transformer
from partwise.tokenizers import Tokenizer

TEMPERATURE = 0.8
LINE_LENGTH = 72


@dataclass(frozen=True)
class Sample:
    """A `prompt` with the `text` that continues it, or `rows` of given, answered and true text under `columns`."""

    title: str
    prompt: str = ""
    text: str = ""
    columns: tuple[str, ...] = ()
    rows: list[tuple[str, str, str]] = field(default_factory=list)


def draw_sample(model: Transformer, dataset: Dataset, precision: str = "float32", n: int = 5) -> Sample:
    """A continuation of the first validation text, or the most likely answers to the first `n` problems or sources."""
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
    prompt = tokenizer.decode(dataset.split("val")[:32])
    (text,) = generate(model, tokenizer, [prompt], max_new_tokens=300, temperature=TEMPERATURE)
    return Sample("sample", prompt, text)


def sample_lines(model: Transformer, dataset: Dataset, n: int = 2) -> list[str]:
    """At most `n` lines by the model: text after a newline, or answers with the truth in parentheses."""
    if dataset.corpus.task == "arithmetic" or dataset.corpus.paired:
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

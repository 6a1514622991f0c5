"""`calculate`: a model's answers to expressions, beside the true ones."""

import re
from fractions import Fraction

import numpy as np

from partwise.checkpoint import load
from partwise.cli.terminal import console, table
from partwise.compute.runtime import choose_runtime
from partwise.config import ConfigError
from partwise.data import ProblemSpec, solve
from partwise.data.arithmetic import ProblemBatch
from partwise.data.corpora import SyntheticProblems
from partwise.evaluate.arithmetic import prompt_text
from partwise.generation.generate import generate
from partwise.tokenizers import WithSpecialTokens
from partwise.train.config import TrainConfig
from partwise.train.run_metadata import open_run

NUMBER = r"([0-9]+\.?[0-9]*|\.[0-9]+)"
EXPRESSION = re.compile(rf"\s*{NUMBER}\s*([-+*/])\s*{NUMBER}\s*")
DIGITS = 40
"""More than any number of a run's data can have."""


def calculate_all(name: str, expressions: list[str]) -> None:
    """Print each expression, what the model answers, and whether that is right. Raises ConfigError."""
    folder, config, _ = open_run(name)
    corpus = config.data
    if not isinstance(corpus, SyntheticProblems):
        raise ConfigError(f"{name} was trained on data={corpus.name}: give a run that was trained on data=arithmetic")
    problems = corpus.problem_spec()
    questions = [format_problem(problems, expression) for expression in expressions]
    model, tokenizer = load(folder)
    here = choose_runtime(TrainConfig(device="cpu"))
    model.use_backend(here.attention_backend, here.ffn_backend, here.block_backend)
    stop = None if isinstance(tokenizer, WithSpecialTokens) else "$"
    length = (problems.padding or problems.max_width) + 1
    prompts = [prompt_text(tokenizer, question) for question in questions]
    written = generate(model, tokenizer, prompts, max_new_tokens=length, temperature=0, stop=stop)
    rows = []
    for expression, question, text in zip(expressions, questions, written, strict=True):
        answer, truth = parse_answer(problems, text.removesuffix("$")), solve(question, problems.decimals)
        rows.append((" ".join(expression.split()), answer, truth, "right" if answer == truth else "wrong"))
    console.print(table("greedy answers", ["", "model", "truth", ""], rows))


def format_problem(problems: ProblemSpec, expression: str) -> str:
    """An expression such as `12.5 * 3` the way the data write it: `$(00000012.5*0000000003)=`.

    Raises ConfigError for what is no expression, or none that these problems could hold.
    """
    match = EXPRESSION.fullmatch(expression)
    if not match:
        raise ConfigError(f"{expression!r} is no expression: write two numbers and one of + - * /, such as '12.5 * 3'")
    if match[2] not in problems.operations:
        known = " ".join(problems.operations)
        raise ConfigError(f"{expression!r}: this run was trained on {known} alone, not on {match[2]}")
    first, second = (read_operand(problems, match[at], expression) for at in (1, 3))
    operation = problems.operations.index(match[2])
    codes = problems.to_ascii(ProblemBatch(*(np.array([number]) for number in (first, operation, second))))
    return codes.tobytes().decode("ascii").partition("=")[0] + "="


def read_operand(problems: ProblemSpec, text: str, expression: str) -> int:
    """A number in units of the last decimal place. Raises ConfigError for one that training never saw the like of."""
    units = Fraction(text) * problems.scale if len(text) <= DIGITS else Fraction(0)
    if not 0 < units <= problems.max_operand:
        raise ConfigError(f"{expression!r}: this run knows numbers above 0 and up to {problems.limit}, not {text}")
    if units.denominator != 1:
        raise ConfigError(f"{expression!r}: this run knows {problems.decimals} decimals, and {text} has more")
    return units.numerator


def parse_answer(problems: ProblemSpec, written: str) -> str:
    """The ordinary number that an answer stands for: `42.431-000` is -134.24. What is no number stays as it is."""
    text = written[::-1] if problems.reverse else written
    match = re.fullmatch(r"0*(-?)([0-9]+(?:\.[0-9]+)?)", text) if problems.padding else None
    if not match:
        return text
    whole, point, decimals = match[2].partition(".")
    return match[1] + (whole.lstrip("0") or "0") + point + decimals

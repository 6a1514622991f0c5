"""`calculate`: a model's answers to expressions, beside the true ones."""

import re
from fractions import Fraction

import numpy as np

from partwise.checkpoint import load
from partwise.config import ConfigError
from partwise.data import Problems, solve
from partwise.data.arithmetic import Drawn
from partwise.data.corpora import MadeUp
from partwise.evaluate.arithmetic import asked
from partwise.generation import generate
from partwise.terminal import console, table
from partwise.tokenizers import WithSpecials
from partwise.train.card import open_run
from partwise.train.choices import choose
from partwise.train.settings import TrainConfig

NUMBER = r"([0-9]+\.?[0-9]*|\.[0-9]+)"
EXPRESSION = re.compile(rf"\s*{NUMBER}\s*([-+*/])\s*{NUMBER}\s*")
DIGITS = 40
"""More than any number of a run's data can have."""


def calculate_all(name: str, expressions: list[str]) -> None:
    """Print each expression, what the model answers, and whether that is right. Raises ConfigError."""
    folder, config, _ = open_run(name)
    corpus = config.data
    if not isinstance(corpus, MadeUp):
        raise ConfigError(f"{name} was trained on data={corpus.name}: give a run that was trained on data=arithmetic")
    problems = corpus.problems()
    questions = [write_question(problems, expression) for expression in expressions]
    model, tokenizer = load(folder)
    here = choose(TrainConfig(device="cpu"))
    model.use_path(here.attention_path, here.ffn_path, here.block_path)
    stop = None if isinstance(tokenizer, WithSpecials) else "$"
    length = (problems.padding or problems.widest) + 1
    prompts = [asked(tokenizer, question) for question in questions]
    written = generate(model, tokenizer, prompts, length=length, temperature=0, stop=stop)
    rows = []
    for expression, question, text in zip(expressions, questions, written, strict=True):
        answer, truth = read_answer(problems, text.removesuffix("$")), solve(question, problems.decimals)
        rows.append((" ".join(expression.split()), answer, truth, "right" if answer == truth else "wrong"))
    console.print(table("greedy answers", ["", "model", "truth", ""], rows))


def write_question(problems: Problems, expression: str) -> str:
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
    codes = problems.write(Drawn(*(np.array([number]) for number in (first, operation, second))))
    return codes.tobytes().decode("ascii").partition("=")[0] + "="


def read_operand(problems: Problems, text: str, expression: str) -> int:
    """A number in units of the last decimal place. Raises ConfigError for one that training never saw the like of."""
    units = Fraction(text) * problems.scale if len(text) <= DIGITS else Fraction(0)
    if not 0 < units <= problems.largest:
        raise ConfigError(f"{expression!r}: this run knows numbers above 0 and up to {problems.limit}, not {text}")
    if units.denominator != 1:
        raise ConfigError(f"{expression!r}: this run knows {problems.decimals} decimals, and {text} has more")
    return units.numerator


def read_answer(problems: Problems, written: str) -> str:
    """The ordinary number that an answer stands for: `42.431-000` is -134.24. What is no number stays as it is."""
    text = written[::-1] if problems.reverse else written
    match = re.fullmatch(r"0*(-?)([0-9]+(?:\.[0-9]+)?)", text) if problems.padding else None
    if not match:
        return text
    whole, point, decimals = match[2].partition(".")
    return match[1] + (whole.lstrip("0") or "0") + point + decimals

"""`calculate`: a model's answers to expressions, next to the true results."""

import re
from fractions import Fraction

import numpy as np

from partwise.cli.terminal import console, table
from partwise.compute.backend_plan import apply_backends
from partwise.compute.runtime import choose_runtime
from partwise.config import ConfigError
from partwise.data import ProblemSpec, solve
from partwise.data.arithmetic import ProblemBatch
from partwise.data.corpora import SyntheticProblems
from partwise.data.problems import prompt_of
from partwise.evaluate.arithmetic import prompt_text
from partwise.formats.loading import load
from partwise.generation.generate import generate
from partwise.tokenizers import WithSpecialTokens
from partwise.train.config import TrainConfig
from partwise.train.run_metadata import open_run

NUMBER = r"([0-9]+\.?[0-9]*|\.[0-9]+)"
EXPRESSION = re.compile(rf"\s*{NUMBER}\s*([-+*/])\s*{NUMBER}\s*")
MAX_DIGITS = 40
"""Upper limit on an operand's digits, which bounds the cost of parsing; no dataset has as many."""


def calculate_all(name: str, expressions: list[str], *, show_steps: bool = False) -> None:
    """Print each expression, the model's answer, and whether it is correct; its steps too. Raises ConfigError."""
    folder, config, _ = open_run(name)
    corpus = config.data
    if not isinstance(corpus, SyntheticProblems):
        raise ConfigError(f"{name} was trained on data={corpus.name}: use a run trained on data=arithmetic")
    spec = corpus.problem_spec()
    if show_steps and not spec.steps:
        raise ConfigError(
            f"--steps: {name} was trained on answers without steps: use a run trained with data.steps=true"
        )
    problems = [format_problem(spec, expression) for expression in expressions]
    model, tokenizer = load(folder)
    apply_backends(model, choose_runtime(TrainConfig(device="cpu", precision="float32")))
    stop = None if isinstance(tokenizer, WithSpecialTokens) else "$"
    max_new_tokens = spec.max_length - 2 * (spec.padding or spec.max_width) - 5  # all but the prompt
    prompts = [prompt_text(tokenizer, problem) for problem in problems]
    texts = generate(model, tokenizer, prompts, max_new_tokens=max_new_tokens, temperature=0, stop=stop)
    rows, steps = list[tuple[str, ...]](), list[tuple[str, str]]()
    for expression, problem, text in zip(expressions, problems, texts, strict=True):
        worked, _, written = text.removesuffix("$").rpartition("=") if spec.steps else ("", "", text.removesuffix("$"))
        answer, truth, expression = (
            parse_answer(spec, written),
            solve(problem, spec.decimals),
            " ".join(expression.split()),
        )
        rows.append((expression, answer, truth, "correct" if answer == truth else "wrong"))
        steps.append((expression, worked))
    console.print(table("greedy answers", ["", "model", "truth", ""], rows))
    for expression, worked in steps if show_steps else []:
        # a row of digits per line, each number with its last digit first
        console.print(
            f"\n{expression}\n  " + worked.replace(";", ";\n  "), markup=False, highlight=False, soft_wrap=True
        )


def format_problem(spec: ProblemSpec, expression: str) -> str:
    """An expression such as `12.5 * 3` in the format of the data: `$(00000012.5*0000000003)=`.

    Raises ConfigError for an invalid expression, or one that these problems cannot contain.
    """
    match = EXPRESSION.fullmatch(expression)
    if not match:
        raise ConfigError(
            f"{expression!r} is not an expression: write two numbers and one of + - * /, such as '12.5 * 3'"
        )
    if match[2] not in spec.operations:
        operations = " ".join(spec.operations)
        raise ConfigError(f"{expression!r}: this run was trained on {operations} only, not on {match[2]}")
    first, second = (parse_operand(spec, match[at], expression) for at in (1, 3))
    operation = spec.operations.index(match[2])
    codes = spec.to_ascii(ProblemBatch(*(np.array([number]) for number in (first, operation, second))))
    return prompt_of(codes.tobytes().decode("ascii"))


def parse_operand(spec: ProblemSpec, text: str, expression: str) -> int:
    """A number in units of the last decimal place. Raises ConfigError if it is outside the range of the training data."""
    units = Fraction(text) * spec.scale if len(text) <= MAX_DIGITS else Fraction(0)
    if not 0 < units <= spec.max_operand:
        raise ConfigError(f"{expression!r}: this run was trained on numbers above 0 and up to {spec.limit}, not {text}")
    if units.denominator != 1:
        raise ConfigError(f"{expression!r}: this run was trained on {spec.decimals} decimals, and {text} has more")
    return units.numerator


def parse_answer(spec: ProblemSpec, answer: str) -> str:
    """An answer as an ordinary number: `42.431-000` -> `-134.24`. Anything else is returned unchanged."""
    text = answer[::-1] if spec.reverse else answer
    match = re.fullmatch(r"0*(-?)([0-9]+(?:\.[0-9]+)?)", text) if spec.padding else None
    if not match:
        return text
    whole, point, decimals = match[2].partition(".")
    return match[1] + (whole.lstrip("0") or "0") + point + decimals

"""Worked answers: every step is true, computed here with Python's integers, and the answer alone is scored."""

import json
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from partwise.config import ConfigError
from partwise.data import Arithmetic, ProblemSpec, prepare, solve
from partwise.data.arithmetic import ProblemBatch
from partwise.data.problems import answer_of, prompt_of, split_problems
from partwise.evaluate.arithmetic import accuracy_by_operation, answer_problems, score_answers
from partwise.tokenizers import Characters

SPECS = st.fixed_dictionaries(
    {
        "limit": st.sampled_from([1, 9, 99, 1000]),
        "decimals": st.sampled_from([0, 1, 2]),
        "reverse": st.booleans(),
        "operations": st.sampled_from(["+", "-", "*", "/", "+-*/", "/+"]),
        "padding": st.just(14),
    }
)


def written(spec: ProblemSpec, *problems: tuple[int, str, int]) -> list[str]:
    first, operations, second = zip(*problems, strict=True)
    batch = ProblemBatch(
        *(
            np.array(each, dtype=np.int64)
            for each in (first, [spec.operations.index(operation) for operation in operations], second)
        )
    )
    return split_problems(spec.to_ascii(batch).tobytes().decode())


def number(digits: str) -> int:
    """A number whose last digit comes first; a ten's complement if its highest digit is 9."""
    value = int(digits[::-1])
    return value - 10 ** len(digits) if digits[-1] == "9" else value


def natural(digits: str) -> int:
    return int(digits[::-1])


def check_product(rows: str, a: int, b: int, half: int) -> int:
    """Each row has the product with a digit, every digit with its carry, and the sum so far; returns the last sum."""
    total = half
    for place, row in enumerate(rows.split(";")):
        pairs, so_far = row.split(",")
        digit, carry = b // 10**place % 10, 0
        for column in range(0, len(pairs), 2):
            carry, lowest = divmod(a // 10 ** (column // 2) % 10 * digit + carry, 10)
            assert pairs[column : column + 2] == f"{lowest}{carry}"
        # the last carry is the highest digit of the product
        total += a * digit * 10**place
        assert natural(so_far) == total // 10**place
    return total


def check_quotient(steps: list[str], dividend: int, divisor: int) -> int:
    """Each remainder follows from its digit, which is the nearest; returns the quotient rounded down."""
    remainder = quotient = 0
    for place, step in zip(range(len(steps) - 1, -1, -1), steps, strict=True):
        shifted = 10 * remainder + dividend // 10**place % 10
        digit, written_remainder = step.split(",")
        remainder, quotient = shifted - int(digit) * divisor, 10 * quotient + int(digit)
        assert number(written_remainder) == remainder
        assert 2 * abs(remainder) <= divisor or abs(int(digit)) == 9, (step, shifted, divisor)
    assert dividend == quotient * divisor + remainder and abs(remainder) <= divisor
    return quotient - (remainder < 0)


def check(spec: ProblemSpec, problem: str, a: int, operation: str, b: int) -> None:
    prompt, answer = prompt_of(problem), answer_of(problem)
    operands, *steps, _ = problem[len(prompt) : -len(answer)].split("=")
    written_a, written_b = operands.split(operation)
    assert (natural(written_a), natural(written_b)) == (a, b)
    if operation == "+":
        (total,) = steps
        assert natural(total) == a + b
        units = a + b
    elif operation == "-":
        difference, magnitude = steps
        assert (number(difference), natural(magnitude)) == (a - b, abs(a - b))
        units = a - b
    elif operation == "*":
        (rows,) = steps
        units = check_product(rows, a, b, spec.scale // 2) // spec.scale
    else:
        operands, table, quotient = steps
        (dividend, divisor), (multiples, *digits) = operands.split("/"), table.split(";")
        assert (natural(dividend), natural(divisor)) == (2 * spec.scale * a + b, 2 * b)
        assert [natural(multiple) for multiple in multiples.split(",")] == [k * 2 * b for k in range(2, 8)]
        units = natural(quotient)
        assert check_quotient(digits, natural(dividend), natural(divisor)) == units
    whole, decimals = divmod(abs(units), spec.scale)
    digits = f"{decimals:0{spec.decimals}d}".rstrip("0") if spec.decimals else ""
    text = "-" * (units < 0) + str(whole) + ("." + digits if digits else "")
    assert text == solve(prompt, spec.decimals)
    padded = text[::-1].ljust(spec.padding, "0") if spec.reverse else text.rjust(spec.padding, "0")
    assert answer == padded + "$"


@given(SPECS, st.data())
def test_every_step_is_true(options: dict[str, Any], data: st.DataObject) -> None:
    spec = ProblemSpec(**options, steps=True)
    operation = data.draw(st.sampled_from(spec.operations))
    a, b = (data.draw(st.integers(1, spec.max_operand)) for _ in range(2))
    (problem,) = written(spec, (a, operation, b))
    check(spec, problem, a, operation, b)
    assert set(problem) <= set(spec.alphabet) and len(problem) <= spec.max_length


@pytest.mark.parametrize("operation", "+-*/")
def test_every_step_of_extreme_problems_is_true(operation: str) -> None:
    spec = ProblemSpec(steps=True)
    for a, b in product([1, 2, 99, 100, 12345, 100000], [1, 3, 99, 12344, 100000]):
        (problem,) = written(spec, (a, operation, b))
        check(spec, problem, a, operation, b)
        assert len(problem) == {"+": 58, "-": 65, "*": 176, "/": 211}[operation] and spec.max_length == 211


def test_problems_keep_their_order_and_differ_by_their_steps_only() -> None:
    batch = ProblemSpec().sample(500, "a stream")
    plain, worked = (
        split_problems(ProblemSpec(steps=steps).to_ascii(batch).tobytes().decode()) for steps in (False, True)
    )
    assert [prompt_of(problem) + answer_of(problem) for problem in worked] == plain
    assert ProblemSpec(steps=True).to_ascii(batch.take(np.arange(0))).size == 0


def test_data_without_steps_are_what_they_were() -> None:
    """The identity, from which the name of prepared data follows, has no new key."""
    assert "steps" not in Arithmetic().identity() and Arithmetic(steps=True).identity()["steps"] is True
    assert ",;" not in Arithmetic().alphabet() and set(",;") < set(Arithmetic(steps=True).alphabet())
    assert json.dumps(Arithmetic(aligned=True).identity()) == json.dumps(Arithmetic().identity())


def test_steps_have_fixed_places() -> None:
    with pytest.raises(ConfigError, match=r"data\.steps=true data\.padding=0: .* set data\.padding to 9 or more"):
        Arithmetic(steps=True, padding=0)


def test_the_answer_alone_is_scored() -> None:
    good, bad = written(ProblemSpec(steps=True), (12345, "+", 20000), (12345, "-", 20000))
    accuracy = score_answers([good, bad], [answer_of(good), "55.68-0000$"])
    assert (accuracy.exact_match.correct, accuracy.char_accuracy.correct, accuracy.char_accuracy.total) == (1, 19, 20)
    assert set(accuracy_by_operation([good, bad], [answer_of(good), answer_of(bad)])) == {"all", "+", "-"}


def test_a_model_is_asked_for_its_steps_and_scored_on_what_follows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even if it writes too little, too much, or wrong steps."""
    from partwise.evaluate import arithmetic

    problems = written(ProblemSpec(steps=True), *[(12345, operation, 20000) for operation in "+-*/"])
    answers = [answer_of(problem) for problem in problems]
    texts = ["0=0=" + answers[0][:-1], "nothing", problems[2][len(prompt_of(problems[2])) :][:-1], "=" + answers[3] * 3]
    monkeypatch.setattr(arithmetic, "continue_problems", lambda *_, **__: texts)
    found = answer_problems(None, None, problems, temperature=0)  # type: ignore[arg-type]
    assert found[0] == answers[0] and found[2] == answers[2] and found[3] == answers[3]
    assert found[1] == "nothing$$$$" and [len(answer) for answer in found] == [len(answer) for answer in answers]


def test_prepared_problems_have_their_steps() -> None:
    corpus = Arithmetic(steps=True, train=40, validation=5, test=5)
    dataset = prepare(corpus, Characters())
    for split in ("train", "val", "test"):
        for problem in split_problems(dataset.tokenizer.decode(dataset.split(split))):
            a, b = (round(float(operand) * 100) for operand in (problem[2:12], problem[13:23]))
            check(corpus.problem_spec(), problem, a, problem[12], b)

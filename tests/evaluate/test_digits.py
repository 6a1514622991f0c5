"""The digits of answers by place, against numbers written by Python's decimals."""

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partwise.data.arithmetic import ProblemSpec
from partwise.data.problems import answer_of, split_problems
from partwise.evaluate.digits import accuracy_by_place, place_name

FORMATS = [{}, {"reverse": False}, {"padding": 0}, {"padding": 0, "reverse": False}, {"decimals": 0}, {"steps": True}]


def problems_of(spec: ProblemSpec, count: int = 60) -> list[str]:
    return split_problems(bytes(spec.to_ascii(spec.sample(count, "digits"))).decode())


@pytest.mark.parametrize("settings", FORMATS, ids=str)
def test_true_answers_are_right_at_every_place(settings: dict[str, object]) -> None:
    spec = ProblemSpec(**settings)
    problems = problems_of(spec)
    found = accuracy_by_place(problems, [answer_of(each) for each in problems], spec)
    assert set(found) == set("+-*/")
    for places in found.values():
        assert list(places)[-1] == "sign" and all(each.correct == each.total > 0 for each in places.values())
    assert sum(places["1"].total for places in found.values()) == len(problems)


@pytest.mark.parametrize("settings", FORMATS[:4], ids=str)
@given(place=st.integers(0, 4), change=st.integers(1, 9))
def test_a_changed_digit_is_wrong_at_its_place_alone(settings: dict[str, object], place: int, change: int) -> None:
    """The changed numbers are written by Python's decimals, without this project's code."""
    spec = ProblemSpec(operations="+-", **settings)
    problems = [each for each in problems_of(spec) if abs(number_in(each, spec)) >= 1000]
    answers = []
    for problem in problems:
        true = number_in(problem, spec)
        step = Decimal(10) ** (place - 2)
        digit = int(abs(true) / step) % 10
        changed = abs(true) + step * ((digit + change) % 10 - digit)
        text = f"{changed.normalize():f}"
        text = "-" * (true < 0) + text
        answers.append((text[::-1] if spec.reverse else text) + "$$$")
    found = accuracy_by_place(problems, answers, spec)
    assert found
    for places in found.values():
        for name, each in places.items():
            assert each.correct == (0 if name == place_name(place - 2) else each.total), name


def number_in(problem: str, spec: ProblemSpec) -> Decimal:
    text = answer_of(problem).rstrip("$")
    text = text[::-1] if spec.reverse else text
    return -Decimal(text.replace("-", "")) if "-" in text else Decimal(text)


def test_the_sign_and_what_is_no_number() -> None:
    spec = ProblemSpec(padding=0, reverse=False)
    problems = ["$(1-9)=-8$", "$(9-1)=8$", "$(9-2)=7$", "$(9-3)=6$"]
    found = accuracy_by_place(problems, ["8$", "8.$", "7.5$", "$"], spec)["-"]
    assert {name: each.correct for name, each in found.items()} == {"0.01": 2, "0.1": 1, "1": 2, "sign": 1}
    assert {each.total for each in found.values()} == {4}


def test_places_above_the_true_answer_are_not_counted() -> None:
    found = accuracy_by_place(["$(9+9)=18$"], ["118$"], ProblemSpec(padding=0, reverse=False))["+"]
    assert list(found) == ["0.01", "0.1", "1", "10", "sign"] and all(each.value == 1 for each in found.values())


def test_names_of_places() -> None:
    assert [place_name(each) for each in (-3, -1, 0, 1, 3, 6)] == ["0.001", "0.1", "1", "10", "1,000", "1,000,000"]

"""Arithmetic: exact answers, the format character by character, and held-out problems that never occur in training."""

import hashlib
import itertools
import re
from collections import Counter
from fractions import Fraction
from itertools import chain
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from partwise.config import ConfigError
from partwise.data import ProblemSpec, generate_problems, solve, split_problems
from partwise.data.arithmetic import ProblemBatch
from partwise.data.corpora import Arithmetic
from partwise.data.examples import answer_mask
from partwise.data.problem_splits import CHUNK_SIZE, POOL_FACTOR, sample_balanced

EXAMPLES = [
    "$(0000753.78+0000000910)=87.3661000$",
    "$(0000000782+0000000021)=3080000000$",
    "$(0000002.08-0000136.22)=41.431-000$",
    "$(0000313.46*0000000217)=28.0208600$",
    "$(0000000573*0000351.77)=12.4651020$",
    "$(0000000400/0000000344)=61.1000000$",
    "$(0000000471/0000000299)=85.1000000$",
]
LINE = re.compile(r"\$\(([0-9.]+)([-+*/])([0-9.]+)\)=([-0-9.]+)\$")


def write(problems: ProblemSpec, *rows: tuple[str, str, str]) -> list[str]:
    """The lines for operands as decimal strings."""
    units = [[int(Fraction(row[at]) * problems.scale) for row in rows] for at in (0, 2)]
    operations = [problems.operations.index(row[1]) for row in rows]
    first, chosen, second = (np.array(each, dtype=np.int64) for each in (units[0], operations, units[1]))
    return as_lines(problems.to_ascii(ProblemBatch(first, chosen, second)))


def as_lines(codes: np.ndarray) -> list[str]:
    return split_problems(codes.tobytes().decode("ascii"))


def match(line: str) -> tuple[str, str, str, str]:
    found = LINE.fullmatch(line)
    assert found, line
    return found[1], found[2], found[3], found[4]


def identity(line: str) -> tuple[Any, ...]:
    """The identity of a problem, read from its text."""
    first, operation, second, _ = match(line)
    operands = [Fraction(first), Fraction(second)]
    return (operation, *(sorted(operands) if operation in "+*" else operands))


def small(**options: Any) -> dict[str, list[str]]:
    counts = {"train": 300, "validation": 20, "test": 30, "seed": 0} | {
        key: options.pop(key)
        for key in ("train", "validation", "test", "seed", "validation_tail", "form_balance")
        if key in options
    }
    return {name: as_lines(codes) for name, codes in generate_problems(ProblemSpec(**options), **counts).items()}


def test_the_format_equals_the_examples() -> None:
    rows = [match(line)[:3] for line in EXAMPLES]
    assert write(ProblemSpec(), *rows) == EXAMPLES


@pytest.mark.parametrize("line", EXAMPLES)
def test_solve_answers_the_examples(line: str) -> None:
    question = line[: line.index("=") + 1]
    assert solve(question)[::-1].ljust(10, "0") == match(line)[3]


EDGES = [
    (("1000", "*", "1000"), "1000000"),
    (("1000", "+", "1000"), "2000"),
    (("999.99", "*", "999.99"), "999980"),  # 999980.0001
    (("0.01", "*", "0.01"), "0"),
    (("0.05", "*", "0.1"), "0.01"),  # 0.005, half up
    (("0.07", "*", "0.07"), "0"),  # 0.0049
    (("0.35", "*", "0.1"), "0.04"),  # 0.035, smaller as a binary float
    (("1.15", "*", "0.1"), "0.12"),  # 0.115
    (("1", "/", "8"), "0.13"),  # 0.125, which would be 0.12 with rounding half to even
    (("1", "/", "3"), "0.33"),
    (("2", "/", "3"), "0.67"),
    (("0.01", "/", "1000"), "0"),
    (("1000", "/", "0.01"), "100000"),
    (("999.99", "/", "0.03"), "33333"),
    (("1000", "/", "0.03"), "33333.33"),
    (("0.01", "-", "1000"), "-999.99"),
    (("5", "-", "5"), "0"),
    (("0.3", "-", "0.1"), "0.2"),
    (("0.1", "-", "0.2"), "-0.1"),
    (("1", "-", "31"), "-30"),
    (("753.70", "+", "0.30"), "754"),
    (("9.99", "+", "0.02"), "10.01"),
]


@pytest.mark.parametrize(("row", "answer"), EDGES)
def test_exact_answers(row: tuple[str, str, str], answer: str) -> None:
    (line,) = write(ProblemSpec(), row)
    assert match(line)[3] == answer[::-1].ljust(10, "0")
    assert solve(f"$({row[0]}{row[1]}{row[2]})=") == answer


def test_operands_have_no_trailing_zeros() -> None:
    (line,) = write(ProblemSpec(), ("753.70", "+", "753.00"))
    assert line.startswith("$(00000753.7+0000000753)=")


OPTIONS = st.fixed_dictionaries(
    {
        "limit": st.sampled_from([4, 9, 10, 99, 100, 1000, 12345]),
        "decimals": st.integers(0, 4),
        "operations": st.sampled_from(["+", "-", "*", "/", "+-", "/*", "+-*/", "*/+-"]),
        "reverse": st.booleans(),
        "padding": st.sampled_from([0, 20]),
    }
)


@given(OPTIONS, st.integers(0, 5))
def test_every_answer_solves_its_problem(options: dict[str, Any], seed: int) -> None:
    decimals, padding = options["decimals"], options["padding"]
    splits = small(**options, train=40, validation=2, test=3, seed=seed)
    assert {name: len(lines) for name, lines in splits.items()} == {"train": 40, "val": 2, "test": 3}
    for line in chain.from_iterable(splits.values()):
        first, operation, second, answer = match(line)
        assert operation in options["operations"]
        for operand in (first, second):
            value = Fraction(operand)
            assert 0 < value <= options["limit"] and (value * 10**decimals).denominator == 1
            shortest = str(value.numerator) if value.denominator == 1 else f"{float(value):.{decimals}f}".rstrip("0")
            assert operand == shortest.rjust(padding, "0")
        expected = solve(line[: line.index("=") + 1], decimals)
        assert answer == (expected[::-1].ljust(padding, "0") if options["reverse"] else expected.rjust(padding, "0"))


@given(OPTIONS, st.data())
def test_no_number_exceeds_max_width(options: dict[str, Any], data: st.DataObject) -> None:
    problems = ProblemSpec(**options)
    top = problems.max_operand
    operand = st.one_of(st.integers(1, top), st.integers(1, min(top, 9)), st.integers(max(1, top - 9), top))
    first, second = (Fraction(data.draw(operand), problems.scale) for _ in range(2))
    for operation in problems.operations:
        (line,) = write(ProblemSpec(**options | {"padding": 0}), (str(first), operation, str(second)))
        numbers = match(line)
        assert max(len(numbers[at]) for at in (0, 2, 3)) <= problems.max_width


def test_padding_must_fit_every_number() -> None:
    assert ProblemSpec().max_width == 9  # 123456.78
    assert len(small(padding=9)["train"][0]) == 3 * 9 + 6
    with pytest.raises(ConfigError, match=r"data\.padding=8: must be at least 9, .* or 0"):
        ProblemSpec(padding=8)


def test_the_answer_without_reversal_is_the_mirror_image() -> None:
    backwards, forwards = small(), small(reverse=False)
    for name in backwards:
        for one, other in zip(backwards[name], forwards[name], strict=True):
            assert match(one)[:3] == match(other)[:3]
            assert match(one)[3] == match(other)[3][::-1]


def test_without_padding_the_problems_stay_the_same() -> None:
    padded, bare = small(reverse=False), small(reverse=False, padding=0)
    assert bare["train"] != padded["train"]
    for one, other in zip(padded["train"], bare["train"], strict=True):
        first, operation, second, answer = match(other)
        assert one == f"$({first:0>10}{operation}{second:0>10})={answer.rjust(10, '0')}$"


def test_integers_and_operations_are_equally_likely() -> None:
    lines = small(train=40_000)["train"]
    operations = Counter(match(line)[1] for line in lines)
    operands = [Fraction(match(line)[at]) for line in lines for at in (0, 2)]
    # four standard deviations of a count of 40,000 at 1/4, and of 80,000 at 1/2
    assert sorted(operations) == sorted("+-*/")
    assert all(abs(count - 10_000) < 4 * 87 for count in operations.values())
    whole = [operand for operand in operands if operand.denominator == 1]
    assert abs(len(whole) - 80_000 * 0.505) < 4 * 142  # one in a hundred of the hundredths is an integer, too
    assert abs(float(np.mean([float(operand) for operand in operands])) - 500.25) < 4 * 289 / 80_000**0.5
    assert min(whole) == 1 and max(whole) == 1000
    assert len(set(whole)) == 1000


def test_the_alphabet_equals_the_characters_of_the_text() -> None:
    assert ProblemSpec().alphabet == "$()*+-./0123456789="
    for operations in ("+", "-", "*/", "+-*/"):
        for decimals in (0, 2):
            problems = ProblemSpec(operations=operations, decimals=decimals)
            text = "".join(chain.from_iterable(small(operations=operations, decimals=decimals).values()))
            assert problems.alphabet == "".join(sorted(set(text)))


def test_the_same_seed_gives_the_same_text_everywhere() -> None:
    splits = generate_problems(ProblemSpec(), train=CHUNK_SIZE + 1000, validation=100, test=100, seed=3)
    digests = {name: hashlib.sha256(codes.tobytes()).hexdigest()[:16] for name, codes in splits.items()}
    assert digests == {"train": "f8b291a50d68a774", "val": "a2b7660446cac969", "test": "02d18e77e8760095"}
    assert small(seed=1) == small(seed=1)
    assert small(seed=1)["train"] != small(seed=2)["train"]
    assert small(seed=1)["test"] != small(seed=2)["test"]


@pytest.mark.parametrize("operations", ["+", "/", "+-*/"])
def test_held_out_problems_never_occur_in_training(operations: str) -> None:
    # so few problems exist that a third of the samples collide
    options: dict[str, Any] = {"limit": 9, "decimals": 0, "operations": operations}
    exist = ProblemSpec(**options).n_distinct
    splits = small(**options, train=CHUNK_SIZE + 2000, validation=exist // 5, test=exist // 4)
    sets = {name: {identity(line) for line in lines} for name, lines in splits.items()}
    assert len(sets["test"]) == len(splits["test"]) == exist // 4
    assert len(sets["val"]) == len(splits["val"]) == exist // 5
    assert not sets["test"] & sets["val"]
    assert not sets["train"] & (sets["test"] | sets["val"])
    # and training has every remaining problem
    assert len(sets["train"]) == exist - exist // 4 - exist // 5


def test_n_distinct_counts_the_problems() -> None:
    for operations in ("+", "-", "*", "/", "+-*/"):
        problems = ProblemSpec(limit=5, decimals=0, operations=operations)
        every = {
            identity(f"$({first}{operation}{second})=0$")
            for operation in operations
            for first in range(1, 6)
            for second in range(1, 6)
        }
        assert problems.n_distinct == len(every)


@pytest.mark.parametrize("counts", [{"test": 60, "validation": 67}, {"test": 300, "validation": 1}])
def test_more_than_can_be_held_out_is_refused(counts: dict[str, int]) -> None:
    assert ProblemSpec(limit=9, decimals=0).n_distinct == 252
    with pytest.raises(ConfigError, match=r"of only 252: lower data\.test and data\.validation to 126"):
        small(limit=9, decimals=0, **counts)
    small(limit=9, decimals=0, test=60, validation=66)


@pytest.mark.parametrize("train", [1000, CHUNK_SIZE + 777])
def test_validation_tail_is_the_end_of_the_training_text(train: int) -> None:
    splits = small(train=train, validation_tail=0.1)
    n_train = int(0.9 * train)
    assert (len(splits["train"]), len(splits["val"]), len(splits["test"])) == (n_train, train - n_train, 30)
    held_out = {identity(line) for line in splits["test"]}
    assert not held_out & {identity(line) for line in splits["train"] + splits["val"]}
    assert not set(splits["train"][:500]) & set(splits["val"][:500])
    with pytest.raises(ConfigError, match=r"data\.validation_tail=0\.1 leaves no problems .*data\.train=1"):
        small(train=1, validation_tail=0.1)


BAD: list[dict[str, Any]] = [
    {"operations": ""},
    {"operations": "++"},
    {"operations": "+%"},
    {"limit": 0},
    {"decimals": -1},
    {"limit": 10**8, "padding": 0},
    {"decimals": 10, "padding": 0},
    {"padding": -1},
    {"padding": 1},
]


@pytest.mark.parametrize("options", BAD, ids=str)
def test_options_that_no_problem_satisfies_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"^data\.") as caught:
        ProblemSpec(**options)
    assert str(next(iter(options.values()))) in str(caught.value)


def test_the_largest_allowed_numbers_do_not_overflow() -> None:
    problems = ProblemSpec(limit=10**9, decimals=0, padding=0, reverse=False)
    top = str(10**9)
    lines = write(problems, *((top, operation, top) for operation in "+-*/"))
    assert [match(line)[3] for line in lines] == ["2000000000", "0", str(10**18), "1"]
    fine = ProblemSpec(limit=1, decimals=9, padding=0, reverse=False)
    assert match(write(fine, ("1", "/", "0.000000003"))[0])[3] == "333333333.333333333"
    drawn = problems.sample(1000, "extremes")
    assert len(np.unique(problems.keys(drawn))) == 1000 and problems.keys(drawn).min() >= 0


def test_a_split_is_split_into_problems() -> None:
    assert split_problems("".join(EXAMPLES)) == EXAMPLES
    assert split_problems("") == []
    for invalid in ("x" + EXAMPLES[0], EXAMPLES[0][:-1], EXAMPLES[0] + "\n"):
        with pytest.raises(ConfigError, match="not a sequence of problems"):
            split_problems(invalid)


@pytest.mark.parametrize("question", ["1+1", "$(1^2)=", "$(1/0)=", "$(1/0.00)=", ""])
def test_solve_refuses_other_text(question: str) -> None:
    with pytest.raises(ConfigError, match="not a problem"):
        solve(question)


def form(problems: ProblemSpec, line: str) -> tuple[Any, ...]:
    """Operation, and decimals of both operands and of the answer, read from the text."""
    question = line[: line.index("=") + 1]
    first, operation, second, _ = match(line)
    numbers = (first, second, solve(question, problems.decimals))
    decimals = [len(number.partition(".")[2]) for number in numbers]
    return operation, *decimals


@given(OPTIONS, st.integers(0, 5))
def test_forms_equal_those_of_the_text(options: dict[str, Any], seed: int) -> None:
    problems = ProblemSpec(**options)
    drawn = problems.sample(60, str(seed))
    found = {}
    for number, line in zip(problems.forms(drawn).tolist(), as_lines(problems.to_ascii(drawn)), strict=True):
        assert found.setdefault(number, form(problems, line)) == form(problems, line)
    assert len(set(found.values())) == len(found)


def test_form_balance_samples_rare_forms_more_often() -> None:
    problems, count = ProblemSpec(operations="+-"), 20_000
    forms = {
        balance: Counter(problems.forms(sample_balanced(problems, count, "s", balance)).tolist())
        for balance in (0, 0.5, 1)
    }
    natural = Counter(problems.forms(problems.sample(POOL_FACTOR * count, "s")).tolist())
    assert [sum(counts.values()) for counts in forms.values()] == [count] * 3
    for balance, operation in itertools.product((0.5, 1), (0, 1)):
        own = {which: there for which, there in natural.items() if which // 27 == operation}
        # in proportion to natural ** (1 - balance), except forms of which the pool has fewer: all of those are chosen
        whole = {which for which, there in own.items() if forms[balance][which] == there}
        left = sum(own.values()) / POOL_FACTOR - sum(natural[which] for which in whole)
        total = sum(there ** (1 - balance) for which, there in own.items() if which not in whole)
        for which, there in own.items():
            wanted = left * there ** (1 - balance) / total
            assert (which in whole and wanted >= there) or abs(forms[balance][which] - wanted) <= len(natural)
    rare = [which for which, there in natural.items() if 100 <= there / POOL_FACTOR <= 600]
    assert rare and all(forms[0.5][which] > 1.5 * natural[which] / POOL_FACTOR for which in rare)
    assert max(forms[1].values()) < max(forms[0.5].values()) < max(forms[0].values())
    pool = set(problems.keys(problems.sample(POOL_FACTOR * count, "s")).tolist())
    assert set(problems.keys(sample_balanced(problems, count, "s", 0.5)).tolist()) <= pool


def test_form_balance_changes_only_the_training_text() -> None:
    plain, balanced = (small(train=4000, form_balance=balance) for balance in (0.0, 0.5))
    assert plain["val"] == balanced["val"] and plain["test"] == balanced["test"]
    assert plain["train"] != balanced["train"] and len(balanced["train"]) == 4000
    held_out = {identity(line) for line in plain["val"] + plain["test"]}
    assert not held_out & {identity(line) for line in balanced["train"]}


def test_identity_depends_on_form_balance_only_above_zero() -> None:
    assert "form_balance" not in Arithmetic().identity()
    assert Arithmetic(form_balance=0.5).identity()["form_balance"] == 0.5
    for wrong in (-0.1, 1.1):
        with pytest.raises(ConfigError, match="form_balance"):
            Arithmetic.from_dict({"form_balance": wrong})


def test_an_answer_is_what_follows_the_equals_sign_through_its_end() -> None:
    text = "$(1+2)=3$(4-1)=-12$(9"
    ids = np.array([[ord(character) for character in text]])
    expected = [character == "x" for character in "       xx      xxxx   "[: len(text)]]
    assert answer_mask(ids, ord("$"), ord("=")).tolist() == [expected]

"""Schedules are pure functions of the step: the papers' formulas, a peak after the warm-up, no jumps, no surprises."""

import math
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partwise.config import REGISTRY, ConfigError
from partwise.train.schedules import Schedule

EXACT = 1e-12


def factors(words: dict[str, Any], steps: int) -> list[float]:
    schedule: Any = Schedule.resolve(words)
    return [schedule.factor(step, steps) for step in range(steps)]


def test_linear_has_its_exact_values() -> None:
    assert factors({"part": "linear", "warmup": 0}, 5) == [1, 0.75, 0.5, 0.25, 0]
    assert factors({"part": "linear", "warmup": 2, "final": 0.5}, 7) == [0.5, 1, 1, 0.875, 0.75, 0.625, 0.5]
    assert factors({"part": "linear", "warmup": 4}, 3) == [0.25, 0.5, 0.75]  # stopped while it rises
    assert factors({"part": "linear", "warmup": 3}, 4) == [1 / 3, 2 / 3, 1, 1]
    assert factors({"part": "linear", "warmup": 0}, 1) == [1]


def test_inverse_sqrt_has_its_exact_values() -> None:
    found = factors({"part": "inverse_sqrt", "warmup": 4}, 64)
    assert found[:4] == [0.25, 0.5, 0.75, 1] and found[15] == 0.5 and found[63] == 0.25
    assert found[4] == pytest.approx(math.sqrt(4 / 5), rel=EXACT)
    assert factors({"part": "inverse_sqrt", "warmup": 0}, 9)[::3] == [1, 0.5, pytest.approx(7**-0.5, rel=EXACT)]


@given(st.integers(1, 4000), st.integers(1, 1024), st.data())
def test_inverse_sqrt_is_the_papers_rate(warmup: int, d_model: int, data: Any) -> None:
    """d_model^-0.5 min(n^-0.5, n warmup^-1.5), n from 1; Vaswani et al. 2017, equation 3."""
    n = data.draw(st.integers(1, 10 * warmup))
    schedule: Any = Schedule.resolve({"part": "inverse_sqrt", "warmup": warmup})
    lr = (d_model * warmup) ** -0.5
    paper = d_model**-0.5 * min(n**-0.5, n * warmup**-1.5)
    assert lr * schedule.factor(n - 1, 10 * warmup) == pytest.approx(paper, rel=EXACT)


@given(st.integers(1, 50), st.integers(1, 500), st.integers(1, 500))
def test_inverse_sqrt_needs_no_plan(warmup: int, steps: int, more: int) -> None:
    """A longer run begins like a shorter one."""
    words = {"part": "inverse_sqrt", "warmup": warmup}
    assert factors(words, steps + more)[:steps] == factors(words, steps)


@pytest.mark.parametrize("kind", sorted(REGISTRY["schedule"]))
@given(warmup=st.integers(0, 30), after=st.integers(2, 60), final=st.floats(0, 1), data=st.data())
def test_every_schedule_rises_to_its_peak_and_never_jumps(
    kind: str, warmup: int, after: int, final: float, data: Any
) -> None:
    words = {"part": kind, "warmup": warmup}
    if "final" in REGISTRY["schedule"][kind].model_fields:
        words["final"] = final
    if kind == "wsd":
        words["decay"] = 0.3 * after / (warmup + after)  # no fall before the rise has ended
    steps = warmup + after
    found = factors(words, steps)
    assert all(0 <= factor <= 1 for factor in found)
    assert found[:warmup] == [(step + 1) / warmup for step in range(warmup)]
    assert found[max(0, warmup - 1)] == 1 == max(found)
    falls = [a - b for a, b in pairwise(found[max(0, warmup - 1) :])]
    assert all(fall >= -EXACT for fall in falls)
    # the steepest that each formula can be: the line, half a cosine (pi / 2 times as steep), sqrt(w / n) at its start
    span = {"cosine": max(1, after - 1) / (math.pi / 2), "linear": max(1, after - 1), "inverse_sqrt": max(1, warmup)}
    assert kind == "constant" or max(falls) <= 1 / span.get(kind, max(1, round(0.3 * after))) + EXACT
    shuffled = data.draw(st.permutations(range(steps)))
    schedule: Any = Schedule.resolve(words)
    assert [schedule.factor(step, steps) for step in shuffled] == [found[step] for step in shuffled]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"part": "linear", "warmup": -1}, "schedule.warmup=-1: input should be greater than or equal to 0"),
        ({"part": "linear", "final": 1.5}, "schedule.final=1.5: input should be less than or equal to 1"),
        ({"part": "inverse_sqrt", "warmup": -1}, "schedule.warmup=-1: input should be greater than or equal to 0"),
        ({"part": "inverse_sqrt", "final": 0.1}, "unknown option 'schedule.final'"),
    ],
)
def test_options_out_of_range_are_refused(words: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Schedule.resolve(words)
    assert str(caught.value).startswith(message) and "\n" not in str(caught.value)

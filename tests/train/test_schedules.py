"""Schedules are pure functions of the step that match the papers' formulas, peak after the warmup, and do not jump."""

import math
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partwise.config import REGISTRY, ConfigError
from partwise.train.schedules import Schedule

EXACT = 1e-12


def factors(options: dict[str, Any], steps: int) -> list[float]:
    schedule: Any = Schedule.resolve(options)
    return [schedule.factor(step, steps) for step in range(steps)]


def test_linear_exact_values() -> None:
    assert factors({"part": "linear", "warmup": 0}, 5) == [1, 0.75, 0.5, 0.25, 0]
    assert factors({"part": "linear", "warmup": 2, "min_lr_ratio": 0.5}, 7) == [0.5, 1, 1, 0.875, 0.75, 0.625, 0.5]
    assert factors({"part": "linear", "warmup": 4}, 3) == [0.25, 0.5, 0.75]  # ends during the warmup
    assert factors({"part": "linear", "warmup": 3}, 4) == [1 / 3, 2 / 3, 1, 1]
    assert factors({"part": "linear", "warmup": 0}, 1) == [1]


def test_inverse_sqrt_exact_values() -> None:
    values = factors({"part": "inverse_sqrt", "warmup": 4}, 64)
    assert values[:4] == [0.25, 0.5, 0.75, 1] and values[15] == 0.5 and values[63] == 0.25
    assert values[4] == pytest.approx(math.sqrt(4 / 5), rel=EXACT)
    assert factors({"part": "inverse_sqrt", "warmup": 0}, 9)[::3] == [1, 0.5, pytest.approx(7**-0.5, rel=EXACT)]


@given(st.integers(1, 4000), st.integers(1, 1024), st.data())
def test_inverse_sqrt_equals_the_paper(warmup: int, d_model: int, data: Any) -> None:
    """d_model^-0.5 min(n^-0.5, n warmup^-1.5), n from 1; Vaswani et al. 2017, equation 3."""
    n = data.draw(st.integers(1, 10 * warmup))
    schedule: Any = Schedule.resolve({"part": "inverse_sqrt", "warmup": warmup})
    lr = (d_model * warmup) ** -0.5
    paper = d_model**-0.5 * min(n**-0.5, n * warmup**-1.5)
    assert lr * schedule.factor(n - 1, 10 * warmup) == pytest.approx(paper, rel=EXACT)


@given(st.integers(1, 50), st.integers(1, 500), st.integers(1, 500))
def test_inverse_sqrt_does_not_depend_on_the_number_of_steps(warmup: int, steps: int, more: int) -> None:
    """A longer run starts with the learning rates of a shorter one."""
    options = {"part": "inverse_sqrt", "warmup": warmup}
    assert factors(options, steps + more)[:steps] == factors(options, steps)


@pytest.mark.parametrize("kind", sorted(REGISTRY["schedule"]))
@given(warmup=st.integers(0, 30), after=st.integers(2, 60), min_lr_ratio=st.floats(0, 1), data=st.data())
def test_every_schedule_peaks_after_the_warmup_and_does_not_jump(
    kind: str, warmup: int, after: int, min_lr_ratio: float, data: Any
) -> None:
    options = {"part": kind, "warmup": warmup}
    if "min_lr_ratio" in REGISTRY["schedule"][kind].model_fields:
        options["min_lr_ratio"] = min_lr_ratio
    if kind == "wsd":
        options["decay_fraction"] = 0.3 * after / (warmup + after)  # so that the decay starts after the warmup
    steps = warmup + after
    values = factors(options, steps)
    assert all(0 <= factor <= 1 for factor in values)
    assert values[:warmup] == [(step + 1) / warmup for step in range(warmup)]
    assert values[max(0, warmup - 1)] == 1 == max(values)
    drops = [a - b for a, b in pairwise(values[max(0, warmup - 1) :])]
    assert all(drop >= -EXACT for drop in drops)
    # the largest drop of each formula: linear, half a cosine (pi / 2 times as steep), sqrt(w / n) at its first step
    span = {"cosine": max(1, after - 1) / (math.pi / 2), "linear": max(1, after - 1), "inverse_sqrt": max(1, warmup)}
    assert kind == "constant" or max(drops) <= 1 / span.get(kind, max(1, round(0.3 * after))) + EXACT
    shuffled = data.draw(st.permutations(range(steps)))
    schedule: Any = Schedule.resolve(options)
    assert [schedule.factor(step, steps) for step in shuffled] == [values[step] for step in shuffled]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"part": "linear", "warmup": -1}, "schedule.warmup=-1: input should be greater than or equal to 0"),
        ({"part": "linear", "min_lr_ratio": 1.5}, "schedule.min_lr_ratio=1.5: input should be less than or equal to 1"),
        ({"part": "inverse_sqrt", "warmup": -1}, "schedule.warmup=-1: input should be greater than or equal to 0"),
        ({"part": "inverse_sqrt", "min_lr_ratio": 0.1}, "unknown option 'schedule.min_lr_ratio'"),
    ],
)
def test_options_out_of_range_raise(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Schedule.resolve(options)
    assert str(caught.value).startswith(message) and "\n" not in str(caught.value)

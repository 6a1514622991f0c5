"""Requirements on verdicts: met, not met or undecided, for either direction of the metric, and never met by failed runs."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partwise.comparison.gate import MET, NOT_MET, UNDECIDED, Requirement, gate_status
from partwise.comparison.stats.effect import Effect
from partwise.comparison.stats.protocol import Claim, Rules
from partwise.config import ConfigError


def effect(mean: float, sd: float, failures: int = 0, lower: bool = True, n: int = 8) -> Effect:
    draw = random.Random(0)
    noise = [draw.gauss(0, 1) for _ in range(n)]
    center = sum(noise) / n
    scale = math.sqrt(sum((x - center) ** 2 for x in noise) / (n - 1))
    arm = {seed: mean + sd * (x - center) / scale for seed, x in enumerate(noise)}
    arm |= dict.fromkeys(range(failures), math.nan)
    values = {"base": dict.fromkeys(range(n), 0.0), "branch": arm}
    return Rules(margin=0.01, looks=(), lower_is_better=lower).judge(values, [Claim("branch", "base")])[0]


@pytest.mark.parametrize(
    ("mean", "sd", "failures", "better", "not_worse"),
    [
        (-0.1, 0.01, 0, MET, MET),
        (0.1, 0.01, 0, NOT_MET, NOT_MET),
        (0.0, 0.001, 0, NOT_MET, MET),
        (0.0, 0.1, 0, UNDECIDED, UNDECIDED),
        (0.0, 0.013, 0, NOT_MET, MET),  # equivalent by the interval at 90%; that at 95% exceeds the margin
        (-0.05, 0.065, 0, UNDECIDED, MET),  # the interval includes zero, and its bad end is within the margin
        (-0.1, 0.01, 1, NOT_MET, NOT_MET),
        (-0.1, 0.01, 8, NOT_MET, NOT_MET),
    ],
)
@pytest.mark.parametrize("lower", [True, False])
def test_what_meets_a_requirement(
    mean: float, sd: float, failures: int, better: int, not_worse: int, lower: bool
) -> None:
    found = effect(mean if lower else -mean, sd, failures, lower)
    assert Requirement("branch", "better").status(found) == better
    assert Requirement("branch", "not-worse").status(found) == not_worse


@given(st.floats(-0.2, 0.2), st.floats(1e-4, 0.2), st.booleans())
def test_better_implies_not_worse_and_worse_meets_nothing(mean: float, sd: float, lower: bool) -> None:
    found = effect(mean, sd, 0, lower)
    better, not_worse = (Requirement("branch", kind).status(found) for kind in ("better", "not-worse"))
    if better == MET:
        assert not_worse == MET
    if found.verdict == "equivalent":
        assert not_worse == MET
    if found.verdict == "worse":
        assert better == NOT_MET


def test_one_that_is_not_met_decides() -> None:
    good, unclear = effect(-0.1, 0.01), effect(0.0, 0.1)
    better, not_worse = Requirement("branch", "better"), Requirement("branch", "not-worse")
    assert gate_status([], [good]) == MET
    assert gate_status([better], [unclear]) == UNDECIDED
    assert gate_status([better, not_worse], [effect(0.0, 0.001)]) == NOT_MET


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("wide", "expected 'ARM better' or 'ARM not-worse'"),
        ("wide best", "expected 'ARM better'"),
        ("better", "expected 'ARM better'"),
        ("wid better", "no claim is about 'wid'; did you mean 'wide'"),
    ],
)
def test_a_requirement_that_means_nothing_is_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Requirement.parse(text, ["wide", "ffn=geglu norm=rmsnorm"])
    assert Requirement.parse("ffn=geglu norm=rmsnorm not-worse", ["ffn=geglu norm=rmsnorm"]).kind == "not-worse"

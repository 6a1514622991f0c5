"""Compute saved at equal loss: known curves give known ratios, censored ones give bounds, and intervals cover."""

import math
import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partwise.comparison.stats.compute_saved import Saved, log_ratio, steps_at, steps_saved

HORIZONS = (500, 1000, 2000, 4000, 8000)


def power_law(speed: float, horizons: tuple[int, ...] = HORIZONS, shift: float = 0.0) -> list[tuple[int, float]]:
    """Losses that are linear in the logarithm of the steps, of an arm that is `speed` times as fast."""
    return [(steps, 3.0 - 0.2 * math.log(steps * speed) + shift) for steps in horizons]


@given(speed=st.floats(1 / 10, 10))
def test_an_arm_that_is_n_times_as_fast_saves_that_factor(speed: float) -> None:
    ratio = log_ratio(power_law(speed), power_law(1.0))
    assert ratio.value == pytest.approx(math.log(speed), abs=1e-9) and not ratio.censored


@given(speed=st.floats(1 / 100, 100), other=st.floats(1 / 100, 100))
def test_the_ratio_is_antisymmetric(speed: float, other: float) -> None:
    one, two = log_ratio(power_law(speed), power_law(other)), log_ratio(power_law(other), power_law(speed))
    assert one.value == pytest.approx(-two.value, abs=1e-9) and one.censored == two.censored


def test_equal_arms_save_nothing() -> None:
    assert log_ratio(power_law(1.0), power_law(1.0)) == (0.0, False)


def test_the_first_crossing_of_a_curve_that_rises_counts() -> None:
    assert steps_at(1.5, [(100, 2.0), (200, 1.0), (400, 3.0), (800, 1.2)])[0] == pytest.approx(100 * math.sqrt(2))


def test_a_loss_reached_before_the_shortest_run_ends_is_a_bound() -> None:
    assert log_ratio(power_law(100), power_law(1)) == (pytest.approx(math.log(16)), True)
    assert log_ratio(power_law(1), power_law(100)) == (pytest.approx(-math.log(16)), True)
    assert steps_at(2.0, [(100, 2.0), (200, 1.0)]) == (100.0, False)  # reached exactly at its end


OVERFIT = [(500, 1.44), (1000, 1.46), (2000, 1.45)]


@pytest.mark.parametrize(
    "other", [[(500, 1.60), (1000, 1.50), (2000, 1.40)], [(500, 1.45), (1000, 1.44), (2000, 1.45)]]
)
def test_no_compute_is_saved_at_a_loss_that_a_shorter_run_had(other: list[tuple[int, float]]) -> None:
    """The first arm ends lower; the overfit one, which had its final loss earlier, would seem to need fewer steps."""
    for pairs in ([(other, OVERFIT)] * 4, [(OVERFIT, other)] * 4):
        assert steps_saved(pairs, 0.05) == "a loss does not fall with the number of steps"


def test_a_bound_that_changes_sides_is_unknown() -> None:
    bound = Saved(None, 1.5, None, 4, 4)
    assert bound.times(0.5) is None and bound.times(0.8) == Saved(None, pytest.approx(1.2), None, 4, 4)
    assert Saved(None, None, 0.7, 4, 4).times(2.0) is None


def test_a_loss_that_no_run_reached_is_an_error() -> None:
    with pytest.raises(ValueError, match="reached"):
        steps_at(0.5, [(100, 2.0), (200, 1.0)])


def test_censored_pairs_give_one_end_of_the_interval() -> None:
    rng = random.Random(0)
    pairs = [(power_law(30 * math.exp(rng.gauss(0, 0.1))), power_law(1.0)) for _ in range(6)]
    found = steps_saved(pairs, 0.05)
    assert found == Saved(None, pytest.approx(16.0), None, 6, 6)
    worse = steps_saved([(baseline, arm) for arm, baseline in pairs], 0.05)
    assert worse == Saved(None, None, pytest.approx(1 / 16), 6, 6)
    some = steps_saved([*pairs[:2], *((power_law(8 * x), power_law(1.0)) for x in (1.0, 1.1))], 0.05)
    assert isinstance(some, Saved) and some.ratio is None and some.high is None and some.n_censored == 2
    assert some.low is not None and 1 < some.low < 12


@pytest.mark.parametrize(
    ("pairs", "reason"),
    [
        ([(power_law(1), power_law(2))], "two pairs"),
        ([(power_law(1), power_law(2)), (power_law(1), [(500, 2.0), (8000, math.nan)])], "failed"),
        ([(power_law(1), power_law(100)), (power_law(100), power_law(1))], "different seeds"),
        ([(power_law(100), power_law(1)), (power_law(1.01), power_law(1))], "too different"),
        ([(power_law(100), power_law(1))] * 5, "5 pairs are too few for a bound"),
        ([(power_law(speed, (500, 1000)), power_law(1, (500, 1000))) for speed in (1.9, 2.1)], "two lengths"),
    ],
    ids=["one pair", "failed", "both lead", "spread", "few pairs, all censored", "two lengths, some censored"],
)
def test_what_cannot_be_computed_says_why(pairs: list, reason: str) -> None:
    found = steps_saved(pairs, 0.05)
    assert isinstance(found, str) and reason in found


CURVES: dict[str, Callable[[float], float]] = {
    "a power law with a floor": lambda n: 1.1 + 9.0 * n**-0.45,
    "a power law without one": lambda n: 5.0 * n**-0.17,
    "a square of the logarithm": lambda n: 1.4 - 0.14 * math.log(n / 2000) + 0.045 * math.log(n / 2000) ** 2,
}


@pytest.mark.parametrize("curve", CURVES.values(), ids=CURVES)
@pytest.mark.parametrize("ratio", [1 / 3, 0.8, 1.2, 1.7, 3.0])
def test_intervals_of_noisy_pairs_cover_the_true_ratio(curve: Callable[[float], float], ratio: float) -> None:
    """400 simulated comparisons of 8 pairs; a run has a noise of 0.007 nats, half of whose variance the seed's runs share."""
    rng, draws, sd = random.Random(1), 400, 0.007 / math.sqrt(2)

    def ends(speed: float) -> list[tuple[int, float]]:
        shared = rng.gauss(0, sd)
        return [(steps, curve(steps * speed) + shared + rng.gauss(0, sd)) for steps in (500, 1000, 2000)]

    centers, covered = [], 0
    for _ in range(draws):
        found = steps_saved([(ends(ratio), ends(1.0)) for _ in range(8)], 0.05)
        assert isinstance(found, Saved) and found.ratio and found.low and found.high
        covered += found.low <= ratio <= found.high
        centers.append(math.log(found.ratio))
    assert 0.9 <= covered / draws <= 0.98
    assert abs(sum(centers) / draws - math.log(ratio)) < 0.015


@pytest.mark.parametrize(
    "steps", [(500, 1000, 2000), (500, 2000, 8000), (300, 400, 8000), (500, 1000, 2000, 4000, 8000)]
)
@pytest.mark.parametrize("power", [0.45, -0.3])
@pytest.mark.parametrize("speed", [0.7, 1.1, 1.9])
def test_a_power_law_through_three_ends_is_exact(steps: tuple[int, ...], power: float, speed: float) -> None:
    """The second law bends downwards."""
    arm, baseline = ([(n, 1.1 + math.copysign(9.0, power) * (n * x) ** -power) for n in steps] for x in (speed, 1.0))
    assert log_ratio(arm, baseline) == (pytest.approx(math.log(speed), abs=1e-6), False)


@pytest.mark.parametrize("middle", [1.5001, 1.9999, 1.5, 2.0, 2.1])
def test_the_steps_lie_between_those_of_the_two_ends(middle: float) -> None:
    """Also if the ends are equal but for noise, or rise."""
    ends = [(500, 2.0), (1000, middle), (2000, 1.5)]
    before = [steps_at(loss, ends)[0] for loss in (1.99, 1.9, 1.7, 1.55, 1.51)]
    assert before == sorted(before) and before[0] > 500 and before[-1] < 2000


def test_runs_of_two_lengths_give_a_ratio_without_an_interval() -> None:
    """The shape of the curve between them is unknown."""
    pairs = [(power_law(speed, (500, 2000)), power_law(1.0, (500, 2000))) for speed in (1.4, 1.5, 1.6)]
    center = (1.4 * 1.5 * 1.6) ** (1 / 3)
    assert steps_saved(pairs, 0.05) == Saved(pytest.approx(center), None, None, 3, 0)
    assert Saved(1.5, None, None, 3, 0).times(0.5) == Saved(0.75, None, None, 3, 0)


@pytest.mark.parametrize("n", [2, 4, 6, 8])
def test_a_bound_is_wrong_at_most_as_often_as_one_end_of_an_interval(n: int) -> None:
    """The true ratio is just below 16, the largest that runs of these lengths can show; one end of 95% is 2.5%."""
    rng, wrong, draws = random.Random(n), 0, 2000
    for _ in range(draws):
        pairs = [(power_law(15.99 * math.exp(rng.gauss(0, 0.2))), power_law(1.0)) for _ in range(n)]
        found = steps_saved(pairs, 0.05)
        wrong += isinstance(found, Saved) and found.low is not None and found.low > 15.99
    assert wrong / draws <= 0.025 + 3 * math.sqrt(0.025 * 0.975 / draws)


def test_other_measures_scale_the_ratio() -> None:
    assert Saved(1.5, 1.2, 1.8, 8, 0).times(0.5) == Saved(0.75, 0.6, 0.9, 8, 0)
    assert Saved(None, 4.0, None, 8, 8).times(2.0) == Saved(None, 8.0, None, 8, 8)

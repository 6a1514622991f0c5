"""The expected squared regret against a plain grid over the normal noise, and against values worked out by hand."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import linalg

from partwise.comparison.stats.expected_regret import mean_squared_regret
from partwise.comparison.stats.methods import find_method

BASELINE = [
    [1.6276746, 1.6271155, 1.6167026, 1.6360876],
    [1.6140224, 1.6220506, 1.6127917, 1.6295978],
    [1.6288096, 1.6287710, 1.6390473, 1.6389275],
    [1.6241429, 1.6427682, 1.6319498, 1.7028724],
]
LEARNED_POSITIONS = [
    [1.9077992, 1.9456799, 1.9195455, 1.9187461],
    [1.8544519, 1.8413248, 1.8369900, 1.8694015],
    [1.7726540, 1.7760881, 1.7481007, 1.7483322],
    [1.7729416, 1.8947475, 2.4472306, 2.4716260],
]


def on_a_grid(losses: np.ndarray, step: float = 0.1) -> float:
    """The expected squared regret of four seeds, summed over a grid of the three dimensions of their noise."""
    z = np.arange(-7, 7 + step / 2, step)
    weight = np.exp(-(z**2) / 2) * step / math.sqrt(2 * math.pi)
    means = losses.mean(axis=1)
    loads = losses @ linalg.null_space(np.ones((1, 4))) / math.sqrt(12)
    _, _, axes = np.linalg.svd(loads - loads[means.argmin()])
    loads = loads @ axes.T
    redrawn = [m + a * z[:, None, None] + b * z[:, None] + c * z for m, (a, b, c) in zip(means, loads, strict=True)]
    regret = redrawn[means.argmin()] - np.minimum.reduce(redrawn)
    return float(np.einsum("ijk,i,j,k->", regret**2, weight, weight, weight))


@settings(max_examples=12, deadline=None)
@given(st.integers(2, 6), st.floats(0.0, 1.0), st.sampled_from([1.0, 10.0, 50.0]), st.integers(0, 2**32 - 1))
def test_the_quadrature_agrees_with_a_grid(n_values: int, curvature: float, unstable: float, seed: int) -> None:
    truth = curvature * (np.arange(n_values) - n_values / 2) ** 2
    losses = truth[:, None] + np.random.default_rng(seed).standard_normal((n_values, 4))
    losses[-1] *= unstable
    scale = losses.std(axis=1, ddof=1).min() / 2
    error = math.sqrt(mean_squared_regret(losses))
    assert math.isclose(error, math.sqrt(on_a_grid(losses)), rel_tol=2e-3, abs_tol=2e-3 * scale)


@pytest.mark.parametrize("n_seeds", [2, 3, 4, 8])
def test_two_equal_values_have_half_the_variance_of_their_difference(n_seeds: int) -> None:
    noise = np.arange(n_seeds) - (n_seeds - 1) / 2
    losses = np.stack([noise, -noise])
    expected = (2 * noise).var(ddof=1) / n_seeds / 2
    assert math.isclose(mean_squared_regret(losses), expected, rel_tol=5e-3)


def test_the_second_method_needs_no_random_seed() -> None:
    """The noise of two published curves, one of them unstable at its highest value: 0.0195, and 0.0144 by 2,000 draws."""
    first, second = (find_method(n).tuning_noise(LEARNED_POSITIONS, BASELINE).standard_error for n in (1, 2))
    expected = math.sqrt(2 * sum(on_a_grid(np.array(curve)) for curve in (LEARNED_POSITIONS, BASELINE)))
    assert math.isclose(second, expected, rel_tol=1e-3)
    assert first < 0.8 * second


def test_the_order_of_the_seeds_does_not_matter() -> None:
    order = [2, 0, 3, 1]
    losses = np.array(LEARNED_POSITIONS)
    assert math.isclose(mean_squared_regret(losses), mean_squared_regret(losses[:, order]), rel_tol=5e-3)

"""Sample statistics against scipy and against brute force."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from partwise.comparison.stats.intervals import judge
from partwise.comparison.stats.samples import FLIPS, fisher_exact, sign_flip_p, t_interval

tables = st.integers(1, 30).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n)))


@given(tables, tables)
def test_fisher_agrees_with_scipy(a: tuple[int, int], b: tuple[int, int]) -> None:
    expected = stats.fisher_exact([[a[0], a[1] - a[0]], [b[0], b[1] - b[0]]]).pvalue
    assert math.isclose(fisher_exact(*a, *b), expected, rel_tol=1e-9)


@pytest.mark.parametrize("n", [2, 3, 5, 10])
def test_sign_flip_p_is_the_fraction_of_all_sign_changes(n: int) -> None:
    x = np.random.default_rng(n).normal(0.5, 1, n)
    sums = [
        abs(sum(sign * value for sign, value in zip(signs, x, strict=True)))
        for signs in itertools.product((1, -1), repeat=n)
    ]
    expected = np.mean(np.array(sums) >= abs(x.sum()) - 1e-12)
    assert math.isclose(sign_flip_p(x.tolist()) or 0.0, expected, rel_tol=1e-12)
    effect = judge("a", "b", dict(enumerate(x.tolist())), dict.fromkeys(range(n), 0.0))
    assert math.isclose(effect.p_sign_flip or 0.0, expected, rel_tol=1e-12)


def test_sign_flip_p_at_its_limits() -> None:
    assert sign_flip_p([1.0] * 16) == 2 / 2**16, "exact up to 16 differences"
    assert sign_flip_p([1.0] * 40) == 1 / (1 + FLIPS), "random beyond, and never 0"
    assert sign_flip_p([0.1, -0.1, 0.2, -0.2]) == 1.0
    assert sign_flip_p([1.0] * 101) is None
    x = np.random.default_rng(1).normal(0.3, 1, 30)
    expected = stats.permutation_test((x,), np.sum, permutation_type="samples", n_resamples=20_000, rng=2).pvalue
    found = sign_flip_p(x.tolist())
    assert found is not None and abs(found - expected) < 5 * math.sqrt(expected / 20_000)
    assert sign_flip_p(x.tolist()) == found, "fixed seed"


def test_the_t_interval_of_a_sample_agrees_with_scipy() -> None:
    x = np.random.default_rng(0).normal(size=6)
    expected = stats.t.interval(0.99, 5, x.mean(), stats.sem(x))
    assert t_interval(x.tolist(), 0.01) == pytest.approx(expected, rel=1e-12)
    assert t_interval([1.0], 0.05) == t_interval([0.1 + 0.2, 0.3], 0.05) == (None, None)

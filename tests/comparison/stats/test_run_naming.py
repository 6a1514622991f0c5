"""Arm and seed of a run's name: nothing is taken for a seed that could be anything else."""

import re
import string
from datetime import datetime

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from partwise.comparison.stats.run_naming import name_runs
from partwise.config import ConfigError


def arms_of(names: list[str], pattern: str | None = None, nested: bool = False) -> dict[str, set[int]]:
    arms: dict[str, set[int]] = {}
    for run in name_runs(names, pattern, "runs", nested).values():
        arms.setdefault(run.arm, set()).add(run.seed)
    return arms


WORDS = st.text(string.ascii_lowercase + string.digits + "-_.", min_size=1, max_size=8).filter(
    lambda word: word[0] not in "-_" and word[-1] in string.ascii_lowercase and not re.search(r"\d\.?e$", word)
)
"""Names of arms that do not end in a number, nor in what an exponent begins with: 0e-1 is 0, not seed 1 of the arm 0e."""

SEEDS = st.sets(st.integers(0, 99), min_size=2, max_size=4)

EXPONENTS = st.builds(
    "{}{}{}{}".format, st.sampled_from(["1", "3", "2.5", "0."]), st.sampled_from("eE"), st.just("-"), st.integers(1, 12)
)
DATES = st.builds(
    lambda date, form: date.strftime(form),
    st.datetimes(datetime(1900, 1, 1), datetime(2099, 12, 31)),
    st.sampled_from(["%Y-%m-%d", "%Y%m%d", "%Y_%m_%d", "%d-%m-%Y", "%Y-%m", "%Y%m%d-%H%M%S", "%Y-%m-%d_%H-%M-%S"]),
)


@given(
    st.sets(WORDS, min_size=2, max_size=4), SEEDS, st.sampled_from(["-{}", "_{}", "/{}", "-seed{}", "_seed_{}", "-s{}"])
)
def test_a_trailing_number_that_arms_share_is_the_seed(arms: set[str], seeds: set[int], form: str) -> None:
    names = [arm + form.format(seed) for arm in arms for seed in seeds]
    assert arms_of(names) == dict.fromkeys(arms, seeds)
    assert arms_of(names, "{arm}" + form.format("{seed}")) == dict.fromkeys(arms, seeds)


@given(
    st.sets(WORDS, min_size=2, max_size=3), st.sets(EXPONENTS | DATES, min_size=2, max_size=3), st.sampled_from("-_")
)
def test_an_exponent_or_a_date_has_no_seed(arms: set[str], ends: set[str], separator: str) -> None:
    """Even where arms share them; and with a seed behind them, they belong to the arm."""
    names = [f"{arm}{separator}{end}" for arm in arms for end in ends]
    with pytest.raises(ConfigError, match="give the names' pattern, as in --run-names"):
        name_runs(names, None, "runs")
    assert arms_of([f"{name}/seed{seed}" for name in names for seed in (0, 1)]) == {name: {0, 1} for name in names}


@given(st.dictionaries(WORDS, SEEDS, min_size=1, max_size=4))
def test_a_number_that_arms_do_not_share_is_no_seed(arms: dict[str, set[int]]) -> None:
    """Unless the word is there, by which nothing is guessed."""
    chosen = list(arms.values())
    assume(all(len(a & b) < 2 for i, a in enumerate(chosen) for b in chosen[:i]))
    with pytest.raises(ConfigError, match="no two arms share two seeds if"):
        name_runs([f"{arm}-{seed}" for arm, seeds in arms.items() for seed in seeds], None, "runs")
    assert arms_of([f"{arm}-seed{seed}" for arm, seeds in arms.items() for seed in seeds]) == arms


@pytest.mark.parametrize(
    "names",
    [
        ["adam-1e-3", "adam-1e-4", "sgd-1e-3", "sgd-1e-4"],
        ["lr3e-4", "lr3e-5", "wd3e-4", "wd3e-5"],
        ["0e-0", "0e-1", "2.e-0", "2.e-1"],
        ["base-2024-01-01", "base-2024-01-02", "wide-2024-01-01", "wide-2024-01-02"],
        ["base-0", "base-1", "wide-10", "wide-11"],
        ["gpt-2", "gpt-4"],
        ["Jan01_10-00-00", "Jan02_10-00-00"],
    ],
)
def test_names_that_a_person_must_explain(names: list[str]) -> None:
    with pytest.raises(ConfigError, match="--run-names") as caught:
        name_runs(names, None, "runs")
    assert "\n" not in str(caught.value)


def test_the_folder_of_a_run() -> None:
    """The nearest to the root of which arms share seeds; a date or a width above it is none."""
    for form in ("{}-{}/version_0", "2024-01-01/{}-{}", "width-3/{}-{}", "exp-7/{}/seed_{}/logs"):
        names = [form.format(arm, seed) for arm in ("base", "wide") for seed in (0, 1)]
        runs = name_runs(names, None, "runs", nested=True)
        assert sorted((run.arm.split("/")[-1], run.seed) for run in runs.values()) == [
            ("base", 0),
            ("base", 1),
            ("wide", 0),
            ("wide", 1),
        ]

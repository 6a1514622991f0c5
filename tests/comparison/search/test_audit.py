"""The audit of a search: what chance keeps, by simulated searches and exact sums; noise from repeats; what to run without."""

import math

import numpy as np
import pytest

from partwise.comparison.search.audit import Noise, audit, chance_gain, noise_of_repeats, record_counts
from partwise.comparison.search.audit_text import headline, notes
from partwise.comparison.search.results_tsv import Row, Status
from partwise.config import ConfigError

GIVEN = Noise(sd=0.001, df=None, source="a test")


def rows_of(values: list[float | None], repeats: list[float] | None = None) -> list[Row]:
    """A search that keeps whatever is better than its present best."""
    best, rows = math.inf, []
    for number, value in enumerate(values):
        status: Status = "crash" if value is None else "keep" if value < best else "discard"
        best = min(best, math.inf if value is None else value)
        rows.append(Row(commit=f"c{number}", value=value, status=status, description="", line=number + 2))
    return rows + [Row(commit="c0", value=value, status="discard", description="") for value in repeats or ()]


def test_what_chance_keeps_agrees_with_simulated_searches() -> None:
    runs = np.random.default_rng(0).normal(size=(40_000, 31))
    kept = np.sum(runs[:, 1:] < np.minimum.accumulate(runs, axis=1)[:, :-1], axis=1)
    counts = record_counts(30)
    assert np.sum(counts) == pytest.approx(1, abs=1e-12)
    assert counts @ np.arange(31) == pytest.approx(sum(1 / i for i in range(2, 32)))
    assert np.bincount(kept, minlength=31)[:10] / 40_000 == pytest.approx(counts[:10], abs=0.01)
    gain = runs[:, 0] - runs.min(axis=1)
    for probability in (0.025, 0.5, 0.975):
        assert chance_gain(30, probability) == pytest.approx(np.quantile(gain, probability), abs=0.05)


def test_the_range_covers_what_null_searches_keep() -> None:
    rng = np.random.default_rng(1)
    covered = shown = 0
    for _ in range(150):
        harm = np.where(rng.uniform(size=41) < 0.5, 0.0, 0.002)  # half do nothing, half harm by 2 SDs
        harm[0] = 0
        found = audit(rows_of(list(1 + harm + rng.normal(0, 0.001, 41))), known=GIVEN)
        assert found.low is not None and found.high is not None and found.chance_high is not None
        covered += found.low <= len(found.kept) <= found.high
        shown += len(found.kept) > found.high or found.gain > found.chance_high
    assert covered > 135 and shown <= 8


def test_the_noise_comes_from_repeats_of_a_commit_and_a_real_gain_is_seen() -> None:
    values: list[float | None] = [1.0, 0.9, None, 0.8, 0.95, 0.7, 0.6]
    found = audit(rows_of(values, repeats=[1.001, 0.999, 1.002]))
    assert found.noise is not None and found.noise.df == 3
    assert found.noise.sd == pytest.approx(np.std([1.0, 1.001, 0.999, 1.002], ddof=1))
    assert (found.candidates, found.crashes, found.repeats, len(found.kept)) == (5, 1, 3, 4)
    assert found.gain == pytest.approx(0.4) and found.contenders == 4  # 0.95 after 0.8 harms
    assert "the gain is more than that" in headline(found)[1]
    mirrored = [Row(commit=r.commit, value=None if r.value is None else -r.value, status=r.status, description="")
                for r in rows_of(values, repeats=[1.001, 0.999, 1.002])]  # fmt: skip
    assert audit(mirrored, lower_is_better=False).expected == found.expected


def test_without_a_repeat_there_is_no_number_but_what_to_run() -> None:
    found = audit(rows_of([1.0, 0.99, 1.01]))
    assert found.noise is None and found.expected is None and found.kept[0].p is None
    text = " ".join([*headline(found), *notes(found)])
    assert "Run commit c1 4 more times unchanged" in text and "would keep 0" not in text
    copied = audit(rows_of([1.0, 0.99], repeats=[1.0, 1.0]))  # one seed, run again
    assert copied.noise is None and noise_of_repeats([]) is None
    nothing = headline(audit(rows_of([1.0, 1.1], repeats=[1.01])))
    assert nothing == [
        "The search kept 0 of 1 candidate. A search in which nothing helps would keep 0.0 (0 to 0) of these."
    ]
    parents = [Row(commit="a", value=value, status="discard", description="") for value in (1.0, 1.1, 0.9, 1.2)]
    assert "Warning: most lines have the commit of another" in " ".join(notes(audit(parents)))
    with pytest.raises(ConfigError, match="fewer than 2 runs"):
        audit(rows_of([1.0, None]))

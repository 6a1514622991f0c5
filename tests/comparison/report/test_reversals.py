"""A sentence says that a shorter run would have shown the opposite if, and only if, it would have."""

import pytest

from partwise.comparison.report.reversals import reversals
from partwise.comparison.results import Results
from partwise.comparison.stats.intervals import judge


def results(values: dict[int, float], points: list[tuple[int, float, float]]) -> Results:
    """Results of arm b against a, whose losses are 2.0, with an (step, low, high) at each evaluation."""
    effect = judge("b", "a", values, dict.fromkeys(values, 2.0))
    curve = [{"step": step, "mean": (low + high) / 2, "low": low, "high": high} for step, low, high in points]
    protocol = {"metric": "validation loss", "unit": "nats", "lower_is_better": True, "margin": 0.005, "alpha": 0.05}
    claims = [{"effect": effect.to_dict(), "effect_over_training": curve}]
    arms = [{"name": "a"}, {"name": "b"}]
    return Results.from_dict(
        {"format": 3, "question": "?", "protocol": protocol, "seeds": [*values], "arms": arms, "claims": claims}
    )


WORSE, BETTER = {0: 2.1, 1: 2.11, 2: 2.12}, {0: 1.9, 1: 1.89, 2: 1.88}


@pytest.mark.parametrize(
    ("values", "points", "said"),
    [
        (
            WORSE,
            [(100, -0.2, -0.1), (200, -0.1, -0.02), (300, -0.01, 0.02), (400, 0.05, 0.15)],
            "better than a at step 200",
        ),
        (BETTER, [(100, 0.1, 0.2), (400, -0.15, -0.05)], "worse than a at step 100"),
        (WORSE, [(100, 0.1, 0.2), (400, 0.05, 0.15)], None),
        (WORSE, [(100, -0.2, 0.01), (400, 0.05, 0.15)], None),  # the interval at step 100 contains 0
        ({0: 2.1, 1: 1.9, 2: 2.01}, [(100, -0.2, -0.1), (400, -0.2, 0.2)], None),  # undecided at the end
    ],
)
def test_a_reversal_is_told_if_intervals_exclude_zero(
    values: dict[int, float], points: list[tuple[int, float, float]], said: str | None
) -> None:
    sentences = list(reversals(results(values, points)))
    assert len(sentences) == (said is not None)
    assert said is None or f"b was {said}" in sentences[0]

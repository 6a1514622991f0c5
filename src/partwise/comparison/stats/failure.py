"""Which runs failed: their results are not finite, or worse than the threshold of the comparison's rules."""

LARGEST = 1e100
"""A run whose result exceeds this in magnitude failed, which keeps sums finite."""


def has_failed(value: float, failure: float | None, lower_is_better: bool) -> bool:
    """Whether a run failed: its value is not finite, or worse than `failure` if that is not None."""
    if not abs(value) <= LARGEST:
        return True
    return failure is not None and (value > failure if lower_is_better else value < failure)

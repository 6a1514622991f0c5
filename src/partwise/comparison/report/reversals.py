"""Differences that change their sign during training: a shorter run would have had the opposite verdict."""

from collections.abc import Iterator

from partwise.comparison.results import ClaimResult, Results
from partwise.comparison.results.findings import StepEffect


def reversals(results: Results) -> Iterator[str]:
    """A sentence for each claim whose difference had the opposite sign earlier, with an interval that excluded 0."""
    for claim in results.claims:
        point = last_opposite(claim)
        if claim.role != "claim" or point is None or point.mean is None:
            continue
        effect, earlier = claim.effect, "better" if claim.effect.verdict == "worse" else "worse"
        end = max(each.step for each in claim.effect_over_training)
        yield (
            f"{effect.arm} was {earlier} than {effect.against} at step {point.step:,} "
            f"({point.mean:+.4f}) and is {effect.verdict} at step {end:,} ({effect.mean:+.4f}): "
            "a shorter run would have shown the opposite."
        )


def last_opposite(claim: ClaimResult) -> StepEffect | None:
    """The last evaluation whose interval excluded 0 on the other side; None without a better or worse at the end."""
    effect = claim.effect
    if effect.verdict not in ("better", "worse") or effect.mean is None:
        return None
    points = claim.effect_over_training
    opposite = [
        point
        for point in points
        if point.low is not None
        and point.high is not None
        and (point.high < 0 < effect.mean or effect.mean < 0 < point.low)
    ]
    return max(opposite, key=lambda point: point.step, default=None)

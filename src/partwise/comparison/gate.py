"""A gate for pipelines: whether the verdicts meet requirements, as an exit status."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from partwise.comparison.stats.effect import Effect
from partwise.config import ConfigError, did_you_mean

Kind = Literal["better", "not-worse"]

MET, NOT_MET, UNDECIDED = 0, 1, 3
"""Exit statuses; 2 is invalid input."""


@dataclass(frozen=True)
class Requirement:
    """A requirement on one arm, against the other arm of its claim."""

    arm: str
    kind: Kind

    @classmethod
    def parse(cls, text: str, arms: Sequence[str]) -> "Requirement":
        """`branch better` or `branch not-worse`. Raises ConfigError."""
        arm, _, kind = text.strip().rpartition(" ")
        if kind not in get_args(Kind) or not arm:
            raise ConfigError(f"--require {text!r}: expected 'ARM better' or 'ARM not-worse'")
        if arm.strip() not in arms:
            raise ConfigError(f"--require {text!r}: no claim is about {arm.strip()!r}{did_you_mean(arm.strip(), arms)}")
        return cls(arm.strip(), kind)  # type: ignore[arg-type]

    def status(self, effect: Effect) -> int:
        """*Equivalent* meets `not-worse`; so does a bad end of the interval within the margin. Failed runs meet nothing."""
        if effect.verdict == "better" or (self.kind == "not-worse" and effect.verdict == "equivalent"):
            return MET
        if self.kind == "not-worse" and effect.low is not None and effect.high is not None:
            worst = effect.high if effect.lower_is_better else -effect.low
            if worst <= effect.margin:
                return MET
        if effect.verdict == "undecided":
            return UNDECIDED
        return NOT_MET if effect.verdict in ("worse", "equivalent") or effect.failed else UNDECIDED


def gate_status(requirements: Sequence[Requirement], effects: Sequence[Effect]) -> int:
    """NOT_MET if one is not met, else UNDECIDED if one is undecided, else MET."""
    found = [each.status(effect) for each in requirements for effect in effects if effect.arm == each.arm]
    return NOT_MET if NOT_MET in found else max(found, default=MET)

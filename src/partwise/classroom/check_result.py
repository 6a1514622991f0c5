"""The result of one check of a hand-in."""

from dataclasses import asdict, dataclass
from typing import Any, Literal

Outcome = Literal["holds", "objection", "missing", "told"]
"""`objection`: it is not what was assigned, or does not agree with itself. `missing`: it was not handed in. `told`: a fact
that is no fault, such as another machine."""

RUN = "run"
"""The checks that need code of the hand-in."""


@dataclass(frozen=True)
class Check:
    """One check of a hand-in."""

    what: str
    outcome: Outcome
    text: str

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

"""What the ledger of a project says about a comparison: its level, and how often its questions were asked."""

from typing import Annotated

from pydantic import Field

from partwise.comparison.results.value import Value
from partwise.comparison.stats.effect import Verdict
from partwise.config import Neutral


class OnlineLevel(Value):
    """The place of a comparison in the sequence of a project that shares one false discovery rate, fixed when it starts."""

    alpha: float
    """The false discovery rate of the sequence."""
    level: float
    """The alpha of this comparison."""
    number: int
    """1 for the first comparison of the sequence."""
    discoveries: int
    """Comparisons that were known to have shown a difference when this one started."""


class RepeatedQuestion(Value):
    """How often the question of a claim was asked before in the project, and the outcomes."""

    arm: str
    against: str
    times: int
    outcomes: dict[str, int]
    """Verdict, `no verdict` or `unfinished` -> number of comparisons."""
    names: tuple[str, ...]
    """The comparisons that asked it, oldest first."""
    same_seeds: Annotated[dict[str, tuple[int, int]], Neutral({})] = Field(default_factory=dict)
    """Folder of an earlier comparison of the same arms -> first and last of the seeds that it judged, too."""


class EarlierFamily(Value):
    """The verdicts of the comparison to which this one has added arms: they were judged as one family, and stand."""

    folder: str
    record: int | None
    """The number of its start in the ledger."""
    verdicts: dict[str, Verdict | None]
    """The verdict of each arm; empty if its certificate is gone."""


class LedgerEntry(Value):
    """The record of a result in the ledger."""

    number: int
    hash: str

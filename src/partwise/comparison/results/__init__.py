"""The results of a comparison as one typed value.

Gathering creates a `Results` from finished trials, judging adds the claims, and reports, tables and studies only read it.
An unknown value is None; no key is left out, except one at its `Neutral` value. Nothing here imports torch.
"""

from partwise.comparison.results.arms import (
    Accuracies,
    Accuracy,
    ArmResult,
    Backends,
    Budget,
    PartFinding,
    Proportion,
    TaskScore,
    TrialResult,
    mean,
)
from partwise.comparison.results.findings import (
    Answer,
    ClaimResult,
    ComputeSaved,
    ControlResult,
    Match,
    Matching,
    Ratio,
    Replication,
    SiteStatistic,
    StepEffect,
    StudyFacts,
    TunedArm,
    Tuning,
    tuned_name,
)
from partwise.comparison.results.ledger_facts import EarlierFamily, LedgerEntry, OnlineLevel, RepeatedQuestion
from partwise.comparison.results.results import FORMAT, Protocol, Provenance, References, Results, Task, with_nan
from partwise.comparison.results.value import Facts, Value, read_json

__all__ = [
    "FORMAT",
    "Accuracies",
    "Accuracy",
    "Answer",
    "ArmResult",
    "Backends",
    "Budget",
    "ClaimResult",
    "ComputeSaved",
    "ControlResult",
    "EarlierFamily",
    "Facts",
    "LedgerEntry",
    "Match",
    "Matching",
    "OnlineLevel",
    "PartFinding",
    "Proportion",
    "Protocol",
    "Provenance",
    "Ratio",
    "References",
    "RepeatedQuestion",
    "Replication",
    "Results",
    "SiteStatistic",
    "StepEffect",
    "StudyFacts",
    "Task",
    "TaskScore",
    "TrialResult",
    "TunedArm",
    "Tuning",
    "Value",
    "mean",
    "read_json",
    "tuned_name",
    "with_nan",
]

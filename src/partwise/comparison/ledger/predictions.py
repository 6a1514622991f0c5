"""Predictions: what a person expects of a comparison or a lesson, in the ledger before the first run."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from partwise.comparison.ledger.chain import ChainEntry, DamagedLedgerError
from partwise.config import ConfigError

if TYPE_CHECKING:
    from partwise.comparison.ledger.entries import LedgerEntries
    from partwise.comparison.stats.effect import Effect
    from partwise.comparison.stats.protocol import Claim

NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
RANGE = re.compile(rf"\s*({NUMBER})\s*(?:,|;|\.\.|to|\s)\s*({NUMBER})\s*")

PREDICTED, ANSWERED = "prediction", "predicted result"
"""Kinds of records."""


@dataclass(frozen=True)
class Prediction:
    """A range; its sign says which arm the reader expects to be better."""

    low: float
    high: float

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high

    @classmethod
    def parse(cls, text: str) -> "Prediction":
        """`-0.1,0.02`, `-0.1 to 0.02` or `-0.1 0.02`. Raises ConfigError."""
        found = RANGE.fullmatch(text)
        if found is None:
            raise ConfigError(f"prediction {text!r}: expected two numbers, the ends of a range, such as -0.05,0.02")
        low, high = float(found[1]), float(found[2])
        if low > high:
            raise ConfigError(f"prediction {text!r}: the first number is the smaller one: {high:g},{low:g}")
        return cls(low, high)

    def __str__(self) -> str:
        return f"{self.low:g} to {self.high:g}"


def prediction_of(records: Sequence[ChainEntry], started: int | None) -> Mapping[str, Any] | None:
    """The prediction of the comparison whose start is the record `started`; None if there is none."""
    return next(
        (each.content for each in records if each.content["kind"] == PREDICTED and is_about(each, started)), None
    )


def is_about(record: ChainEntry, started: int | None) -> bool:
    return started is not None and record.content.get("started") == started


def record_prediction(entries: "LedgerEntries", claim: "Claim", prediction: Prediction, trials_exist: bool) -> None:
    """Add a prediction of the difference of a claim to the ledger, before the first trial.

    Raises ConfigError if another one stands there, if trials exist already, or if the ledger cannot be written.
    """

    def content(records: Sequence[ChainEntry]) -> dict[str, Any] | None:
        if (stored := prediction_of(records, entries.started)) is not None:
            earlier = Prediction(stored["low"], stored["high"])
            if earlier != prediction or stored["arm"] != claim.arm:
                raise ConfigError(
                    f"--predict {prediction.low:g},{prediction.high:g}: the ledger already predicts {earlier} for "
                    f"{stored['arm']}, which stands: leave out --predict"
                )
            return None
        if trials_exist:
            raise ConfigError(
                f"--predict {prediction.low:g},{prediction.high:g}: {entries.folder} has trials already: predict before "
                "the first one, or choose another --name"
            )
        difference = {"quantity": "difference", "arm": claim.arm, "against": claim.against}
        range_ = {"low": prediction.low, "high": prediction.high}
        return {"kind": PREDICTED, **entries.place(), "started": entries.started, **difference, **range_}

    try:
        if entries.started is None:
            raise DamagedLedgerError(f"the ledger {entries.ledger.path} has no record of the start of {entries.folder}")
        entries.ledger.append(content)
    except DamagedLedgerError as error:
        raise ConfigError(f"--predict: {error}; leave out --predict, or move the file away") from None


def record_outcome(entries: "LedgerEntries", effects: Iterable["Effect"]) -> Mapping[str, Any] | None:
    """Add the difference that was predicted to the ledger, once; returns that record's content.

    None if nothing was predicted, or the arm has no mean difference.
    """
    if entries.started is None or (records := entries.readable()) is None:
        return None
    predicted = prediction_of(records, entries.started)
    if predicted is None:
        return None
    ends = (predicted["arm"], predicted["against"])
    value = next((each.mean for each in effects if (each.arm, each.against) == ends), None)

    def content(records: Sequence[ChainEntry]) -> dict[str, Any] | None:
        if value is None or outcome_of_prediction(records, entries.started):
            return None
        inside = value in Prediction(predicted["low"], predicted["high"])
        difference = {"quantity": "difference", "arm": ends[0], "against": ends[1]}
        facts = {"value": value, "inside": inside, "low": predicted["low"], "high": predicted["high"]}
        return {"kind": ANSWERED, **entries.place(), "started": entries.started, **difference, **facts}

    try:
        added = entries.ledger.append(content)
    except DamagedLedgerError as error:
        entries.warn(error)
        return None
    return added.content if added else outcome_of_prediction(entries.readable() or [], entries.started)


def outcome_of_prediction(records: Sequence[ChainEntry], started: int | None) -> Mapping[str, Any] | None:
    """The record of what became of the prediction of a comparison; None without one."""
    return next(
        (each.content for each in records if each.content["kind"] == ANSWERED and is_about(each, started)), None
    )


def outcome_sentence(outcome: Mapping[str, Any]) -> str:
    """`predicted -0.1 to 0.02 for ffn=swiglu, measured -0.0312: inside`."""
    predicted = Prediction(outcome["low"], outcome["high"])
    place = "inside" if outcome["inside"] else "outside"
    return f"predicted {predicted} for {outcome['arm']}, measured {outcome['value']:.4g}: {place}"

"""What a search writes to the ledger of its project: each try before its first run, and the decision."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from partwise.comparison.ledger.chain import ChainEntry, DamagedLedgerError
from partwise.comparison.ledger.entries import LedgerEntries
from partwise.comparison.ledger.project import code_version
from partwise.comparison.ledger.values import hash_values
from partwise.comparison.search.answer import Tried
from partwise.config import digest

VERDICTS = {"keep": "better", "discard": "not better", "undecided": "undecided"}
AGAINST = "best"


def record_start(folder: Path, search: str, tried: Tried, settings: Mapping[str, Any]) -> int | None:
    """The number of the record of a try; that of a process that was killed before its first run is adopted."""
    entries = LedgerEntries(folder, name=name_of(search, tried))
    identity = {
        "search": search,
        "settings": dict(settings),
        "try": tried.number,
        "commit": tried.commit,
        "command": tried.command,
        "against": tried.against,
    }
    adopted: ChainEntry | None = None

    def content(records: Sequence[ChainEntry]) -> dict[str, Any] | None:
        nonlocal adopted
        adopted = entries.same_start(records, identity, "", trials_exist=False)
        if adopted:
            return None
        asked = f"{tried.given}: better than {AGAINST if tried.against == 0 else f'try {tried.against}'}?"
        return {
            "kind": "started",
            **entries.place(),
            "search": search,
            "question": asked,
            "questions": {question(search, tried): question_key(tried, settings)},
            "plan": digest(identity),
            "identity": identity,
            "seeds": 0,
            "data": "",
            "online": None,
            "code": code_version(),
            "supersedes": entries.last_start(records),
        }

    try:
        record = entries.ledger.append(content) or adopted
    except DamagedLedgerError as error:
        entries.warn(error)
        return None
    return record.number if record else None


def record_answer(
    folder: Path, search: str, tried: Tried, started: int | None, pool: Mapping[int, float], settings: Mapping[str, Any]
) -> None:
    """The decision on a try, with the hash of the values behind it; once, however often it is recorded."""
    values = {AGAINST: dict(pool), "candidate": dict(zip(tried.seeds, map(finite, tried.values), strict=True))}
    row = {
        "arm": f"try {tried.number}",
        "against": AGAINST,
        "verdict": VERDICTS[tried.decision],
        "n": len(tried.values),
        "mean": tried.estimate,
        "low": tried.low,
        "high": tried.high,
        "role": "claim",
        "question": question_key(tried, settings),
    }
    content = {
        "kind": "result",
        "seeds": len(tried.values),
        "verdicts": [row],
        "judged": len(tried.values),
        "values": hash_values(values),
        "level": tried.level,
        "reason": tried.reason,
    }
    LedgerEntries(folder, started=started, name=name_of(search, tried)).append(content, repeated=False)


def name_of(search: str, tried: Tried) -> str:
    return f"{search}: try {tried.number}"


def question(search: str, tried: Tried) -> str:
    return f"try {tried.number} - {AGAINST}"


def question_key(tried: Tried, settings: Mapping[str, Any]) -> str:
    """The same for the same code and command against the same best, in any search that measures the same."""
    return digest({"metric": settings["metric"], "commit": tried.commit, "command": tried.command})


def finite(value: float | None) -> float:
    return float("nan") if value is None else value

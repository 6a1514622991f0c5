"""A ledger as rows, counts, JSON lines and CSV."""

import csv
import io
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from partwise.comparison.ledger.chain import ChainEntry
from partwise.comparison.ledger.questions import NO_VERDICT, UNFINISHED, starts_and_results
from partwise.comparison.ledger.values import JudgedValues
from partwise.messages import times

COLUMNS = ("number", "time", "kind", "name", "question", "seeds", "verdicts", "alpha", "plan", "previous", "hash")


@dataclass(frozen=True)
class Row:
    """One comparison: its start with its latest outcome."""

    number: int
    time: str
    name: str
    question: str
    seeds: int
    level: float | None
    """Its alpha in the online sequence, if it belongs to that."""
    outcome: str
    changes: int = 0
    """How often trials were repeated with other values after the first verdict."""

    def cells(self) -> list[str]:
        level = "" if self.level is None else f"{self.level:.2g}"
        changed = f" (values changed {times(self.changes)} since)" if self.changes else ""
        return [str(self.number), self.time, self.name, str(self.seeds), level, f"{self.outcome}{changed}"]


def list_comparisons(records: Sequence[ChainEntry]) -> list[Row]:
    """Every comparison that was started, oldest first."""
    starts, results = starts_and_results(records)
    rows = []
    judgments: dict[int, list[ChainEntry]] = {number: [] for number in starts}
    for record in records:
        if record.content["kind"] in ("look", "result"):
            judgments.setdefault(record.content["started"], []).append(record)
    for number, content in starts.items():
        result = results.get(number)
        seeds = max([int(each.content["seeds"]) for each in judgments[number] if result], default=int(content["seeds"]))
        level = content["online"]["level"] if content.get("online") else None
        changes = JudgedValues.recorded(judgments[number]).changes
        row = Row(
            number, content["time"], content["name"], content["question"], seeds, level, describe(result), changes
        )
        rows.append(row)
    return rows


def describe(result: dict[str, Any] | None) -> str:
    """The verdicts of a result: `ffn=swiglu better`."""
    if result is None:
        return UNFINISHED
    return ", ".join(f"{row['arm']} {row['verdict'] or NO_VERDICT}" for row in result["verdicts"])


def count(records: Sequence[ChainEntry]) -> dict[str, int]:
    """Comparisons, questions (each counted once, however often it was asked), and verdicts on claims by kind."""
    starts, results = starts_and_results(records)
    questions = {key for content in starts.values() for key in content["questions"].values()}
    outcomes: Counter[str] = Counter()
    for number in starts:
        rows = [row for row in results[number]["verdicts"] if row["role"] == "claim"] if number in results else []
        outcomes.update(row["verdict"] or NO_VERDICT for row in rows)
    unfinished = {UNFINISHED: sum(number not in results for number in starts)}
    return {"comparisons": len(starts), "questions": len(questions), **dict(sorted(outcomes.items())), **unfinished}


def to_json_lines(records: Sequence[ChainEntry]) -> str:
    """One JSON object per record, with its number, content and hashes."""
    return "".join(json.dumps(plain(record), sort_keys=True) + "\n" for record in records)


def plain(record: ChainEntry) -> dict[str, Any]:
    return {**record.content, "number": record.number, "previous": record.previous, "hash": record.hash}


def to_csv(records: Sequence[ChainEntry]) -> str:
    """One line per record with the columns COLUMNS; JSON lines hold everything."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, extrasaction="ignore", restval="")
    writer.writeheader()
    for record in records:
        values = plain(record)
        online = values.get("online") or {}
        outcome = describe(values) if values.get("verdicts") is not None else ""
        writer.writerow({**values, "verdicts": outcome, "alpha": online.get("level", "")})
    return text.getvalue()

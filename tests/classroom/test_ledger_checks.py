"""The ledger that a student hands in: read in memory from SQLite or JSON lines, and what it says of the result."""

import sqlite3
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from partwise.classroom.ledger_checks import ledger_checks
from partwise.classroom.ledger_files import read_ledger
from partwise.comparison.ledger.chain import ChainEntry, DamagedLedgerError, Ledger
from partwise.comparison.ledger.listing import to_json_lines
from partwise.comparison.results import LedgerEntry

BASELINE = {"name": "mingpt", "config": {"d_model": 8}}
TIME = "2026-11-23T00:00:00Z"


def start(change: str, plan: str, **facts: Any) -> dict[str, Any]:
    arms = [BASELINE, {"name": change, "config": {"d_model": 8, "ffn": change}}]
    common = {"name": change, "folder": f"runs/{change}", "question": "?", "seeds": 5, "online": None, "time": TIME}
    identity = {"arms": arms}
    return {
        **common,
        "kind": "started",
        "questions": {change: f"key {change}"},
        "plan": plan,
        "identity": identity,
        **facts,
    }


def result(started: int, values: str = "v") -> dict[str, Any]:
    return {"kind": "result", "time": TIME, "started": started, "seeds": 5, "verdicts": [], "values": values}


def chained(*contents: dict[str, Any]) -> list[ChainEntry]:
    records: list[ChainEntry] = []
    for content in contents:
        records.append(ChainEntry.following(records[-1] if records else None, content))
    return records


PLAIN = chained(start("ffn=swiglu", "p"), result(1))
ASKED = chained(
    start("norm=none", "a"), result(1), start("ffn=swiglu", "b"), start("ffn=swiglu", "p"), result(4), result(3)
)


def stated(records: list[ChainEntry], number: int, ledger: list[ChainEntry] | None = None, **changes: Any) -> Any:
    """The outcomes and sentences about a certificate whose result is the record with this number."""
    record = records[number - 1]
    named = LedgerEntry(number=number, hash=record.hash)
    certificate = SimpleNamespace(ledger=named, plan_hash="p", judged_values="v")
    facts = {"certificate": certificate, "ledger": ledger or records, "ledger_fault": "", **changes}
    return [(check.outcome, check.text) for check in ledger_checks(SimpleNamespace(**facts))]  # type: ignore[arg-type]


def database(tmp_path: Path, records: list[ChainEntry]) -> bytes:
    ledger = Ledger(tmp_path / "ledger.sqlite")
    for record in records:
        ledger.append(lambda _, record=record: record.content)  # type: ignore[misc]
    return ledger.path.read_bytes()


def test_both_files_of_a_ledger_are_read(tmp_path: Path) -> None:
    assert read_ledger(to_json_lines(ASKED).encode()) == ASKED
    assert read_ledger(database(tmp_path, ASKED)) == ASKED


def test_a_ledger_that_was_changed_is_refused(tmp_path: Path) -> None:
    lines = to_json_lines(PLAIN).encode()
    for content in (
        lines.replace(b'"seeds": 5', b'"seeds": 4', 1),
        lines.splitlines()[1],
        b"{}",
        b"[1]",
        b"\xff",
        b"x",
    ):
        with pytest.raises(DamagedLedgerError):
            read_ledger(content)
    content = database(tmp_path, PLAIN)
    with pytest.raises(DamagedLedgerError, match="was changed: record 1"):
        read_ledger(content.replace(b"ffn=swiglu", b"ffn=nothin"))
    for broken in (content[:200], content[:16] + bytes(5000)):
        with pytest.raises(DamagedLedgerError, match="cannot be read"):
            read_ledger(broken)


def test_a_view_that_computes_rows_without_end_is_not_read(tmp_path: Path) -> None:
    """In the place of the table, it would keep whoever opens the file busy."""
    path = tmp_path / "l.sqlite"
    with sqlite3.connect(path) as connection:
        endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i, '', '', '' FROM n"
        connection.execute(f"CREATE VIEW records (number, previous, content, hash) AS {endless}")
    connection.close()
    with pytest.raises(DamagedLedgerError, match="it has no table of records"):
        read_ledger(path.read_bytes())


def test_an_unbroken_ledger_with_the_result() -> None:
    assert stated(PLAIN, 2) == [("holds", "unbroken, 2 records, this result among them")]


def test_what_was_asked_before_is_told() -> None:
    _, same, others = stated(ASKED, 5)
    assert same == ("told", "the same question was asked once before (1 with a result)")
    assert others == ("told", "1 comparison of other changes before: norm=none")


def test_a_ledger_that_is_missing_deleted_or_another() -> None:
    late = chained(start("ffn=swiglu", "p", late=True), result(1))
    assert stated(late, 2) == [
        ("objection", "the comparison had trials before this ledger had its start: an earlier ledger is gone")
    ]
    assert stated(PLAIN, 2, ASKED)[0][1].startswith("it has no record 2 with the certificate's hash")
    others = chained(start("ffn=swiglu", "p"), result(1, values="w"))
    assert stated(others, 2) == [("objection", "it was written for other values: the certificate has other hashes")]
    assert stated(ASKED, 2) == [("objection", "its record is of another plan")]
    assert stated(PLAIN, 2, ledger_fault="the ledger was changed: record 1") == [
        ("objection", "the ledger was changed: record 1")
    ]
    nothing = SimpleNamespace(certificate=SimpleNamespace(ledger=None), ledger=None, ledger_fault="")
    (check,) = ledger_checks(nothing)  # type: ignore[arg-type]
    assert check.outcome == "objection" and "names no record" in check.text
    named = SimpleNamespace(
        certificate=SimpleNamespace(ledger=LedgerEntry(number=1, hash="0")), ledger=None, ledger_fault=""
    )
    assert [check.outcome for check in ledger_checks(named)] == ["missing"]  # type: ignore[arg-type]

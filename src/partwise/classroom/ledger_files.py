"""The ledger of somebody else, from the content of its file: SQLite, or the JSON lines of `partwise ledger export`."""

import json
import sqlite3
from contextlib import closing
from typing import Any

from partwise.comparison.ledger.chain import ChainEntry, DamagedLedgerError, first_broken
from partwise.records import DamagedFileError, parse

SQLITE = b"SQLite format 3\0"
MAX_STEPS = 2000
"""How often SQLite may report 10,000 steps of its machine: a table that computes its rows ends there."""


def read_ledger(content: bytes) -> list[ChainEntry]:
    """The records of a ledger, read in memory. Raises DamagedLedgerError if it is damaged, or its chain is broken."""
    try:
        records = from_database(content) if content.startswith(SQLITE) else from_lines(content)
        broken = first_broken(records)
    except (sqlite3.Error, DamagedFileError, KeyError, TypeError, ValueError) as error:
        raise DamagedLedgerError(f"the ledger cannot be read: {error}") from None
    if broken:
        raise DamagedLedgerError(f"the ledger was changed: record {broken[0]}: {broken[1]}")
    return records


def from_database(content: bytes) -> list[ChainEntry]:
    """The rows of its table. A database can hold views and triggers: only a plain table is read, and with a limit."""
    steps = 0

    def limit() -> bool:
        nonlocal steps
        steps += 1
        return steps > MAX_STEPS

    with closing(sqlite3.connect(":memory:")) as connection:
        connection.deserialize(content)
        connection.execute("PRAGMA trusted_schema = OFF")
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, len(content))
        connection.set_progress_handler(limit, 10_000)
        kinds = connection.execute("SELECT type FROM sqlite_master WHERE name = 'records'").fetchall()
        if kinds != [("table",)]:
            raise ValueError("it has no table of records")
        rows = connection.execute("SELECT number, previous, content, hash FROM records ORDER BY number").fetchall()
    return [entry(*row) for row in rows]


def from_lines(content: bytes) -> list[ChainEntry]:
    """The inverse of `to_json_lines`, from which the text of every record follows."""
    records = []
    for number, line in enumerate(content.splitlines(), start=1):
        values = dict[str, Any](parse(line, f"line {number}"))
        own = [values.pop(key) for key in ("number", "previous", "hash")]
        records.append(entry(own[0], own[1], json.dumps(values, sort_keys=True, allow_nan=False), own[2]))
    return records


def entry(number: Any, previous: Any, text: Any, hash: Any) -> ChainEntry:
    """Raises TypeError if a value is of another type."""
    if not isinstance(number, int) or not all(isinstance(each, str) for each in (previous, text, hash)):
        raise TypeError("it has a record that is none")
    return ChainEntry(number, previous, text, hash)

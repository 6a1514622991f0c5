"""The file of a ledger: records chained by their hashes, in SQLite.

Each record stores the SHA-256 of the record before it and of its own content, so an edited, inserted or removed record
shows. A chain cannot show that the last records, or the whole file, were deleted, or that everything after a record was
recomputed.
"""

import hashlib
import json
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from partwise.records import DamagedFileError, parse

FIRST = "0" * 64
"""The previous hash of the first record."""

BUSY_SECONDS = 30.0
"""How long a write waits for another process that writes."""

TABLE = """CREATE TABLE IF NOT EXISTS records (
    number INTEGER PRIMARY KEY, previous TEXT NOT NULL, content TEXT NOT NULL, hash TEXT NOT NULL
)"""


KEYS = {
    "started": {"time", "name", "folder", "question", "questions", "plan", "seeds", "online"},
    "look": {"time", "started", "seeds", "verdicts"},
    "result": {"time", "started", "seeds", "verdicts"},
}
"""The required keys of a record by kind; other kinds are only listed."""


class DamagedLedgerError(Exception):
    """The ledger cannot be read or written, or its chain is broken."""


@dataclass(frozen=True)
class ChainEntry:
    """One entry."""

    number: int
    previous: str
    text: str
    """The content as the JSON that is stored and hashed."""
    hash: str

    @property
    def content(self) -> dict[str, Any]:
        content: dict[str, Any] = parse(self.text, f"record {self.number}")
        return content

    @classmethod
    def following(cls, last: Self | None, content: Mapping[str, Any]) -> Self:
        previous, number = (last.hash, last.number + 1) if last else (FIRST, 1)
        text = json.dumps(content, sort_keys=True, allow_nan=False)
        return cls(number, previous, text, record_hash(number, previous, text))


def record_hash(number: int, previous: str, text: str) -> str:
    """SHA-256 of the lines `number`, `previous` and `text`."""
    return hashlib.sha256(f"{number}\n{previous}\n{text}".encode()).hexdigest()


def first_broken(records: Sequence[ChainEntry]) -> tuple[int, str] | None:
    """The number of the first record that does not continue the chain, and why; None if the chain is whole."""
    last = FIRST
    for position, record in enumerate(records, start=1):
        if record.number != position:
            return position, f"it is missing: record {record.number} follows record {position - 1}"
        if record.previous != last:
            return position, "it does not continue the record before it"
        if record.hash != record_hash(record.number, record.previous, record.text):
            return position, "its content does not match its hash"
        try:
            content = record.content
            known = isinstance(content, dict) and KEYS.get(str(content.get("kind")), {"kind", "time"}) <= content.keys()
        except DamagedFileError:
            known = False
        if not known:
            return position, "its content is not a record"
        last = record.hash
    return None


@dataclass(frozen=True)
class Ledger:
    """The ledger in the file `path`, which is created by the first record."""

    path: Path

    def append(self, make: Callable[[Sequence[ChainEntry]], Mapping[str, Any] | None]) -> ChainEntry | None:
        """Add the record that `make` returns for all records so far, and return it; None if it returns None.

        No other process writes in between, and a killed process leaves the whole record or nothing. Raises
        DamagedLedgerError if the file cannot be written or its chain is broken: a record after a broken one would make
        the edit look authentic.
        """
        with explain_errors(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with closing(self.connect("rwc")) as connection:
                connection.execute("BEGIN IMMEDIATE")
                connection.execute(TABLE)
                records = read_all(connection)
                check_chain(self.path, records)
                made = make(records)
                if made is None:
                    return None
                content = {"time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), **made}
                record = ChainEntry.following(records[-1] if records else None, content)
                row = (record.number, record.previous, record.text, record.hash)
                connection.execute("INSERT INTO records VALUES (?, ?, ?, ?)", row)
                connection.execute("COMMIT")
                return record

    def read(self, checked: bool = True) -> list[ChainEntry]:
        """All records in order; [] if there is no file. Raises DamagedLedgerError, also for a broken chain if `checked`."""
        if not self.path.exists():
            return []
        with (
            explain_errors(self.path),
            closing(self.connect("rw")) as connection,
        ):  # may finish what a killed process left
            tables = connection.execute("SELECT name FROM sqlite_master WHERE name = 'records'").fetchall()
            records = read_all(connection) if tables else []
        if checked:
            check_chain(self.path, records)
        return records

    def connect(self, mode: str) -> sqlite3.Connection:
        """A connection without implicit transactions; `mode` as in SQLite's URIs (rw reads a write-protected file, too)."""
        if self.path.is_symlink():
            raise DamagedLedgerError(f"the ledger {self.path} is a symbolic link, which is not followed: remove it")
        uri = f"{self.path.resolve().as_uri()}?mode={mode}"
        connection = sqlite3.connect(uri, uri=True, timeout=BUSY_SECONDS, isolation_level=None)
        connection.execute("PRAGMA synchronous = FULL")
        return connection


def read_all(connection: sqlite3.Connection) -> list[ChainEntry]:
    rows = connection.execute("SELECT number, previous, content, hash FROM records ORDER BY number").fetchall()
    return [ChainEntry(*row) for row in rows]


def check_chain(path: Path, records: Sequence[ChainEntry]) -> None:
    """Raise DamagedLedgerError naming the first broken record."""
    if broken := first_broken(records):
        number, reason = broken
        raise DamagedLedgerError(f"the ledger {path} was changed: record {number}: {reason}")


@contextmanager
def explain_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        raise DamagedLedgerError(f"the ledger {path} cannot be used: {error}") from None

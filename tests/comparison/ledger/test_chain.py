"""The file of a ledger: edits show, a kill leaves whole records, and several processes may write."""

import hashlib
import json
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from partwise.comparison.ledger.chain import FIRST, ChainEntry, DamagedLedgerError, Ledger, first_broken


def add(ledger: Ledger, **content: object) -> ChainEntry:
    return ledger.append(lambda _: {"kind": "note", **content})


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    """Four records, in a folder whose name has spaces and, where the system allows it, a question mark."""
    ledger = Ledger(tmp_path / ("my runs 100%" if sys.platform == "win32" else "my runs? 100%") / "the ledger.sqlite")
    for number in range(1, 5):
        add(ledger, value=number)
    return ledger


def edit(ledger: Ledger, statement: str, *values: object) -> None:
    with sqlite3.connect(ledger.path) as connection:
        connection.execute(statement, values)


def test_a_record_continues_the_chain(ledger: Ledger) -> None:
    """The hashes, recomputed from the file."""
    last = FIRST
    with sqlite3.connect(ledger.path) as connection:
        rows = connection.execute("SELECT number, previous, content, hash FROM records").fetchall()
    for position, (number, previous, content, found) in enumerate(rows, start=1):
        assert (number, previous) == (position, last)
        last = hashlib.sha256("\n".join((str(number), previous, content)).encode()).hexdigest()
        assert found == last
    assert [json.loads(row[2])["value"] for row in rows] == [1, 2, 3, 4]
    assert [record.content["value"] for record in ledger.read()] == [1, 2, 3, 4]


def test_without_a_file_there_are_no_records(tmp_path: Path) -> None:
    assert Ledger(tmp_path / "none.sqlite").read() == [] and not (tmp_path / "none.sqlite").exists()


@pytest.mark.parametrize(
    ("statement", "values", "number", "reason"),
    [
        ("UPDATE records SET content = replace(content, '2', '3') WHERE number = 2", (), 2, "does not match its hash"),
        ("UPDATE records SET hash = ? WHERE number = 4", ("f" * 64,), 4, "does not match its hash"),
        ("UPDATE records SET previous = ? WHERE number = 3", ("0" * 64,), 3, "does not continue"),
        ("DELETE FROM records WHERE number = 1", (), 1, "is missing"),
        ("DELETE FROM records WHERE number = 3", (), 3, "is missing"),
        ("INSERT INTO records VALUES (0, '', '{}', '')", (), 1, "is missing"),
        ("INSERT INTO records VALUES (5, '', '{}', '')", (), 5, "does not continue"),
        ("UPDATE records SET content = x'00ff' WHERE number = 2", (), 2, "does not match its hash"),
    ],
)
def test_an_edit_shows(ledger: Ledger, statement: str, values: tuple[str, ...], number: int, reason: str) -> None:
    edit(ledger, statement, *values)
    broken = first_broken(ledger.read(checked=False))
    assert broken is not None and broken[0] == number and reason in broken[1]
    with pytest.raises(DamagedLedgerError, match=f"record {number}"):
        ledger.read()
    with pytest.raises(DamagedLedgerError, match=f"record {number}"):  # nothing is added to a broken chain
        add(ledger)


def test_a_record_that_is_rehashed_breaks_the_next(ledger: Ledger) -> None:
    first, second = ledger.read()[:2]
    forged = ChainEntry.following(first, {**second.content, "value": 20})
    edit(ledger, "UPDATE records SET content = ?, hash = ? WHERE number = 2", forged.text, forged.hash)
    assert first_broken(ledger.read(checked=False)) == (3, "it does not continue the record before it")


def test_deleted_last_records_do_not_show(ledger: Ledger) -> None:
    """As the documentation says."""
    edit(ledger, "DELETE FROM records WHERE number > 2")
    assert first_broken(ledger.read(checked=False)) is None


def test_what_is_no_database_is_refused(ledger: Ledger) -> None:
    for content in (b"not a database, but text of some length" * 20, ledger.path.read_bytes()[:5000]):
        ledger.path.write_bytes(content)
        with pytest.raises(DamagedLedgerError, match="the ledger"):
            ledger.read()
        with pytest.raises(DamagedLedgerError, match="the ledger"):
            add(ledger)


def test_another_database_is_refused(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "other.sqlite") as connection:
        connection.execute("CREATE TABLE records (name TEXT)")
    with pytest.raises(DamagedLedgerError, match="no such column"):
        Ledger(tmp_path / "other.sqlite").read()


def test_a_folder_in_its_place_is_refused(tmp_path: Path) -> None:
    (tmp_path / "ledger.sqlite").mkdir()
    (tmp_path / "file").touch()
    for path in (tmp_path / "ledger.sqlite", tmp_path / "file" / "ledger.sqlite"):
        with pytest.raises(DamagedLedgerError, match=r"ledger\.sqlite"):
            add(Ledger(path))


def test_an_error_while_a_record_is_made_leaves_no_record(ledger: Ledger) -> None:
    def fail(records: object) -> dict[str, object]:
        raise ValueError

    with pytest.raises(ValueError):
        ledger.append(fail)
    assert add(ledger, value=5).number == 5  # and no lock


WRITER = """
import sys
from pathlib import Path
from partwise.comparison.ledger.chain import Ledger
ledger = Ledger(Path(sys.argv[1]))
for number in range(int(sys.argv[2])):
    ledger.append(lambda records: {"kind": "note", "seen": len(records), "padding": "x" * 20000})
"""


def start_writer(ledger: Ledger, records: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", WRITER, str(ledger.path), str(records)])


def test_two_processes_write_one_chain(ledger: Ledger) -> None:
    writers = [start_writer(ledger, 15) for _ in range(2)]
    assert [writer.wait(timeout=120) for writer in writers] == [0, 0]
    records = ledger.read()
    assert len(records) == 34
    assert [record.content.get("seen", position) for position, record in enumerate(records)] == list(range(34))


def test_a_kill_leaves_whole_records(ledger: Ledger) -> None:
    """Killed while it writes as fast as it can, at five different times."""
    for delay in range(5):
        before = len(ledger.read())
        writer = start_writer(ledger, 10**6)
        while len(ledger.read()) == before:
            time.sleep(0.01)
        time.sleep(delay / 150)
        writer.kill()
        writer.wait()
        after = len(ledger.read())  # also rolls back what the killed process left
        assert after > before
        assert add(ledger).number == after + 1


def test_a_transaction_that_was_cut_off_is_rolled_back(ledger: Ledger) -> None:
    """An end without a word after SQLite wrote pages of the transaction into the file, and before it was complete."""
    code = f"""
import os, sqlite3
connection = sqlite3.connect({str(ledger.path)!r}, isolation_level=None)
connection.execute("PRAGMA cache_size = 1")
connection.execute("BEGIN IMMEDIATE")
for number in range(5, 500):
    connection.execute("INSERT INTO records VALUES (?, '', ?, '')", (number, "x" * 2000))
os._exit(9)
"""
    size = ledger.path.stat().st_size
    done = subprocess.run([sys.executable, "-c", code], check=False)
    assert done.returncode == 9 and ledger.path.stat().st_size > size  # the file holds a part of it
    assert len(ledger.read()) == 4
    assert add(ledger).number == 5


@pytest.mark.parametrize("content", [None, b""])
def test_a_link_is_not_followed(tmp_path: Path, content: bytes | None) -> None:
    """SQLite would write a database into the file that it points to, or make one."""
    target, ledger = tmp_path / "target", Ledger(tmp_path / "ledger.sqlite")
    if content is not None:
        target.write_bytes(content)
    ledger.path.symlink_to(target)
    with pytest.raises(
        DamagedLedgerError, match=r"ledger\.sqlite is a symbolic link, which is not followed: remove it"
    ):
        add(ledger)
    assert (target.read_bytes() if target.exists() else None) == content

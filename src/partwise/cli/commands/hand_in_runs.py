"""`collect --run-parts` and `--rerun`: execute hand-ins, each in a process of its own with a limit of time.

The process runs as the user: it may read and write what the user may, and code in it can also deceive the check.
"""

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from partwise.classroom.check_result import RUN, Check, Outcome
from partwise.classroom.collection import Collection, Entry, judge_together
from partwise.classroom.hand_ins import shown
from partwise.cli.terminal import console
from partwise.comparison.certificate.certificate import CERTIFICATE_FILE
from partwise.config.reading import open_to_read
from partwise.files import open_file, write_file
from partwise.messages import quantity
from partwise.processes import ProcessGroup

ASSIGNED = ("plan", "baseline")
"""Checks without whose success nothing is run: another baseline may be of any size."""
SAFE_NAME = r"[A-Za-z_]\w*\.py"
MAX_OUTPUT = 1 << 20
WARNING = "this executes code of the hand-ins as you: use a user or a container of its own, without your files"


def execute(collection: Collection, run_parts: bool, trials: int, limit: float) -> None:
    """Add to each entry what running it shows, and judge the class again. Other work of this process waits."""
    console.print(WARNING, markup=False)
    for entry in collection.entries:
        has_part = bool(entry.hand_in.certificate.code.imports)
        if not trials and not (run_parts and has_part):
            continue
        console.print(f"running {entry.name}", markup=False)
        entry.checks += executed(entry, run_parts and has_part, trials, limit)
    judge_together(collection)


def executed(entry: Entry, run_parts: bool, trials: int, limit: float) -> Iterator[Check]:
    """The checks of one entry that need its code or its trials."""
    if any(check.what in ASSIGNED for check in entry.objections):
        yield Check(RUN, "missing", "not run, since it is not what was assigned")
        return
    sources, missing = own_sources(entry)
    if missing:
        yield Check(RUN, "missing", f"not run, since {shown(missing)} is not the file that ran, or was not handed in")
        return
    with tempfile.TemporaryDirectory(prefix="partwise-hand-in-") as folder:
        file = Path(folder) / CERTIFICATE_FILE
        write_file(file, entry.hand_in.content)
        words = [sys.executable, "-P", "-m", "partwise", "verify", str(file), "--json", "--rerun", str(trials)]
        for name, content in sources.items():
            path = Path(folder) / name
            write_file(path, content)
            words += ["--import", str(path)]
        yield from run_child([*words, *["--check-parts"] * run_parts], Path(folder), limit)


def own_sources(entry: Entry) -> tuple[dict[str, bytes], str]:
    """The files of its parts, and the name of one that is missing or is not the file that ran."""
    imports, sources = entry.hand_in.certificate.code.imports, entry.hand_in.sources
    faulty = any(check.what == "part" and check.outcome != "holds" for check in entry.checks)
    for name in imports:
        if name not in sources or faulty or not re.fullmatch(SAFE_NAME, name):
            return {}, name
    return {name: sources[name] for name in imports}, ""


def run_child(words: list[str], folder: Path, limit: float) -> Iterator[Check]:
    """The checks that the process reports; what it prints is read up to a bound."""
    out, err = folder / "stdout", folder / "stderr"
    with open_file(out, "wb") as stdout, open_file(err, "wb") as stderr:
        group = ProcessGroup(words, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr)
        try:
            group.process.wait(limit)
        except subprocess.TimeoutExpired:
            yield Check(RUN, "missing", f"it did not end within {quantity(round(limit), 'second')}")
            return
        finally:
            group.kill()
    yield from reported(read_start(out), read_start(err))


def read_start(path: Path) -> str:
    """The first MAX_OUTPUT bytes of a file as text."""
    with open_to_read(path) as file:
        return file.read(MAX_OUTPUT).decode("utf-8", errors="replace")


def reported(out: str, err: str) -> Iterator[Check]:
    """The checks in the document of `verify --json`; without one, why there is none."""
    try:
        repeated: list[dict[str, Any]] = json.loads(out)["certificates"][0]["repeated"]
        for each in repeated:
            fault, statement = each["fault"], str(each["statement"])
            outcome: Outcome = "objection" if fault else "told" if each["difference"] else "holds"
            yield Check(RUN, outcome, shown(statement if fault is None else f"{statement}: no, {fault}", 300))
    except (ValueError, LookupError, TypeError, RecursionError):
        last = err.strip().splitlines()[-1:] or ["it printed no result"]
        yield Check(RUN, "objection", f"it could not be run: {shown(last[0], 300)}")

"""Checks of comparisons and of prepared data: kills at any moment, and damaged bits in every kind of file."""

import hashlib
import io
import json
import os
import random
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import chdir, contextmanager, redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from typing import Any

import pytest

from faults import flip_bit, kill, seconds_of
from partwise.checkpoint import DamagedFileError, verify
from partwise.cli import main
from partwise.config import ConfigError
from partwise.data.shards import CorruptDataError
from partwise.evaluate.references import dataset_references, target_ids
from partwise.train.config import run_config
from reliability_runs import SMALL, Check, Trial, emptied, end_of, small


@contextmanager
def own_cache(folder: Path) -> Iterator[None]:
    """Set the cache of this process and its children."""
    before = os.environ.get("PARTWISE_CACHE")
    os.environ["PARTWISE_CACHE"] = str(folder)
    try:
        yield
    finally:
        os.environ.pop("PARTWISE_CACHE")
        if before is not None:
            os.environ["PARTWISE_CACHE"] = before


def compare(folder: Path) -> tuple[int, str]:
    """`partwise compare` in this process, as `runs/c` of a folder: the exit status and what it printed."""
    small(folder)
    overrides = [word for override in SMALL for word in ("--common", override)]
    words = ["compare", "mingpt", "ffn=swiglu", "--data", str(folder / "text.txt"), "--seeds", "2", "--name", "c"]
    printed, before = io.StringIO(), sys.argv
    sys.argv = ["partwise", *words, *overrides]
    status: Any = 0
    try:
        with chdir(folder), redirect_stdout(printed), redirect_stderr(printed):
            main()
    except SystemExit as stop:
        status = stop.code
    finally:
        sys.argv = before
    return int(status or 0), printed.getvalue()


def claims(folder: Path) -> Any:
    """The answers of a comparison."""
    return json.loads((folder / "runs" / "c" / "results.json").read_text())["claims"]


def ends(folder: Path) -> list[dict[str, Any]]:
    """What the runs of a comparison have come to."""
    return [end_of(run) for run in sorted((folder / "runs" / "c").glob("runs/*/seed-*"))]


def comparison_kills(folder: Path) -> Trial:
    """SIGKILL of a comparison's process, at any moment, up to twice; its workers end by themselves."""
    printed = folder / "printed.json"

    def work() -> None:  # always in a process of its own: a fork of this one would share the server of its workers
        printed.write_text(json.dumps(compare(folder)))

    seconds_of(work)  # kernels are compiled
    found = claims(folder), ends(folder)
    emptied(folder / "runs")
    duration = seconds_of(work)

    def trial(number: int) -> str:
        draw = random.Random(number)
        wait_for_workers(folder)
        emptied(folder / "runs")
        ended = sum(kill(work, draw.uniform(0, 0.9 * duration)) for _ in range(draw.randint(1, 2)))
        waited = ""
        for _ in range(50):
            seconds_of(work)
            status, said = json.loads(printed.read_text())
            if status == 0 or "process" not in said:
                break
            waited = " after an orphan's step"  # a worker of the killed process, which was named
            time.sleep(0.2)
        assert status == 0, said[-300:]
        assert (claims(folder), ends(folder)) == found, "a killed comparison ends differently"
        return f"equal{', some kill after the end' * bool(ended)}{waited}"

    return trial


def wait_for_workers(folder: Path) -> None:
    """Wait until the workers of killed processes, which have this working folder, have noticed and ended."""
    for _ in range(300):
        places = []
        for path in Path("/proc").glob("[0-9]*/cwd"):
            with suppress(OSError):
                places.append(os.readlink(path))
        if str(folder.resolve()) not in places:
            return
        time.sleep(0.1)
    raise AssertionError("a worker of a killed process does not end")


def comparison_flips(folder: Path) -> Trial:
    """One bit of any file of a finished comparison and its ledger: told, repaired or harmless."""
    path = folder / "flipped"  # always the same: the plan has the path of the text
    path.mkdir()
    assert compare(path)[0] == 0
    found = claims(path)
    whole = shutil.copytree(path / "runs", folder / "whole")

    def trial(number: int) -> str:
        shutil.copytree(whole, emptied(path / "runs"))
        flipped = flip_bit(path / "runs", random.Random(number))
        damaged = flipped.read_bytes()
        status, said = compare(path)
        if status:
            assert "Traceback" not in said and status in (1, 2), f"{flipped.relative_to(path)}: {status}: {said[-300:]}"
            return "told"
        assert claims(path) == found, f"silent damage of {flipped.relative_to(path)}"
        if not flipped.exists() or flipped.read_bytes() != damaged:
            return "repaired"
        if flipped.parent.parent.name != "checkpoints":
            return "harmless"
        with pytest.raises(DamagedFileError):  # not read again for the answer, but for everything else
            verify(flipped.parent)
        return "told"

    return trial


def prepared(folder: Path) -> dict[str, Any]:
    """The ids, tokenizer and references of a text of our own, prepared in the cache of a folder."""
    text = folder.parent / "long.txt"
    if not text.exists():
        draw = random.Random(0)
        words = ["".join(draw.choices("abcdefghij", k=draw.randint(2, 7))) for _ in range(300)]
        text.write_text(" ".join(draw.choices(words, k=20_000)))
    with own_cache(folder):
        dataset = run_config("mingpt", *SMALL, "tokenizer=bpe", "tokenizer.vocab_size=300", data=str(text)).prepare()
        return {
            "ids": {
                split: hashlib.sha256(target_ids(dataset, split).tobytes()).hexdigest() for split in ("train", "val")
            },
            "tokenizer": dataset.tokenizer.to_dict(),
            "references": dataset_references(dataset),
        }


def preparation_kills(folder: Path) -> Trial:
    """SIGKILL while a tokenizer is trained, a text is tokenized, or n-grams are counted, up to three times."""
    found = prepared(folder / "whole")
    duration = seconds_of(lambda: prepared(emptied(folder / "timed")))

    def trial(number: int) -> str:
        draw, path = random.Random(number), emptied(folder / "killed")
        for _ in range(draw.randint(1, 3)):
            kill(lambda: prepared(path), draw.uniform(0, 0.9 * duration))
        assert prepared(path) == found, "data differ after a kill"
        return "equal"

    return trial


def preparation_flips(folder: Path) -> Trial:
    """One bit of any file of prepared data and their references."""
    whole = folder / "whole"
    found = prepared(whole)

    def trial(number: int) -> str:
        path = emptied(folder / "flipped")
        shutil.copytree(whole, path)
        flipped = flip_bit(path, random.Random(number))
        damaged = flipped.read_bytes()
        try:
            again = prepared(path)
        except (ConfigError, CorruptDataError) as error:
            assert len(str(error).splitlines()) == 1, str(error)
            return "told"
        assert again == found, f"silent damage of {flipped.relative_to(path)}"
        return "repaired" if not flipped.exists() or flipped.read_bytes() != damaged else "harmless"

    return trial


def report_kills(folder: Path) -> Trial:
    """SIGKILL while the reports of a comparison and of a run are written over older ones."""
    assert compare(folder)[0] == 0
    run = sorted((folder / "runs/c").glob("runs/*/seed-*"))[0].relative_to(folder)
    kept = {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file() and path.suffix == ".json"}

    def work() -> None:
        for name in ("runs/c", str(run)):
            with chdir(folder), redirect_stdout(io.StringIO()), suppress(SystemExit):
                sys.argv = ["partwise", "report", name]
                main()

    work()
    pages = {path: path.read_bytes() for path in (folder / "runs/c/report.html", folder / run / "report.html")}
    duration = seconds_of(work)

    def trial(number: int) -> str:
        draw = random.Random(number)
        old = draw.choice([b"older", None])
        for page in pages:
            page.write_bytes(old) if old else page.unlink(missing_ok=True)
        ended = kill(work, draw.uniform(0, 1.1 * duration))
        for page, whole in pages.items():
            found = page.read_bytes() if page.exists() else None
            assert found in (old, whole), f"half of {page.name} was written"
        assert all(path.read_bytes() == content for path, content in kept.items()), "a report changed a record"
        work()
        assert all(page.read_bytes() == whole for page, whole in pages.items()), "the next report differs"
        return "equal, after the end" if ended else "equal"

    return trial


COMPARISON_CHECKS = {
    "report-kill": Check("A report whose writing was killed is the old one or a whole one", 100, report_kills),
    "compare-kill": Check(
        "A comparison killed at any moment, up to twice, ends with the same answer", 100, comparison_kills
    ),
    "compare-flip": Check(
        "A flipped bit in any file of a comparison is told, repaired or harmless", 1_000, comparison_flips
    ),
    "prepare-kill": Check("Data whose preparation was killed are prepared again, and equal", 500, preparation_kills),
    "prepare-flip": Check(
        "A flipped bit in prepared data or references is told, repaired or harmless", 1_000, preparation_flips
    ),
}

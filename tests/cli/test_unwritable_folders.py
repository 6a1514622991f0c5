"""Commands whose folders cannot be written, without a privilege to ignore permissions: one line, nothing lost."""

import ctypes
import json
import os
import shutil
import struct
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from faults import in_child
from partwise.cli import main
from programs import ARMS, COMMAND, METRIC, comparison, write_program
from stored_formats import COMPARE, RUN, TRAIN

STORED = Path(__file__).parents[1] / "formats_on_disk" / "1"
COMMANDS = {
    "train": [*TRAIN[:-1], "other"],
    "resume": TRAIN,
    "compare": [*COMPARE[: COMPARE.index("comparison")], "other", *COMPARE[COMPARE.index("comparison") + 1 :]],
    "demo": ["demo"],
    "calibrate": ["calibrate", *RUN],
    "export": ["export", "runs/run", "--family", "partwise", "exported"],
    "eval": ["eval", "runs/run"],
    "generate": ["generate", "runs/run", "--max-new-tokens", "3"],
    "attention": ["inspect", "runs/run", "attention"],
    "report": ["report", "runs/comparison"],
    "tokenizer": ["tokenizer", "train", "--vocab-size", "300"],
    "runs": ["runs"],
    "show": ["show", *RUN],
}
WRITES = {
    "folder": {"train", "resume", "compare", "demo", "calibrate", "export", "attention", "report", "tokenizer"},
    "cache": {"train", "resume", "compare", "demo", "calibrate", "export", "eval", "attention"},
    "home": {"train", "resume", "compare", "demo", "calibrate", "export", "eval", "attention"},
}
"""The commands that must fail for want of each folder; the others need to write nothing there."""
SLOW = ("demo", "calibrate", "attention", "report")


def obey_permissions() -> None:
    """Drop root's privilege to ignore them (CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH), also in children."""
    libc = ctypes.CDLL(None, use_errno=True)
    header, sets = struct.pack("Ii", 0x20080522, 0), ctypes.create_string_buffer(24)
    for capability in (1, 2):
        libc.prctl(24, capability, 0, 0, 0)  # PR_CAPBSET_DROP
    libc.capget(header, sets)
    words = [word & ~0b110 if i < 3 else word for i, word in enumerate(struct.unpack("6I", sets.raw))]
    libc.capset(header, struct.pack("6I", *words))


@pytest.fixture
def locked(tmp_path: Path) -> Iterator[Path]:
    """A folder that cannot be written."""
    folder = tmp_path / "locked folder"
    folder.mkdir()
    yield folder
    for path in [folder, *folder.rglob("*")]:
        path.chmod(0o755)


def lock(folder: Path) -> None:
    for path in [folder, *folder.rglob("*")]:
        path.chmod(0o555 if path.is_dir() else 0o444)


def run(words: list[str], folder: Path, environment: dict[str, str]) -> tuple[int, str, str]:
    """Exit status, standard output and standard error of a command in a child that obeys permissions."""
    files = [folder.parent / name for name in ("stdout", "stderr")]

    def work() -> None:
        obey_permissions()
        for number, path in zip((1, 2), files, strict=True):
            os.dup2(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC), number)
        sys.stdout, sys.stderr = (os.fdopen(number, "w", closefd=False) for number in (1, 2))
        os.chdir(folder)
        os.environ.update(environment)
        if os.access(".", os.W_OK) and "locked" in folder.name:
            os._exit(77)
        sys.argv = ["partwise", *words]
        try:
            status = main()
        except SystemExit as end:
            status = end.code
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(status or 0)

    status = os.waitstatus_to_exitcode(os.waitpid(in_child(work), 0)[1])
    if status == 77:
        pytest.skip("this system lets root write everywhere")
    return status, *(path.read_text() for path in files)


def contents(folder: Path) -> dict[Path, bytes]:
    """All files but reports, which are rewritten."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.stem != "report"}


CASES = [
    pytest.param(command, fault, marks=[pytest.mark.long] if command in SLOW else [], id=f"{command} {fault}")
    for command in COMMANDS
    for fault in WRITES
]


@pytest.mark.skipif(sys.platform != "linux", reason="drops a privilege of Linux")
@pytest.mark.parametrize(("command", "fault"), CASES)
def test_a_command_says_which_folder_it_cannot_write(command: str, fault: str, tmp_path: Path, locked: Path) -> None:
    environment: dict[str, str] = {}
    if fault == "folder":
        folder = locked
        shutil.copytree(STORED, folder, dirs_exist_ok=True)
        lock(folder)
    else:
        folder = shutil.copytree(STORED, tmp_path / "work")
        lock(locked)
        place = str(locked / "cache")
        environment = {"PARTWISE_CACHE": place} if fault == "cache" else {"PARTWISE_CACHE": "", "HOME": place}
    before = contents(folder)
    status, printed, errors = run(COMMANDS[command], folder, environment)
    assert "Traceback" not in printed + errors
    if command in WRITES[fault]:
        assert status == 2, (printed, errors)
        last = errors.splitlines()[-1]
        assert last.startswith("error: cannot write ") and "Permission denied" in last, errors
        assert sum(line.startswith("error:") for line in errors.splitlines()) == 1
    else:
        assert status == 0, (printed, errors)
    after = contents(folder)
    assert [path for path, content in before.items() if after.get(path) != content] == []


@pytest.mark.skipif(sys.platform != "linux", reason="drops a privilege of Linux")
def test_a_finished_comparison_is_shown_where_nothing_can_be_written(
    locked: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(locked)
    write_program(locked)
    (locked / "e.yaml").write_text(json.dumps({"command": COMMAND, "arms": ARMS, "metric": METRIC}))
    made = comparison(locked)
    made.run()
    lock(locked)
    before = contents(locked)
    words = ["compare", "e.yaml", "--name", "c", "--seeds"]
    status, printed, errors = run([*words, "4", "--require", "gain better"], locked, {})
    assert status == 0 and "✓ gain" in printed, errors
    status, printed, errors = run(["work", "c"], locked, {})
    assert (status, printed) == (0, "ran 0 trials here; none are left\n"), errors
    status, _, errors = run([*words, "5"], locked, {})
    assert status == 2 and "runs/c cannot be written, and it was judged at 4 seeds, not 5" in errors
    assert contents(locked) == before
    results = locked / "runs/c/results.json"
    results.chmod(0o644)
    results.write_text(results.read_text().replace('"better"', '"worse"'))
    status, _, errors = run([*words, "4"], locked, {})
    assert status == 2 and "results.json was changed" in errors

"""Files, locks and comparisons again, on an emulated Windows; `make test-without-posix` runs all fast tests there."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from emulated_windows.left_out import LEFT_OUT

TESTS = Path(__file__).parent
EMULATION = TESTS / "emulated_windows"
SELECTION = (
    "test_files.py test_drafts.py test_checkpoint.py test_records.py test_git.py data/test_data.py train/test_run_folder.py "
    "any_code/test_function_comparison.py any_code/test_result_files.py any_code/test_several_processes.py "
    "ablation/test_run_list.py comparison/test_plan_record.py comparison/trials/test_work.py"
)
"""A minute or two: what renames, locks, links, starts or ends anything, without models, statistics, reports and texts."""

PROBE = """
import os, signal, sys
from pathlib import Path
from partwise import files, machine, processes, windows
for module, name in ((machine.os, "geteuid"), (files.os, "O_NOFOLLOW"), (processes.signal, "SIGKILL")):
    assert not hasattr(module, name), name
assert os.geteuid and signal.SIGKILL and sys.platform == "linux", "nothing is gone for other modules"
assert machine.sys.platform == "win32" and machine.processor_name() == "An Emulated Processor"
assert machine.is_alive(os.getpid()) and not machine.is_alive(2**22 + 1)
class Model:
    pass
model = Model()
model.weights, model.itself = open("weights", "w"), model
del model
files.rename(Path("weights"), Path("renamed"))
held = open("held.txt", "w")
for change in (lambda: files.rename(Path("held.txt"), Path("other.txt")), lambda: files.replace_file(Path("held.txt"), b"")):
    files.BUSY_SECONDS = 0
    try:
        change()
    except PermissionError:
        continue
    raise AssertionError("an open file was renamed")
files.sync(Path("."))
try:
    machine.os.kill(os.getpid(), 0)
except AssertionError:
    print("as on Windows")
"""


def test_what_windows_lacks_is_gone_for_our_modules_alone(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(EMULATION), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(
        [sys.executable, "-c", PROBE], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.stdout == "as on Windows\n", done.stderr


def test_no_test_that_is_left_out_is_missing() -> None:
    for key in LEFT_OUT:
        file, _, name = key.partition("::")
        assert f"def {name}" in (TESTS / file).read_text(encoding="utf-8"), key


@pytest.mark.timeout(900)
def test_files_locks_and_comparisons_work_there() -> None:
    words = ["-n", "1", "--without-posix", "--tier", "fast", "-p", "no:cacheprovider", *SELECTION.split()]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--rootdir", str(TESTS.parent), *words],
        cwd=TESTS,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
